"""Are shares kept when pausing tenants fill a card?

Random worlds of two to five offline tenants with weights of 10 to 60. Each has endless kernels, or
pauses after each; together they ask for 1.5 cards at least. The error of a share is that of
`worlds` (bench/worlds/judge.py), in the worst window of the worst tenant. *Floor*: the tenant's
part by weight of what it has alone, less what the card lost to changes of context. Taking turns
gives that, so whoever shares more cleverly must not take it from anybody.

Constants may be chosen by the first set of seeds; the second one is judged.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.harness.figures import Figure
from bench.worlds.draw import logarithmic, us
from bench.worlds.judge import TEN, Got, Raw, got, longest, worst_error
from simulator.whatif.simtrace import TenantTrace, Trace
from simulator.whatif.simulate import run_program

TUNING, JUDGED = 0, 1000  # the first seed of either set
WORLDS, FEW = 60, 12
SECONDS = 20
LEAST_DEMAND = 1.5  # cards
WEIGHTS = (10, 60)
LENGTHS_US = (20.0, 5000.0)  # of kernels and of pauses
AT_ONCE = 2
FIELDS = {"error_10s": 2.0, "error_1s": 5.0, "below_floor": 2.0}  # points at most


@dataclass(frozen=True)
class Judged:
    """Points of the card: the largest errors, and how far anybody is below his floor."""

    error_10s: float
    error_1s: float
    below_floor: float


def alone(tenant: TenantTrace) -> float:
    """The part of the card that it uses alone."""
    kernel = statistics.fmean(length.ns for length in tenant.kernel or [])
    return kernel / (kernel + tenant.pause.ns)


def weights(dice: Random, count: int) -> list[int]:
    """Shares of one card: their sum is at most 100."""
    while True:
        drawn = [dice.randint(*WEIGHTS) for _ in range(count)]
        if sum(drawn) <= 100:
            return drawn


def tenants(dice: Random) -> list[dict[str, Any]]:
    """Those of a world, whatever they ask for."""
    shares = weights(dice, dice.randint(2, 5))
    return [
        {
            "name": f"t{i}",
            "class": "offline",
            "share": share,
            "kernel": us(logarithmic(dice, *LENGTHS_US)),
            "pause": us(logarithmic(dice, *LENGTHS_US)) if dice.random() < 0.7 else "0s",
        }
        for i, share in enumerate(shares)
    ]


def world(seed: int) -> Trace:
    """The world of a seed."""
    dice = Random(f"qgpu gain {seed}")
    card = {"context_switch": us(logarithmic(dice, 50, 200))}
    while True:
        body = {"duration": f"{SECONDS}s", "seed": seed, "cards": [card], "tenants": tenants(dice)}
        trace = Trace.model_validate(body)
        if sum(map(alone, trace.tenants)) >= LEAST_DEMAND:
            return trace


def without_gates(trace: Trace) -> Trace:
    """The same with plain time slices, which know no weights."""
    free = [t.model_copy(update={"isolation": "none"}) for t in trace.tenants]
    return trace.model_copy(update={"tenants": free})


def below_floor(trace: Trace, raw: Raw) -> float:
    """The most that a tenant lacks; nothing if all have their floor."""
    duration, total = int(raw["duration_ns"]), sum(t.share for t in trace.tenants)
    kept = 1 - int(raw["cards"][0]["switch_lost_ns"]) / duration
    floors = [kept * t.share / total * alone(t) for t in trace.tenants]
    parts: list[float] = [mine["busy_ns"] / duration for mine in raw["tenants"]]
    lacks = [floor - part for floor, part in zip(floors, parts, strict=True)]
    return 100 * max(0.0, *lacks)


def judge(trace: Trace, raw: Raw, fluid: Raw) -> Judged:
    """The figures of a world from its run and that of the fluid card."""
    found: Sequence[Got] = got(trace, raw, fluid)
    kernel = longest(trace, trace.tenants)
    ten, one = (worst_error(found, False, bins, kernel) or 0.0 for bins in (TEN, 1))
    return Judged(ten, one, below_floor(trace, raw))


def run(seed: int, gates: bool = True) -> Judged:
    """The figures of the world of a seed; without gates: those of plain time slices."""
    trace = world(seed)
    play = functools.partial(run_program, columns=SECONDS, jobs=1)
    return judge(trace, play(trace if gates else without_gates(trace)), play(trace, "--fluid"))


def of_seeds(first: int, count: int, gates: bool = True) -> dict[int, Judged]:
    """The same of many."""
    seeds = range(first, first + count)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(functools.partial(run, gates=gates), seeds)
        return dict(zip(seeds, found, strict=True))


def figure(found: Mapping[int, Judged], field: str, suffix: str, target: float | None) -> Figure:
    """The worst world; the next ones stand beside it."""
    values = {seed: float(getattr(judged, field)) for seed, judged in found.items()}
    ranked = sorted(values, key=lambda seed: -values[seed])
    worst = ", ".join(f"{values[seed]:.2f} (seed {seed})" for seed in ranked[:3])
    note = f"(worst {worst}; median {statistics.median(values.values()):.2f})"
    return Figure(
        f"gain_{field}{suffix}",
        values[ranked[0]],
        "points",
        target,
        "<=",
        len(values),
        note,
        detail={str(seed): value for seed, value in values.items()},
        control=suffix == "_control",
    )


def figures(quick: bool) -> Iterator[Figure]:
    """Both sets, and plain time slices as a control."""
    count = FEW if quick else WORLDS
    tuning, judged = of_seeds(TUNING, count), of_seeds(JUDGED, count)
    for field, target in FIELDS.items():
        yield figure(judged, field, "", target)
        yield figure(tuning, field, "_tuning", None)
    plain = of_seeds(JUDGED, FEW, gates=False)
    for field, target in FIELDS.items():
        yield figure(plain, field, "_control", target)
