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
    "launch_default_stream_overhead_ns": 20.0,
    "alloc_pair_overhead_ns": 300.0,
    "alloc_pair_live_overhead_ns": 300.0,
}
# Other states, reported: options of launch-bench, and what they are; windows as the arbiter sets them (policy.h).
STATES: dict[str, tuple[tuple[str, ...], str]] = {
    "window_400us": (("--window-us", "400"), "a tenant beside online; each launch looks what is in flight"),
    "window_4000us": (("--window-us", "4000"), "tenants that share without online; the same"),
    "kernels_100us": (("--kernel-us", "100"), "alone on the card; longer kernels, so more launches look"),
    "isolation_none": (("--window-us", "0"), "counted only, without gate or window"),
}
STUB = "the stub's card is always done: no wait for room"


def _timed(*args: str) -> dict[str, float]:
    run = subprocess.run([BUILD / "test/launch-bench", *args], check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.split() for line in run.stdout.splitlines())}


def _once() -> dict[str, float]:
    """One run of the micro-benchmark in each state; each figure is a median of interleaved pairs within the run."""
    others = {state: _timed("--live", "-1", *args) for state, (args, _) in STATES.items()}
    return _timed() | {
        f"launch_overhead_ns_{state}": told["launch_overhead_ns"] for state, told in others.items()
    }


def _median(name: str, target: float | None, values: list[float], note: str) -> Figure:
    spread = f"(min {min(values):.1f}, max {max(values):.1f} ns; {note})"
    return Figure(name, statistics.median(values), "ns", target, "<=", len(values), spread, simulated=False)


def launch_figures(told: list[dict[str, float]]) -> Iterator[Figure]:
    """The figures over several runs: of a tenant alone on its card, and reported ones of other states."""
    for name, target in TARGETS.items():
        note = "alone on the card, kernels of 10 us" if name.startswith("launch") else "stub driver"
        yield _median(name, target, [run[name] for run in told], note)
    for state, (_, meaning) in STATES.items():
        name = f"launch_overhead_ns_{state}"
        yield _median(name, None, [run[name] for run in told], f"{meaning}; {STUB}")


def launch_overhead(runs: int) -> Iterator[Figure]:
    """Nanoseconds per launch and per allocation pair, against a driver whose calls return at once."""
    yield from launch_figures([_once() for _ in range(runs)])


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
