"""Preemption, hand-back and harvest on the simulator, judged by the simulator's own trace.

An offline job submits 200 µs kernels without pause; an online job alternates work and silence. The control is
the same with governing switched off, and its figures must come out short.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.rig import Rig, wait_for
from enforcer import evaluate as ev
from enforcer.gatetrace import Gate
from enforcer.sim import Interval
from gres.grants import Grant

RELEASE_NS = 100 * ev.NS_PER_MS
KERNEL = ("--kernel-us", "200", "--iters", "200000", "--kernels-per-request", "5")
ONLINE_JOB, OFFLINE_JOB = 101, 102


@dataclass(frozen=True)
class Episodes:
    """What one run of online beside offline left behind."""

    online: Sequence[ev.Burst]
    offline: Sequence[Interval]
    gates: Sequence[Gate]
    start: int
    end: int
    latency_p99_us: float


def beside(
    governed: bool, count: int, busy: float, idle: float, sim: Sequence[str] = (), offline_us: int = 200
) -> Episodes:
    """Run `count` online bursts beside an offline job of kernels of offline_us on one card."""
    training = (
        "--kernel-us",
        f"{offline_us}",
        "--iters",
        f"{offline_us * 1000}",
        "--kernels-per-request",
        "5",
    )
    length = count * (busy + idle)
    with (
        tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work,
        Rig(Path(work), governed=governed, sim_options=sim) as rig,
    ):
        offline_grant = rig.grant(OFFLINE_JOB, "offline", 30)
        online_grant = rig.grant(ONLINE_JOB, "online", 60)
        offline = rig.workload(offline_grant, *training, "--no-sync-each", "--length", f"{length + 3}")
        wait_for("the offline job's first work", lambda: bool(rig.trace()), 20)
        start = time.monotonic_ns()
        online = rig.workload(
            online_grant,
            *KERNEL,
            "--log",
            f"{work}/online.log",
            "--busy",
            f"{busy}",
            "--idle",
            f"{idle}",
            "--length",
            f"{length}",
        )
        told = rig.summary(online)
        end = time.monotonic_ns()
        rig.summary(offline)
        return _episodes(rig, online.pid, offline.pid, start, end, told)


def _episodes(rig: Rig, online: int, offline: int, start: int, end: int, told: dict[str, Any]) -> Episodes:
    spans = rig.trace()
    gates = [g for g in rig.gates() if g.job_id == OFFLINE_JOB]
    calls = [entry["start_ns"] for entry in rig.logged("online.log") if "burst" in entry]
    driven = ev.bursts(ev.select(spans, 0, [online]), RELEASE_NS // 2)
    found = ev.with_calls(driven, calls, RELEASE_NS // 2)
    return Episodes(found, ev.select(spans, 0, [offline]), gates, start, end, told["latency_us"]["p99"])


def alone(seconds: float, busy: float, idle: float) -> float:
    """Online's p99 latency in µs without a neighbour, the shim in place."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        grant: Grant = rig.grant(ONLINE_JOB, "online", 60)
        run = rig.workload(grant, *KERNEL, "--busy", f"{busy}", "--idle", f"{idle}", "--length", f"{seconds}")
        p99: float = rig.summary(run)["latency_us"]["p99"]
        return p99


def _spread(values: Sequence[float], unit: str) -> str:
    return f"(median {statistics.median(values):.1f}, max {max(values):.1f} {unit})"


def judged(run: Episodes, control: bool) -> Iterator[Figure]:
    """The figures of one run."""
    prefix = "control_ungoverned_" if control else ""
    closes = ev.gate_close_us(run.online, run.gates)
    frees = ev.card_free_us(run.online, run.offline)
    ratio = ev.harvest_ratio(run.online, run.offline, run.start, run.online[-1].end, RELEASE_NS)
    episodes = len(run.online)

    def figure(name: str, values: Sequence[float], target: float, unit: str) -> Figure:
        p99 = ev.percentile(values, 99)
        return Figure(
            prefix + name, p99, unit, target, "<=", episodes, _spread(values, unit), control=control
        )

    yield figure("gate_close_us_p99", closes, 1000, "us")
    yield figure("card_free_us_p99", frees, 2000, "us")
    if not control:
        yield figure("handback_ms_p99", ev.handback_ms(run.online, run.gates, run.end), 105, "ms")
        yield Figure("harvest_ratio", ratio, "", 0.95, ">=", episodes)


def p99_ratio(pairs: int, seconds: float) -> Figure:
    """Online's p99 beside an offline neighbour over its p99 alone, in interleaved pairs."""
    ratios = []
    for _ in range(pairs):
        single = alone(seconds, 0.5, 0.5)
        shared = beside(True, int(seconds), 0.5, 0.5).latency_p99_us
        ratios.append(shared / single)
    spread = "pairs " + " ".join(f"{r:.3f}" for r in ratios)
    return Figure("online_p99_ratio", statistics.median(ratios), "", 1.10, "<=", pairs, spread)


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this scenario."""
    yield from judged(beside(True, 15 if quick else 100, 0.15, 0.25), control=False)
    yield from judged(beside(False, 5 if quick else 10, 0.15, 0.25), control=True)
    yield p99_ratio(1 if quick else 5, 4 if quick else 6)
