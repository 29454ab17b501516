"""Preemption by hardware on the simulator, judged by the simulator's own trace.

Kernels, graphs and endless kernels that are longer than any window: host gating alone waits for
their end, the arbiter's second stage takes their channel groups off the card in their midst
(docs/specs/hardware.md). How long a command takes is the simulator's parameter and no figure of a
card; what is measured here is everything around it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.figures import Figure
from bench.harness.patterns import PATTERNS, REQUEST
from bench.harness.scene import Actor, Scene, admit, endless, kernels, play, rig
from bench.promises import shares
from bench.promises.hardware_report import HardwareReports
from bench.promises.harvest import HARVEST, P99_RATIO, p99_ratio
from bench.promises.preempt import OFFLINE_JOB, ONLINE_JOB, online_job, spread
from simulator.judge import evaluate as ev
from simulator.sim import Interval

LAUNCH_S, PAUSE_S, RELEASE_MS = 0.002, 0.028, 5
TARGET_US = 1000
COUNTS = {"500ms": 200, "graph": 100, "persistent": 100}  # online launches beside each
FEW = 40
SECONDS, FEW_SECONDS = 8.0, 6.0
CONTROL_COUNT = 6
RATIO_PATTERN, RATIO_KERNEL_US = "10 % of 1 s", 50_000  # one request of 20 finds offline
SLICE_SHARES, SLICE_KERNELS_US = (30, 70), (1000, 50_000)
NODES = 10
TIMEOUT = "0x65"  # NV_ERR_TIMEOUT
Hardware = Mapping[str, Any]
ON: Hardware = {}


@dataclass(frozen=True)
class Run:
    """One scene, its online bursts, and the arbiter's report on stops."""

    scene: Scene
    bursts: Sequence[ev.Burst]
    offline: Sequence[Interval]
    told: HardwareReports = field(repr=False)

    def last_progress_us(self) -> list[float]:
        """From each online launch to the last progress of offline inside the burst."""
        return ev.card_free_us(self.bursts, self.offline)


def long_kernels(us: float, graph: bool = False, **more: Any) -> Actor:
    """An offline job with one such kernel after another, or graphs that take as long."""
    if graph:
        args = (
            *kernels(us / NODES),
            "--graph",
            "--kernels-per-request",
            str(NODES),
            "--no-sync-each=1",
        )
    else:
        args = (*kernels(us), "--no-sync-each=1", "--in-flight", "1")
    return Actor(OFFLINE_JOB, "offline", 40, args, **more)


def beside(
    offline: Actor,
    count: int,
    hardware: Hardware | None,
    failing: bool = False,
    busy_s: float = LAUNCH_S,
    pause_s: float = PAUSE_S,
) -> Run:
    """That number of online launches beside this job, on one card. `failing`: the driver refuses
    the arbiter's calls.
    """
    online = online_job("--busy", f"{busy_s}", "--idle", f"{pause_s}", per_request=1)
    seconds = count * (busy_s + pause_s)
    with rig(hardware=hardware, settings={"idle_release_ms": RELEASE_MS}) as node:
        admit(node, (online, offline))
        if failing:
            node.fault(f"error call=rm.* code={TIMEOUT} pid={node.arbiter.pid}")
        with HardwareReports(node.run_dir) as told:
            scene = play(node, (online, offline), seconds)
    gap = RELEASE_MS * ev.NS_PER_MS  # an online program with such a stall gave the card back itself
    return Run(scene, scene.whole_bursts(online.job_id, gap), scene.of(offline.job_id), told)


def wrong_work(pieces: Sequence[Interval]) -> tuple[int, int]:
    """Kernels whose pieces do not add up to the length that they were asked for, and all that
    ended.
    """
    done: dict[tuple[int, int, int], int] = {}
    wanted: dict[tuple[int, int, int], int] = {}
    for piece in pieces:
        key = (piece.pid, piece.ctx, piece.seq)
        done[key] = done.get(key, 0) + piece.duration
        if piece.last and not piece.cut:
            wanted[key] = piece.work
    return sum(done[key] != work for key, work in wanted.items()), len(wanted)


def _progress(name: str, run: Run, control: bool = False) -> Figure:
    values = run.last_progress_us()
    note = f"; {run.told.stops} stops, {run.told.failures} failures"
    return Figure(
        name,
        ev.percentile(values, 99),
        "us",
        TARGET_US,
        "<=",
        len(values),
        spread(values, "us", note),
        control=control,
    )


