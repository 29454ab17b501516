"""The promises over a sweep of what the simulator assumes: none may hang on one guess.

Every corner of the hardware's time slice, the cost of a change of context and the cost of a launch,
and besides: other kernels, a card that stands still for 50 ms now and then, launches that stay in
the driver for 50 ms. The queue is 1024 commands deep everywhere. A round is two runs of each point
(bench/sweep/runs.py). There are three rounds; at each point the median counts, but of what is
promised never to happen the worst. Each promise is judged at each point, the worst is reported with
its name. Eight seconds have eight requests that find offline on the card: where online's p99 comes
near its target, it is measured again in runs as long as those of `harvest`. Where harvest does, it
is measured again on a card that has the processors to itself: 16 tenants with short kernels on
another card take them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from bench.harness.figures import NEAR, Figure
from bench.promises.harvest import SELDOM
from bench.promises.shares import TARGET, TARGET_1S
from bench.sweep.points import CORNERS, P99_RATIO, POINTS, Point
from bench.sweep.runs import (
    FREE_US,
    ONE_IN_20,
    Further,
    Result,
    ShareErrors,
    measure,
    measure_further,
    measure_harvest,
    measure_ratio,
)
from simulator.judge import evaluate as ev

GATE_US, BACK_MS, HARVEST = 200, 102, 0.97
ROUNDS = 3
NEIGHBOUR = 0.97  # of the time that a tenant leaves unused, as in `giveaway`
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """The result of a point."""

    first: Result
    second: Further

    @property
    def burst(self) -> dict[str, ShareErrors]:
        """Shares under burst-share."""
        return {"30/70": self.first.share, "25/75 mixed": self.second.mixed}

    @property
    def sharing(self) -> dict[str, ShareErrors]:
        """All shares."""
        return self.burst | {"30/70 fixed": self.second.fixed}


Seen = Mapping[Point, Found]


@dataclass(frozen=True)
class Promise:
    """One figure at each point, of one round or of all. `lowest`: small values are the bad ones."""

    name: str
    values: Mapping[str, float]
    unit: str
    target: float | None
    runs: int
    lowest: bool = False
    never: bool = False  # promised of every run: no median makes good what one of them did
    samples: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # of which the values are p99
    left_out: int = 0  # samples not caused by the arbiter (README)

    def worst(self, rounds: int) -> Figure:
        """The worst point, and how many are short."""
        values, target = self.values, self.target
        at = (min if self.lowest else max)(values, key=lambda point: values[point])
        note = f"(at {at}; median of points {statistics.median(values.values()):.3g}"
        if target is not None:
            short = sum(
                value < target if self.lowest else value > target for value in values.values()
            )
            note += f"; {short} of {len(values)} points short"
        if rounds > 1:
            note += f"; {'worst' if self.never else 'medians'} of {rounds} rounds"
        if self.samples:
            note += (
                ", worst p99 of all of a point"
                f" {max(ev.percentile(s, 99) for s in self.samples.values()):.4g}"
            )
        if self.left_out:
            note += f"; {self.left_out} that met a card's stall left out"
        sense: Literal["<=", ">="] = ">=" if self.lowest else "<="
        return Figure(
            self.name, values[at], self.unit, target, sense, self.runs, note + ")", detail=values
        )


def of_rounds(rounds: Sequence[Promise]) -> Promise:
    """The same promise in several rounds as one."""
    first = rounds[0]
    middle = max if first.never else statistics.median
    values = {point: middle([each.values[point] for each in rounds]) for point in first.values}
    return replace(
        first,
        values=values,
        runs=sum(each.runs for each in rounds),
        samples={
            point: [s for each in rounds for s in each.samples[point]] for point in first.samples
        },
        left_out=sum(each.left_out for each in rounds),
    )


def p99(
    name: str, samples: Mapping[str, Sequence[float]], unit: str, target: float, left_out: int = 0
) -> Promise:
    """The p99 of the samples of each point."""
    values = {point: ev.percentile(found, 99) for point, found in samples.items()}
    runs = sum(map(len, samples.values()))
    return Promise(name, values, unit, target, runs, samples=samples, left_out=left_out)


def preemption(found: Seen) -> Iterator[Promise]:
    """Gate, card and hand-back, with 16 tenants; harvest with one."""
    points = len(found)
    closes = {point.name: seen.first.close_us for point, seen in found.items()}
    yield p99("sweep_gate_close_us_p99", closes, "us", GATE_US)
    frees = {point.name: seen.first.free_us for point, seen in found.items()}
    calls = {point.name for point in found if point.stalls == "call"}
    beyond = {point.name for point in found if point.floor_us > FREE_US} - calls
    spoilt = sum(seen.first.spoilt for seen in found.values())
    yield p99("sweep_card_free_us_p99", _without(frees, beyond | calls), "us", FREE_US, spoilt)
    if beyond:
        yield p99("sweep_card_free_beyond_reach_us_p99", _only(frees, beyond), "us", FREE_US)
    if calls:
        yield p99("sweep_call_stalls_card_free_us_p99", _only(frees, calls), "us", FREE_US)
    backs = {point.name: seen.first.back_ms for point, seen in found.items()}
    yield p99("sweep_handback_ms_p99", backs, "ms", BACK_MS)
    harvests = {point.name: seen.first.harvest for point, seen in found.items()}
    yield Promise("sweep_harvest_ratio", harvests, "", HARVEST, points, lowest=True)
    many = {point.name: seen.first.harvest_many for point, seen in found.items()}
    yield Promise("sweep_harvest_16_tenants", many, "", None, points, lowest=True)


def latency(found: Seen) -> Iterator[Promise]:
    """online's p99, by the pattern in which one request of 20 finds offline; where that is beyond
    reach, by another.
    """
    reached = {p.name: seen.second.ratio for p, seen in found.items() if not p.p99_beyond}
    others = {
        p.name: s.second.others
        for p, s in found.items()
        if p.p99_beyond and s.second.others is not None
    }
    left_out = sum(s.second.spoilt for s in found.values())
    yield Promise(
        "sweep_online_p99_ratio", reached | others, "", P99_RATIO, len(found), left_out=left_out
    )
    if far := {p.name: seen.second.ratio for p, seen in found.items() if p.p99_beyond}:
        yield Promise("sweep_online_p99_beyond_reach_ratio", far, "", P99_RATIO, len(far))


def shares(found: Seen) -> Iterator[Promise]:
    """Both mixes under burst-share and one under fixed-share, where no calls stall."""
    steady = {point: seen for point, seen in found.items() if point.stalls != "call"}
    even = {point: seen for point, seen in steady.items() if not point.stalls}
    total = _each({point: seen.burst for point, seen in steady.items()}, "total")
    yield Promise("sweep_share_error_points", total, "points", TARGET, len(total))
    seconds = _each({point: seen.burst for point, seen in even.items()}, "worst_1s")
    yield Promise("sweep_share_error_points_1s", seconds, "points", TARGET_1S, len(seconds))
    fixed = {point: seen.second.fixed for point, seen in steady.items()}
    errors = {point.name: seen.total for point, seen in fixed.items()}
    yield Promise("sweep_share_error_points_fixed", errors, "points", TARGET, len(errors))
    within = {point.name: seen.worst_1s for point, seen in fixed.items() if not point.stalls}
    yield Promise("sweep_share_error_points_1s_fixed", within, "points", TARGET_1S, len(within))
    spent = {point.name: seen.changes * point.switch_us / 10_000 for point, seen in fixed.items()}
    yield Promise("sweep_fixed_switch_percent", spent, "%", None, len(spent))
    yield from bounds({point.name: seen.second.fixed for point, seen in found.items()})
    if cards := {point: seen.sharing for point, seen in steady.items() if point.stalls == "card"}:
        executed = _each(cards, "executed")
        yield Promise("sweep_card_stalls_executed_error", executed, "points", None, len(executed))


def bounds(fixed: Mapping[str, ShareErrors]) -> Iterator[Promise]:
    """What fixed-share promises whatever happens: never more than that."""
    above = {name: seen.above for name, seen in fixed.items()}
    yield Promise("sweep_fixed_share_above_points", above, "points", TARGET, len(above), never=True)
    within = {name: seen.above_1s for name, seen in fixed.items()}
    yield Promise(
        "sweep_fixed_share_above_1s_and_a_kernel", within, "points", 0.0, len(within), never=True
    )


def neighbours(found: Seen) -> Iterator[Promise]:
    """A launch call of 50 ms is its own tenant's time: what the other one of the card has."""
    calls = {point: seen for point, seen in found.items() if point.stalls == "call"}
    if not calls:
        return
    lost = _each({point: seen.sharing for point, seen in calls.items()}, "lost")
    yield Promise("sweep_call_stalls_neighbour_lost_points", lost, "points", TARGET, len(lost))
    used = _each({point: seen.burst for point, seen in calls.items()}, "used")
    yield Promise("sweep_call_stalls_neighbour_ratio", used, "", NEIGHBOUR, len(used), lowest=True)


