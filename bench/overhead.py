"""What qgpu costs a program that is alone on its card."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from bench.rig import BUILD, Rig

TARGETS = {
    "launch_overhead_ns": 10.0,
    "launch_overhead_ns_8t": 20.0,
    "launch_lone_overhead_ns": 10.0,
    "launch_default_stream_overhead_ns": 20.0,
    "alloc_pair_overhead_ns": 300.0,
    "alloc_pair_live_overhead_ns": 300.0,
}


LONE_WINDOW_US = 20000  # of a tenant that has the card to itself


def _timed(*args: str) -> dict[str, float]:
    run = subprocess.run([BUILD / "test/launch-bench", *args], check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.split() for line in run.stdout.splitlines())}


def _once() -> dict[str, float]:
    """One run of the micro-benchmark: each figure is a median of interleaved pairs within the run."""
    lone = _timed("--window-us", str(LONE_WINDOW_US))
    return _timed() | {"launch_lone_overhead_ns": lone["launch_window_overhead_ns"]}


def launch_overhead(runs: int) -> Iterator[Figure]:
    """Nanoseconds per launch and per allocation pair, against a driver whose calls return at once."""
    told = [_once() for _ in range(runs)]
    for name, target in TARGETS.items():
        values = [run[name] for run in told]
        spread = f"(min {min(values):.1f}, max {max(values):.1f} ns)"
        yield Figure(name, statistics.median(values), "ns", target, "<=", runs, spread, simulated=False)


def solo_overhead(pairs: int, seconds: float) -> Figure:
    """Rate without qgpu over the rate of a 100 % tenant, in interleaved pairs on one simulated card."""
    ratios = []
    args = ("--kernel-us", "200", "--no-sync-each", "--length", f"{seconds}", "--iters", "200000")
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        grant = rig.grant(1, "offline", 100)
        for _ in range(pairs):
            plain = rig.summary(rig.workload(None, *args))["kernels_per_s"]
            ours = rig.summary(rig.workload(grant, *args))["kernels_per_s"]
            ratios.append(plain / ours)
    spread = f"(min {min(ratios):.4f}, max {max(ratios):.4f})"
    return Figure("solo_overhead_ratio", statistics.median(ratios), "", 1.005, "<=", pairs, spread)


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this scenario."""
    yield from launch_overhead(3 if quick else 11)
    yield solo_overhead(2 if quick else 7, 1.0 if quick else 3.0)