def progress(quick: bool) -> Iterator[Figure]:
    """The last progress of what is longer than any window, and whether the work was right after so
    many stops.
    """
    count = dict.fromkeys(COUNTS, FEW) if quick else COUNTS
    whole_us = count["persistent"] * (LAUNCH_S + PAUSE_S) * 0.6e6
    runs = {
        "500ms": beside(long_kernels(500_000), count["500ms"], ON),
        "graph": beside(long_kernels(500_000, graph=True), count["graph"], ON),
        "persistent": beside(long_kernels(whole_us), count["persistent"], ON),
    }
    for name, run in runs.items():
        yield _progress(f"hw_last_progress_us_p99_{name}", run)
    stops = sum(run.told.stops for run in runs.values())
    wrong, ended = (
        sum(pair) for pair in zip(*(wrong_work(r.offline) for r in runs.values()), strict=True)
    )
    note = f"(of {ended} kernels that ended, over {stops} suspensions)"
    yield Figure("hw_kernels_with_wrong_work", wrong, "", 0, "<=", stops, note)
    took = max(run.told.stop_max_us for run in runs.values())
    yield Figure(
        "hw_stop_us_max",
        took,
        "us",
        None,
        "<=",
        stops,
        "(gate closed -> last answer, by the arbiter)",
    )


def ratio(seconds: float) -> Figure:
    """online's p99 beside long kernels over that of its twin alone on a second card."""
    shared, single = (online_job(*PATTERNS[RATIO_PATTERN], card=card, **REQUEST) for card in (0, 1))
    with rig(cards=2, hardware=ON) as node:
        scene = play(node, (shared, single, long_kernels(RATIO_KERNEL_US)), seconds)
    value = p99_ratio(scene, ONLINE_JOB, single.job_id)
    note = f"(kernels of {RATIO_KERNEL_US // 1000} ms, {RATIO_PATTERN})"
    return Figure("hw_online_p99_ratio", value, "", P99_RATIO, "<=", 1, note)


def harvest(seconds: float) -> Figure:
    """What kernels of 500 ms get done of what online's pauses allow, while online sleeps nearly all
    the time.
    """
    online = online_job("--busy", "0.05", "--idle", "1.2")
    offline = long_kernels(500_000)
    with rig(hardware=ON) as node:
        scene = play(node, (online, offline), seconds)
    release = 100 * ev.NS_PER_MS
    gaps = ev.harvest_by_gap(
        scene.whole_bursts(ONLINE_JOB, release // 2), scene.of(OFFLINE_JOB), release
    )
    note = f"(of each pause: min {min(gaps):.3f}, max {max(gaps):.3f})"
    return Figure("hw_harvest_ratio", statistics.mean(gaps), "", HARVEST, ">=", len(gaps), note)


def weighted(seconds: float) -> Figure:
    """Shares by the groups' time slices, with short and with long kernels."""
    cards = {
        card: {200 + 20 * card + i: share for i, share in enumerate(SLICE_SHARES)}
        for card in range(len(SLICE_KERNELS_US))
    }
    actors = [
        Actor(job, "offline", share, (*endless(us), "--seed", str(job)), card=card)
        for (card, jobs), us in zip(cards.items(), SLICE_KERNELS_US, strict=True)
        for job, share in jobs.items()
    ]
    with rig(cards=len(cards), hardware={"weights": True}) as node:
        scene = play(node, actors, seconds)
    found = {
        f"{us / 1000:g} ms": shares.judge(scene, cards[card], shares.BURST).total
        for card, us in enumerate(SLICE_KERNELS_US)
    }
    worst = max(found, key=lambda key: found[key])
    note = f"(30/70; worst at {worst}; " + ", ".join(f"{k}: {v:.2f}" for k, v in found.items())
    return Figure(
        "hw_share_error_points_by_slices",
        found[worst],
        "points",
        shares.TARGETS[shares.BURST],
        "<=",
        len(found),
        f"{note})",
        detail=found,
    )


def controls() -> Iterator[Figure]:
    """Hardware off, and commands that fail: kernels of 500 ms then end when they end, and the bench
    must see it.
    """
    count, offline = CONTROL_COUNT, long_kernels(500_000)
    pattern: dict[str, Any] = {
        "busy_s": 0.7,
        "pause_s": 0.3,
    }  # so long that a kernel which is left alone ends in it
    yield _progress(
        "control_hw_off_last_progress_us_p99", beside(offline, count, None, **pattern), True
    )
    failing = beside(offline, count, {"actor": "arbiter"}, True, **pattern)
    yield _progress("control_hw_failing_last_progress_us_p99", failing, True)
    note = f"({failing.told.words()})"
    yield Figure("hw_failing_tenants_left_to_gating", failing.told.failed, "", 1, ">=", 1, note)


def figures(quick: bool) -> Iterator[Figure]:
    """Everything of hardware preemption."""
    yield from progress(quick)
    seconds = FEW_SECONDS if quick else SECONDS
    yield ratio(seconds)
    yield harvest(seconds)
    yield weighted(seconds)
    yield from controls()
