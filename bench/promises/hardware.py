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
from bench.harness.patterns import PATTERNS
from bench.harness.scene import Actor, Scene, admit, kernels, play, rig
from bench.promises import shares
from bench.promises.hardware_report import HardwareReports
from bench.promises.harvest import p99_ratio
from bench.promises.preempt import OFFLINE_JOB, ONLINE_JOB, online_job, spread
from simulator.judge import evaluate as ev
from simulator.sim import Interval

LAUNCH_S, PAUSE_S, RELEASE_MS = 0.002, 0.028, 5
TARGET_US, RATIO, HARVEST, SHARE = 1000, 1.05, 0.97, 1.0
RATIO_KERNELS_MS = (5, 50, 500)
RATIO_PATTERNS = (
    "10 % of 1 s",
    "50 % of 4 s",
)  # one request of 20 finds offline on the card; one of 400 does
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
    count = 60 if quick else 1050  # some launches come late on a busy machine: a thousand and a few
    few = 40 if quick else 400
    runs = {
        "500ms": beside(long_kernels(500_000), count, ON),
        "graph": beside(long_kernels(500_000, graph=True), few, ON),
        "persistent": beside(long_kernels(few * (LAUNCH_S + PAUSE_S) * 0.6e6), few, ON),
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


def ratio(quick: bool) -> Figure:
    """online's p99 beside kernels of 5, 50 and 500 ms over that of its
    twin alone on a second card.
    """
    found = {}
    load: dict[str, Any] = {"kernel_us": 100, "per_request": 50}
    for pattern in RATIO_PATTERNS:
        for ms in RATIO_KERNELS_MS[1:2] if quick else RATIO_KERNELS_MS:
            shared, single = (online_job(*PATTERNS[pattern], card=card, **load) for card in (0, 1))
            with rig(cards=2, hardware=ON) as node:
                scene = play(
                    node, (shared, single, long_kernels(1000 * ms)), 8.0 if quick else 12.0
                )
            found[f"{ms} ms, {pattern}"] = p99_ratio(scene, ONLINE_JOB, single.job_id)
    worst = max(found, key=lambda key: found[key])
    note = f"(worst at {worst}; " + ", ".join(f"{k}: {v:.3f}" for k, v in found.items()) + ")"
    return Figure(
        "hw_online_p99_ratio", found[worst], "", RATIO, "<=", len(found), note, detail=found
    )


def harvest(quick: bool) -> Figure:
    """What kernels of 500 ms get done of what online's pauses allow, while online sleeps nearly all
    the time.
    """
    online = online_job("--busy", "0.05", "--idle", "1.2")
    offline = long_kernels(500_000)
    seconds = 6.0 if quick else 20.0
    with rig(hardware=ON) as node:
        scene = play(node, (online, offline), seconds)
    release = 100 * ev.NS_PER_MS
    gaps = ev.harvest_by_gap(
        scene.whole_bursts(ONLINE_JOB, release // 2), scene.of(OFFLINE_JOB), release
    )
    note = f"(of each pause: min {min(gaps):.3f}, max {max(gaps):.3f})"
    return Figure("hw_harvest_ratio", statistics.mean(gaps), "", HARVEST, ">=", len(gaps), note)


def weighted(quick: bool) -> Iterator[Figure]:
    """Shares by the groups' time slices beside shares by quanta: the
    same tenants, the same judge.
    """
    seconds = 4.0 if quick else 6.0
    mixes = (
        {"30/70": (30, 70)} if quick else {"10/90": (10, 90), "30/70": (30, 70), "5x20": (20,) * 5}
    )
    lengths = {"1 ms": 1000.0, "50 ms": 50_000.0}
    ways: dict[str, Hardware | None] = {"slices": {"weights": True}, "turns": None}
    for way, hardware in ways.items():
        found = {}
        for mix, parts in mixes.items():
            for length, us in lengths.items():
                jobs = {200 + i: share for i, share in enumerate(parts)}
                args = (*kernels(us), "--no-sync-each=1000000", "--kernels-per-request", "5")
                actors = [
                    Actor(job, "offline", share, (*args, "--seed", str(job)))
                    for job, share in jobs.items()
                ]
                with rig(hardware=hardware) as node:
                    scene = play(node, actors, seconds)
                found[f"{mix} {length}"] = shares.judge(scene, jobs, "burst-share", us).total
        worst = max(found, key=lambda key: found[key])
        note = f"(worst at {worst}; " + ", ".join(f"{k}: {v:.2f}" for k, v in found.items()) + ")"
        name = f"hw_share_error_points_by_{way}"
        target = SHARE if way == "slices" else None
        yield Figure(name, found[worst], "points", target, "<=", len(found), note, detail=found)


def controls(quick: bool) -> Iterator[Figure]:
    """Hardware off, and commands that fail: kernels of 500 ms then end when they end, and the bench
    must see it.
    """
    count, offline = 6 if quick else 20, long_kernels(500_000)
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
    yield ratio(quick)
    yield harvest(quick)
    yield from weighted(quick)
    yield from controls(quick)
