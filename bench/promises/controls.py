"""Controls: with a mechanism disabled, its figures must miss their targets. Else the bench is
blind.

The last figure is a control of the design: a window that counts launches instead of time lets that
number of kernels through, whatever their length.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.harness.figures import Figure
from bench.harness.scene import Actor, endless, kernels, play, rig
from bench.promises import preempt
from bench.promises.harvest import HARVEST
from bench.promises.shares import BURST, TARGETS, judge
from simulator.judge import evaluate as ev

COUNT = 8
SWAPPED = (90, 10)
LATE_MS, NEVER_MS = (
    200,
    1000,
)  # idle release of controls, judged as if it were 100 ms; online's pauses are of 250 ms


def _preemption(name: str, run: preempt.Episodes, gates: bool = True) -> Iterator[Figure]:
    frees = ev.card_free_us(run.online, run.offline)
    note = preempt.spread(frees, "us")
    yield Figure(
        f"control_{name}_card_free_us_p99",
        ev.percentile(frees, 99),
        "us",
        1000,
        "<=",
        len(frees),
        note,
        control=True,
    )
    if gates:
        closes = ev.gate_close_us(run.online, run.gates)
        value, note = ev.percentile(closes, 99), preempt.spread(closes, "us")
        yield Figure(
            f"control_{name}_gate_close_us_p99",
            value,
            "us",
            200,
            "<=",
            len(closes),
            note,
            control=True,
        )


def ungoverned(count: int) -> Iterator[Figure]:
    """Governing off: every gate stays open."""
    yield from _preemption(
        "ungoverned", preempt.beside(preempt.offline_jobs(1, 200), count, governed=False)
    )


def gates_ignored(count: int) -> Iterator[Figure]:
    """An offline program without the shim: no process reads the gate that the arbiter closes."""
    neighbour = preempt.offline_jobs(1, 200, shim=False)
    bounded = [
        Actor(a.job_id, a.job_class, a.share, (*a.args, "--in-flight", "16"), shim=False)
        for a in neighbour
    ]
    yield from _preemption("gates_ignored", preempt.beside(bounded, count), gates=False)


def handed_back(name: str, release_ms: int, count: int) -> Iterator[Figure]:
    """Offline is given the card back later than the figures allow for, or not at all in online's
    pauses.
    """
    run = preempt.beside(
        preempt.offline_jobs(1, 200), count, settings={"idle_release_ms": release_ms}
    )
    backs = run.handbacks_ms
    value, note = ev.percentile(backs, 99), preempt.spread(backs, "ms")
    yield Figure(
        f"control_{name}_handback_ms_p99", value, "ms", 102, "<=", len(backs), note, control=True
    )
    yield Figure(
        f"control_{name}_harvest_ratio",
        run.harvest,
        "",
        HARVEST,
        ">=",
        len(run.online),
        control=True,
    )


def share_control(
    name: str,
    shares: Sequence[int],
    actors: Sequence[Actor],
    seconds: float,
    **options: Any,
) -> Figure:
    """The share error of these actors against these shares, which must be short."""
    with rig(**options) as node:
        scene = play(node, actors, seconds)
    found = judge(scene, dict(zip((a.job_id for a in actors), shares, strict=True)), BURST)
    return Figure(
        f"control_{name}_share_error_points",
        found.total,
        "points",
        TARGETS[BURST],
        "<=",
        1,
        control=True,
    )


def shares_ungoverned(seconds: float) -> Figure:
    """Governing off: the driver gives each program as much, whatever it was granted."""
    actors = [
        Actor(321 + i, "offline", share, (*endless(1000), "--seed", str(i)))
        for i, share in enumerate((10, 90))
    ]
    return share_control("ungoverned", (10, 90), actors, seconds, governed=False)


def weights_swapped(seconds: float) -> Figure:
    """The arbiter gets the shares 90/10, the judge 10/90."""
    actors = [
        Actor(301 + i, "offline", share, (*endless(1000), "--seed", str(i)), granted=SWAPPED[i])
        for i, share in enumerate((10, 90))
    ]
    return share_control("weights_swapped", (10, 90), actors, seconds)


def busy_time_lied(seconds: float) -> Figure:
    """A tenant with 10 % writes into its page that all it submitted is finished already."""
    liar = Actor(311, "offline", 10, endless(2000), preload="liar.so")
    honest = Actor(312, "offline", 90, endless(2000))
    return share_control("busy_time_lied", (10, 90), (liar, honest), seconds)


def window_by_count(count: int) -> Figure:
    """Offline may have 8 kernels of 1 ms in flight, and no time bound: how long does the card stay
    taken?
    """
    args = (*kernels(1000), "--no-sync-each=1000000", "--in-flight", str(COUNT))
    run = preempt.beside(
        [Actor(preempt.OFFLINE_JOB, "offline", 30, args)],
        count,
        settings={"window_us": 1_000_000},
        sim_options=("--slice-us", "100000"),
    )
    return latency_by_count([us / 1000 for us in ev.card_free_us(run.online, run.offline)])


def latency_by_count(values: Sequence[float]) -> Figure:
    """As many kernels as the window counts, less what had run of the first one: neither fewer nor
    more.
    """
    value, note = (
        statistics.median(values),
        preempt.spread(values, "kernels", f"; {COUNT} launches allowed"),
    )
    return Figure(
        "count_window_latency_kernels",
        value,
        "",
        COUNT - 1.5,
        ">=",
        len(values),
        note,
        at_most=COUNT + 0.5,
        proof=True,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """All controls."""
    count, seconds = (5, 3.0) if quick else (6, 4.0)
    yield from ungoverned(count)
    yield from gates_ignored(count)
    yield from handed_back("given_back_late", LATE_MS, count)
    yield from handed_back("never_given_back", NEVER_MS, count)
    yield shares_ungoverned(seconds)
    yield weights_swapped(seconds)
    yield busy_time_lied(seconds)
    yield window_by_count(2 * count)
