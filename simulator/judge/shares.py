"""Compares each tenant's part of the card with its share: pure functions of executed intervals.

Input is the simulated device's record (docs/specs/trace.md), as in `evaluate`. A figure is in
points: percent of the card that a tenant got, less its due percent. Times are nanoseconds. Two
rules (docs/specs/scheduling.md): under burst-share busy_i / sum of busy counts while all
tenants are backlogged; under fixed-share busy_i / wall time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.judge.evaluate import Span

Rule = Callable[[Sequence[int], int, Sequence[float]], list[float]]


class Service:
    """The executed time of one tenant as a function of time: exact, in O(log n) per question.

    Pieces that touch are joined, and pieces that overlap (streams of one tenant on one card never
    do in the trace, but a union costs nothing) are counted once.
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._before: list[int] = []
        for start, end in sorted((s.t_start, s.t_end) for s in spans):
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        if self.ends and start <= self.ends[-1]:
            self.ends[-1] = max(self.ends[-1], end)
            return
        done = self._before[-1] + self.ends[-1] - self.starts[-1] if self.ends else 0
        self.starts.append(start)
        self.ends.append(end)
        self._before.append(done)

    def until(self, t: int) -> int:
        """Nanoseconds executed before t."""
        at = bisect_right(self.starts, t) - 1
        if at < 0:
            return 0
        return self._before[at] + min(t, self.ends[at]) - self.starts[at]

    def within(self, start: int, end: int) -> int:
        """Nanoseconds executed inside [start, end)."""
        return self.until(end) - self.until(start)

    def edges(self, start: int, end: int) -> list[int]:
        """The times in [start, end] at which execution began or stopped."""
        return [
            t
            for times in (self.starts, self.ends)
            for t in times[bisect_left(times, start) : bisect_right(times, end)]
        ]


def services(spans: Iterable[Span], tenants: Mapping[int, Iterable[int]]) -> dict[int, Service]:
    """The service of each tenant, given its processes."""
    owner = {pid: tenant for tenant, pids in tenants.items() for pid in pids}
    sorted_out: dict[int, list[Span]] = {tenant: [] for tenant in tenants}
    for span in spans:
        if span.pid in owner:
            sorted_out[owner[span.pid]].append(span)
    return {tenant: Service(pieces) for tenant, pieces in sorted_out.items()}


def burst_rule(busy: Sequence[int], wall: int, shares: Sequence[float]) -> list[float]:
    """Points by which each tenant's part of the executed time is above (+) or below (-) its
    weight's part.

    In a window without execution each tenant is short of its whole part.
    """
    del wall
    executed, weight = sum(busy), sum(shares)
    return [
        100.0 * (b / executed if executed else 0.0) - 100.0 * s / weight
        for b, s in zip(busy, shares, strict=True)
    ]


def fixed_rule(busy: Sequence[int], wall: int, shares: Sequence[float]) -> list[float]:
    """Points by which each tenant's part of the wall time is above (+) or below (-) its share."""
    return [100.0 * b / wall - s for b, s in zip(busy, shares, strict=True)]


RULES: dict[str, Rule] = {
    "burst-share": burst_rule,
    "best-effort": burst_rule,
    "fixed-share": fixed_rule,
}


@dataclass(frozen=True)
class Worst:
    """The largest error of any tenant: its points, whose it was, and the window's start."""

    points: float
    tenant: int
    at: int


def errors(
    served: Mapping[int, Service], shares: Mapping[int, float], start: int, end: int, rule: Rule
) -> dict[int, float]:
    """Points of each tenant over [start, end)."""
    busy = [served[tenant].within(start, end) for tenant in shares]
    return dict(zip(shares, rule(busy, end - start, list(shares.values())), strict=True))


def worst(points: Mapping[int, float], at: int, sides: str = "both") -> Worst:
    """The tenant furthest from its due part; sides="above": only surpluses."""
    size = (lambda value: value) if sides == "above" else abs
    tenant = max(points, key=lambda t: size(points[t]))
    return Worst(size(points[tenant]), tenant, at)


def worst_window(
    served: Mapping[int, Service],
    shares: Mapping[int, float],
    span: tuple[int, int],
    width: int,
    rule: Rule,
    sides: str = "both",
) -> Worst:
    """The worst of all windows of this width inside the span: exact, not sampled.

    While a window moves, every tenant's executed time in it is linear until one of the window's two
    ends meets an edge of execution, and both rules are then monotone in it; so the extremes are at
    windows that begin or end at an edge. Raises ValueError when the span is shorter than one
    window.
    """
    start, end = span
    if end - start < width:
        raise ValueError(f"a span of {end - start} ns holds no window of {width} ns")
    begins = {start, end - width}
    for service in served.values():
        begins.update(service.edges(start, end - width))
        begins.update(t - width for t in service.edges(start + width, end))
    return max(
        (worst(errors(served, shares, t, t + width, rule), t, sides) for t in sorted(begins)),
        key=lambda found: found.points,
    )


@dataclass(frozen=True)
class Price:
    """What sharing cost the card over a stretch in which at least one tenant always had work."""

    switches_per_s: float
    lost_percent: float
    switch_percent: float

    @property
    def drain_percent(self) -> float:
        """What was lost beside the cost of changing contexts: drains, wake-ups, launches that came
        late.
        """
        return max(0.0, self.lost_percent - self.switch_percent)


def price(spans: Sequence[Span], start: int, end: int, switch_ns: int) -> Price:
    """Changes of process per second on one card, and its idle time, inside [start, end) of backlog.

    `spans` are those of one card in order of time, as the trace holds them.
    """
    inside = [s for s in spans if s.t_end > start and s.t_start < end]
    switches = sum(a.pid != b.pid for a, b in pairwise(inside))
    lost = (end - start) - Service(inside).within(start, end)
    wall = end - start
    return Price(switches * 1e9 / wall, 100 * lost / wall, 100 * switches * switch_ns / wall)
