"""The gain of equal offline tenants in the engine of `qgpu simulate`.

Each tenant launches a kernel, waits for it, is on the CPU for a pause, and launches the next one.
*Card use*: the part of the time in which any of them is on the card. *Gain*: the sum over the
tenants of their speed together over their speed alone; 1 is what taking turns gives. Two simple
ways to share are the yardstick, and the product shall have 0.95 of the better one in each row:

* *plain time slices*: no gates; the card's own slices. Played anew in each run.
* *exclusive quanta*: one gate is open at a time. The arbiter's decision was that at RECORDED_AT,
  passing a quantum on after 0.2 ms of pause included. It will not stay so, hence its card use is a
  table of that commit. A table is stale when the engine's model changes: so the use of plain
  slices, in which there is no decision, was recorded with it and must still be met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.harness.figures import Figure
from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import run_program

SECONDS, SEED = 60, 1
COUNTS = (2, 4)
POLICIES = ("burst-share", "best-effort")
TARGET = 0.95  # of the better of both simple ways
FULL_ROW, FULL_USE = "1ms/1ms", 0.85  # two tenants
APART = 2.0  # points between the parts of equal tenants
STALE = 0.005  # of the card, between the recorded use of plain slices and this run's
RECORDED_AT = "2026-11-29, 3533b991"


@dataclass(frozen=True)
class Uses:
    """Card use by the two simple ways."""

    exclusive: float
    plain: float

    @property
    def better(self) -> float:
        return max(self.exclusive, self.plain)


# kernel/pause: card use of two and of four tenants
RECORDED: Mapping[str, Sequence[Uses]] = {
    "1ms/1ms": (Uses(0.6481, 0.8599), Uses(0.6078, 0.9091)),
    "500us/500us": (Uses(0.5277, 0.8083), Uses(0.5338, 0.8333)),
    "200us/200us": (Uses(0.4993, 0.6667), Uses(0.4971, 0.6667)),
    "1ms/500us": (Uses(0.7144, 0.9091), Uses(0.7269, 0.9091)),
    "100us/400us": (Uses(0.2032, 0.3244), Uses(0.2086, 0.5000)),
    "5ms/5ms": (Uses(0.7981, 0.7978), Uses(0.9442, 0.9088)),
    "20us/20us": (Uses(0.4964, 0.1667), Uses(0.4962, 0.1667)),
}
PLAIN_FAILS, EXCLUSIVE_FAILS = "20us/20us", "1ms/1ms"  # the rows of the controls


@dataclass(frozen=True)
class Played:
    """A run: the part of the card that each tenant used."""

    parts: Sequence[float]

    @property
    def use(self) -> float:
        return sum(self.parts)

    @property
    def apart(self) -> float:
        """The largest difference of two parts, in points."""
        return 100 * (max(self.parts) - min(self.parts))

    def gain(self, alone: float) -> float:
        """`alone`: the part of the card that one tenant has alone."""
        return sum(part / alone for part in self.parts)


@dataclass(frozen=True)
class Outcome:
    """A row with so many tenants."""

    row: str
    count: int
    alone: float
    by_policy: Mapping[str, Played]
    plain: Played

    @property
    def recorded(self) -> Uses:
        return RECORDED[self.row][COUNTS.index(self.count)]

    @property
    def simple(self) -> Uses:
        """What the product is compared with."""
        return Uses(self.recorded.exclusive, self.plain.use)

    @property
    def worst(self) -> Played:
        """The run of the policy with less card use."""
        return min(self.by_policy.values(), key=lambda played: played.use)

    @property
    def ratio(self) -> float:
        return self.worst.use / self.simple.better

    @property
    def name(self) -> str:
        return f"{self.row.replace('/', '_').replace('.', '')}_{self.count}"


def play(row: str, count: int, policy: str = POLICIES[0], isolation: str = "governed") -> Played:
    """So many tenants of a row through the engine."""
    kernel, pause = row.split("/")
    tenant: dict[str, Any] = {
        "name": "t",
        "count": count,
        "class": "offline",
        "share": 100 // max(COUNTS),
        "kernel": kernel,
        "pause": pause,
        "isolation": isolation,
    }
    cards = [{"policy": {"offline": policy}}]
    body = {"duration": f"{SECONDS}s", "seed": SEED, "cards": cards, "tenants": [tenant]}
    raw = run_program(Trace.model_validate(body))
    return Played([t["busy_ns"] / raw["duration_ns"] for t in raw["tenants"]])


def outcomes() -> Iterator[Outcome]:
    """All rows, with two and with four tenants."""
    for row in RECORDED:
        alone = play(row, 1).use
        for count in COUNTS:
            runs = {policy: play(row, count, policy) for policy in POLICIES}
            yield Outcome(row, count, alone, runs, play(row, count, isolation="none"))


def of_row(o: Outcome) -> Figure:
    """The product over the better simple way."""
    simple, gain = o.simple, o.worst.gain(o.alone)
    detail = {
        "use": o.worst.use,
        "gain": gain,
        "alone": o.alone,
        "plain": simple.plain,
        "exclusive": simple.exclusive,
        "apart_points": max(played.apart for played in o.by_policy.values()),
    }
    note = (
        f"(card use {o.worst.use:.3f}, gain {gain:.2f}; one alone {o.alone:.3f}, plain slices"
        f" {simple.plain:.3f}, exclusive quanta {simple.exclusive:.3f})"
    )
    return Figure(f"gain_{o.name}", o.ratio, "", TARGET, ">=", len(POLICIES), note, detail=detail)


def controls(found: Sequence[Outcome]) -> Iterator[Figure]:
    """Each simple way is short somewhere."""
    two = {o.row: o.simple for o in found if o.count == 2}
    plain, exclusive = two[PLAIN_FAILS], two[EXCLUSIVE_FAILS]
    for name, row, value in (
        ("plain", PLAIN_FAILS, plain.plain / plain.better),
        ("exclusive", EXCLUSIVE_FAILS, exclusive.exclusive / exclusive.better),
    ):
        note = f"(two of {row})"
        yield Figure(f"gain_{name}_control", value, "", TARGET, ">=", 1, note, control=True)


def judged(found: Sequence[Outcome]) -> Iterator[Figure]:
    """The figures of the engine."""
    yield from map(of_row, found)
    full = next(o for o in found if (o.row, o.count) == (FULL_ROW, 2))
    yield Figure("gain_use_1ms", full.worst.use, "", FULL_USE, ">=", 1, f"(two of {FULL_ROW})")
    apart = {o.name: max(p.apart for p in o.by_policy.values()) for o in found}
    far = max(apart, key=lambda name: apart[name])
    note = f"(equal tenants' parts; worst at {far}, mean {fmean(apart.values()):.2f})"
    yield Figure("gain_apart", apart[far], "points", APART, "<=", len(apart), note, detail=apart)
    yield from controls(found)
    stale = max(abs(o.plain.use - o.recorded.plain) for o in found)
    note = f"(plain slices' use less that recorded {RECORDED_AT}; else record exclusive anew)"
    yield Figure("gain_model", stale, "", STALE, "<=", len(found), note, proof=True)


def figures() -> Iterator[Figure]:
    """All rows."""
    yield from judged(list(outcomes()))