def _each(found: Mapping[Point, Mapping[str, ShareErrors]], field: str) -> dict[str, float]:
    """One field of each mix of each point, by both names."""
    return {
        f"{point.name}, {mix}": getattr(errors, field)
        for point, mixes in found.items()
        for mix, errors in mixes.items()
    }


def _without(values: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}


def _only(values: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def judged(rounds: Sequence[Seen]) -> Iterator[Figure]:
    """Each promise at its worst point, and reported values beside it
    (docs/measurements/README.md).
    """
    parts = (preemption, latency, shares, neighbours)
    each = [[promise for part in parts for promise in part(found)] for found in rounds]
    for same in zip(*each, strict=True):
        yield of_rounds(same).worst(len(rounds))


def near_p99(rounds: Sequence[Seen]) -> list[Point]:
    """Points where online's p99 is near its target, on either side: a longer run may differ."""
    return [
        point
        for point in rounds[0]
        if not point.p99_beyond
        and statistics.median(found[point].second.ratio for found in rounds) - 1
        > NEAR * (P99_RATIO - 1)
    ]


def near_harvest(rounds: Sequence[Seen]) -> list[Point]:
    """Points where harvest is near its target: three cards on two processors may mislead in one
    run.
    """
    return [
        point
        for point in rounds[0]
        if 1 - statistics.median(found[point].first.harvest for found in rounds)
        > NEAR * (1 - HARVEST)
    ]


def settled(
    rounds: Sequence[Seen], ratio: Callable[[Point], float], harvest: Callable[[Point], float]
) -> list[Seen]:
    """The rounds, with separate runs at those points, one per point and round."""
    late, little = near_p99(rounds), near_harvest(rounds)

    def again(point: Point, seen: Found) -> Found:
        if point in late:
            seen = replace(seen, second=replace(seen.second, ratio=ratio(point)))
        return (
            replace(seen, first=replace(seen.first, harvest=harvest(point)))
            if point in little
            else seen
        )

    return [{point: again(point, seen) for point, seen in found.items()} for found in rounds]


def figures(quick: bool) -> Iterator[Figure]:
    """Every promise over all points."""
    points, count, rounds = ((CORNERS[0], CORNERS[-1]), 8, 1) if quick else (POINTS, 21, ROUNDS)
    found: list[Seen] = [
        {point: Found(measure(point, count), measure_further(point, count)) for point in points}
        for _ in range(rounds)
    ]
    if not quick:
        found = settled(
            found,
            lambda point: measure_ratio(point, SELDOM[ONE_IN_20]),
            lambda point: measure_harvest(point, count),
        )
    yield from judged(found)
