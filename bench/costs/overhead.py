"""What qgpu costs a program that is alone on its card."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.harness.calibration import CALL, Sample, in_units
from bench.harness.figures import Figure, doubt_of
from bench.harness.node import BUILD, Rig
from bench.harness.scene import kernels
from gres.grant.store import Grant

# Nanoseconds on the reference machine, by figure; each is judged in calls
# (bench/harness/calibration.py).
TARGETS: dict[str, float | None] = {
    "launch_overhead_ns": 10.0,
    "launch_overhead_ns_8t": 20.0,
    "launch_default_stream_overhead_ns": 20.0,
    "alloc_pair_overhead_ns": 300.0,
    "alloc_pair_live_overhead_ns": 300.0,
}
RUNS, FEW_RUNS = 7, 2
# Other states, reported: options of launch-bench, and what they are; windows as the arbiter sets
# them (policy.h).
STATES: dict[str, tuple[tuple[str, ...], str]] = {
    "window_275us": (
        ("--window-us", "275"),
        "a tenant beside online; each launch looks what is in flight",
    ),
    "window_4000us": (("--window-us", "4000"), "tenants that share without online; the same"),
    "kernels_100us": (
        ("--kernel-us", "100"),
        "alone on the card; longer kernels, so more launches look",
    ),
    "isolation_none": (("--window-us", "0"), "counted only, without gate or window"),
}
# Kernels and how often they are waited for: short ones awaited often, a queue that is always full,
# graphs. Longer ones lose less.
SOLO_LOADS: dict[str, tuple[str, ...]] = {
    "20 us, awaited each 16": (*kernels(20), "--no-sync-each=16"),
    "5 us back to back": (*kernels(5), "--no-sync-each=1000000"),
    "graphs of 20 x 20 us, awaited each 16": (
        *kernels(20),
        *("--graph", "--kernels-per-request", "20", "--no-sync-each=16"),
    ),
}
SOLO_TARGET = 1.005
SOLO_S = (
    0.35  # two runs differ as much in 0.3 s as in 1 s, by where the scheduler puts the processes
)
SOLO_PAIRS, FEW_PAIRS = 15, 2
STUB = "the stub's card is always done: no wait for room"


def _timed(*args: str) -> dict[str, float]:
    run = subprocess.run(
        [BUILD / "test/launch-bench", *args], check=True, capture_output=True, text=True
    )
    return {
        name: float(value) for name, value in (line.split() for line in run.stdout.splitlines())
    }


def _once() -> dict[str, float]:
    """One run of the micro-benchmark in each state; each figure is a median of interleaved pairs
    within the run, and so is the unit beside it.
    """
    told = _timed()
    for state, (args, _) in STATES.items():
        other = _timed("--live", "-1", *args)
        for end in ("", "_unit"):
            told[f"launch_overhead_ns_{state}{end}"] = other[f"launch_overhead_ns{end}"]
    return told


def in_calls(
    name: str, told: Sequence[Mapping[str, float]], target: float | None, note: str
) -> Figure:
    """One of its figures over several runs, in calls."""
    samples = [Sample(run[name], run[f"{name}_unit"]) for run in told]
    return in_units(name.replace("_ns", "_calls"), samples, CALL, target, note)


def launch_figures(told: Sequence[Mapping[str, float]]) -> Iterator[Figure]:
    """The figures over several runs: of a tenant alone on its card, and reported ones of other
    states.
    """
    for name, target in TARGETS.items():
        alone = "; alone on the card, kernels of 10 us" if name.startswith("launch") else ""
        yield in_calls(name, told, target, f"stub driver{alone}")
    for state, (_, meaning) in STATES.items():
        yield in_calls(f"launch_overhead_ns_{state}", told, None, f"{meaning}; {STUB}")


def launch_overhead(runs: int) -> Iterator[Figure]:
    """What a launch and an allocation cost, against a driver whose calls return at once."""
    yield from launch_figures([_once() for _ in range(runs)])


@dataclass(frozen=True)
class Pair:
    """Kernels per second of the same load without qgpu and as a tenant of 100 %, one right after
    the other.
    """

    plain: float
    ours: float

    @property
    def ratio(self) -> float:
        """Above 1: qgpu costs something."""
        return self.plain / self.ours


def noise_of(pairs: Sequence[Pair]) -> float:
    """How far a run without qgpu is from the next one: the median of it, as a part of 1."""
    return statistics.median(abs(a.plain / b.plain - 1) for a, b in pairwise(pairs))


def solo_pair(
    rig: Rig, grant: Grant, load: Sequence[str], seconds: float, plain_first: bool
) -> Pair:
    """One pair; the order alternates, so that a machine that slows down favours neither."""

    def rate(governed: bool) -> float:
        process = rig.workload(grant if governed else None, *load, "--length", f"{seconds}")
        return float(rig.summary(process)["kernels_per_s"])

    first, second = rate(not plain_first), rate(plain_first)
    return Pair(first, second) if plain_first else Pair(second, first)


def solo_judged(found: Mapping[str, Sequence[Pair]]) -> Figure:
    """The load that loses most, by the median of its pairs; the others and the noise of each stand
    beside it.
    """
    medians = {
        name: statistics.median(pair.ratio for pair in pairs) for name, pairs in found.items()
    }
    worst = max(medians, key=lambda name: medians[name])
    each = ", ".join(
        f"{name}: {medians[name]:.4f} +-{doubt_of([p.ratio for p in pairs]):.4f}"
        f" (noise {noise_of(pairs):.4f}, {len(pairs)} pairs)"
        for name, pairs in found.items()
    )
    detail = medians | {f"{name}, noise": noise_of(pairs) for name, pairs in found.items()}
    runs = min(len(pairs) for pairs in found.values())
    return Figure(
        "solo_overhead_ratio",
        medians[worst],
        "",
        SOLO_TARGET,
        "<=",
        runs,
        f"(worst at {worst}; {each})",
        detail=detail,
    )


def solo_pairs(
    loads: Mapping[str, Sequence[str]], pairs: int, seconds: float
) -> dict[str, list[Pair]]:
    """Interleaved pairs of each load on one card, without qgpu and as a tenant of 100 %."""
    found: dict[str, list[Pair]] = {name: [] for name in loads}
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        grant = rig.grant(1, "offline", 100)
        for number in range(pairs):
            for name, load in loads.items():
                found[name].append(solo_pair(rig, grant, load, seconds, number % 2 == 0))
    return found


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this scenario."""
    yield from launch_overhead(FEW_RUNS if quick else RUNS)
    yield solo_judged(solo_pairs(SOLO_LOADS, FEW_PAIRS if quick else SOLO_PAIRS, SOLO_S))
