"""Computes figures of the promises from a trace: pure functions of executed intervals and gate
events.

The intervals are the simulated device's record of what ran when (docs/specs/trace.md). The gate
events are the arbiter's record of when it stored a gate word. All times are nanoseconds of
CLOCK_MONOTONIC. Our own ledger is not read, so a wrong ledger cannot improve a figure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

CLOSED = 0x1
NS_PER_MS = 1_000_000


class Span(Protocol):
    """One executed piece of one command, as the trace holds it."""

    @property
    def t_start(self) -> int: ...
    @property
    def t_end(self) -> int: ...
    @property
    def t_submit(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def card(self) -> int: ...


class GateEvent(Protocol):
    """One change of one tenant's gate word."""

    @property
    def t_ns(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def flags(self) -> int: ...


@dataclass(frozen=True)
class Burst:
    """A stretch of online work: from the first launch call to the end of its last kernel (ns)."""

    call: int
    end: int


def select(spans: Iterable[Span], card: int, pids: Iterable[int]) -> list[Span]:
    """The spans of these processes on this card, in the order of their start."""
    wanted = set(pids)
    return sorted((s for s in spans if s.card == card and s.pid in wanted), key=lambda s: s.t_start)


def bursts(spans: Sequence[Span], gap_ns: int) -> list[Burst]:
    """Online work divided where it paused for gap_ns or more between an end and the next
    submission.
    """
    found: list[Burst] = []
    for span in spans:
        if found and span.t_submit - found[-1].end < gap_ns:
            found[-1] = Burst(found[-1].call, max(found[-1].end, span.t_end))
        else:
            found.append(Burst(span.t_submit, span.t_end))
    return found


def with_calls(found: Iterable[Burst], calls: Iterable[int], within_ns: int) -> list[Burst]:
    """The bursts with the time of the program's own first launch call in place of the driver's.

    The trace stamps a command when it reaches the driver, which is after the shim rang the
    doorbell: a gate that closed in between would seem to have closed before the launch. `calls` are
    the times that the program noted right before its launches; a burst without one at most
    within_ns earlier keeps the driver's time.
    """
    noted = sorted(calls)
    corrected = []
    for burst in found:
        at = bisect_right(noted, burst.call) - 1
        near = at >= 0 and burst.call - noted[at] <= within_ns
        corrected.append(Burst(noted[at], burst.end) if near else burst)
    return corrected


def work_ns(spans: Iterable[Span], start: int, end: int) -> int:
    """Execution time of the spans inside [start, end) in ns."""
    return sum(max(0, min(s.t_end, end) - max(s.t_start, start)) for s in spans)


def work_inside(spans: Iterable[Span], stretches: Sequence[tuple[int, int]]) -> int:
    """Execution time in ns inside stretches that are in order and do not overlap; neither do the
    spans of one card.
    """
    ordered = sorted(spans, key=lambda s: s.t_start)
    ends = [s.t_end for s in ordered]
    total = 0
    for low, high in stretches:
        for at in range(bisect_right(ends, low), len(ordered)):
            if ordered[at].t_start >= high:
                break
            total += min(ends[at], high) - max(ordered[at].t_start, low)
    return total


def card_free_us(online: Sequence[Burst], offline: Sequence[Span]) -> list[float]:
    """Per burst: µs from online's first launch call to the last progress of offline inside the
    burst.

    `offline` is of one card and in the order of time, so that its pieces do not overlap.
    """
    starts = [s.t_start for s in offline]
    figures = []
    for burst in online:
        at = bisect_left(starts, burst.end) - 1
        last = min(offline[at].t_end, burst.end) if at >= 0 else burst.call
        figures.append(max(0, last - burst.call) / 1000)
    return figures


def that_met_offline(
    online: Sequence[Burst], offline: Sequence[Span], gates: Sequence[GateEvent]
) -> list[Burst]:
    """The bursts before which offline had to leave: a gate was open at the call or later, or
    offline ran inside.

    A request while online still holds the card (sooner than idle release after the last one) finds
    it free; its 0 us would not show how fast offline leaves. `offline` as in card_free_us().
    """
    frees = card_free_us(online, offline)
    by_job = _by_job(gates)
    return [
        burst
        for burst, free in zip(online, frees, strict=True)
        if free > 0 or any(_closed_after(burst, events) is not None for events in by_job.values())
    ]


def _by_job(gates: Sequence[GateEvent]) -> dict[int, list[GateEvent]]:
    found: dict[int, list[GateEvent]] = {}
    for event in sorted(gates, key=lambda e: e.t_ns):
        found.setdefault(event.job_id, []).append(event)
    return found


def gate_close_us(online: Sequence[Burst], gates: Sequence[GateEvent]) -> list[float]:
    """us from the launch call until each offline gate stays closed, per burst that found one open.

    `gates` are those of all offline tenants of the card. A gate that opens again inside the burst
    counts until it closes. One still open at the burst's end counts in full, so that a missing
    arbiter cannot look fast.
    """
    by_job = _by_job(gates)
    found = (
        [_closed_after(burst, events) for events in by_job.values()] or [burst.end]
        for burst in online
    )
    latest = (
        (burst, max((t for t in times if t is not None), default=None))
        for burst, times in zip(online, found, strict=True)
    )
    return [(at - burst.call) / 1000 for burst, at in latest if at is not None]


def _closed_after(burst: Burst, events: Sequence[GateEvent]) -> int | None:
    """When this tenant's gate closed for the rest of the burst; None if it was always closed."""
    low = bisect_right(events, burst.call, key=lambda e: e.t_ns)
    high = bisect_left(events, burst.end, key=lambda e: e.t_ns)
    was_open = low == 0 or not events[low - 1].flags & CLOSED
    inside = events[low:high]
    if not was_open and all(e.flags & CLOSED for e in inside):
        return None
    if not inside or not inside[-1].flags & CLOSED:
        return burst.end
    last_open = max((i for i, e in enumerate(inside) if not e.flags & CLOSED), default=-1)
    return inside[last_open + 1].t_ns


def handback_ms(
    online: Sequence[Burst], gates: Sequence[GateEvent], until: int, release_ns: int
) -> list[float]:
    """ms from a burst's end to the opening of an offline gate, if a pause of release_ns follows.

    If no gate opened before the next burst (`until` after the last one), all of that time counts,
    so that a card never handed back cannot look fast. After a shorter pause nothing was due.
    """
    openings = sorted(e.t_ns for e in gates if not e.flags & CLOSED)
    nexts = [*(burst.call for burst in online[1:]), until]
    figures = []
    for burst, following in zip(online, nexts, strict=False):
        if following - burst.end <= release_ns:
            continue
        at = bisect_right(openings, burst.end)
        back = min(openings[at], following) if at < len(openings) else following
        figures.append((back - burst.end) / NS_PER_MS)
    return figures


def free_stretches(
    online: Sequence[Burst], start: int, end: int, release_ns: int
) -> list[tuple[int, int]]:
    """The parts of [start, end) that policy allows offline: from release_ns after each burst's end
    to the next call.

    What was before `start` is unknown: offline is allowed the time up to the first call whole.
    """
    edges = [start - release_ns, *(t for b in online for t in (b.call, b.end)), end]
    gaps = zip(edges[0::2], edges[1::2], strict=True)
    found = ((max(opened + release_ns, start), min(closed, end)) for opened, closed in gaps)
    return [(low, high) for low, high in found if low < high]


def allowed_ns(online: Sequence[Burst], start: int, end: int, release_ns: int) -> int:
    """What the policy allows offline inside [start, end): Σ max(0, gap - release_ns) over online's
    gaps.
    """
    return sum(high - low for low, high in free_stretches(online, start, end, release_ns))


def harvest_ratio(
    online: Sequence[Burst], offline: Sequence[Span], start: int, end: int, release_ns: int
) -> float:
    """Offline work done as a part of the time that the policy allowed inside [start, end) (0 when
    it allowed nothing).

    Only what was done within that time counts: an overrun into online's work or a card given back
    early is no gain.
    """
    allowed = free_stretches(online, start, end, release_ns)
    total = sum(high - low for low, high in allowed)
    return work_inside(offline, allowed) / total if total else 0.0


def harvest_by_gap(
    online: Sequence[Burst], offline: Sequence[Span], release_ns: int
) -> list[float]:
    """The same for each gap between two online bursts; gaps that allow nothing are left out."""
    ratios = []
    for before, after in pairwise(online):
        allowed = after.call - before.end - release_ns
        if allowed > 0:
            ratios.append(work_ns(offline, before.end + release_ns, after.call) / allowed)
    return ratios


def rate_series(spans: Sequence[Span], start: int, end: int, bucket_ns: int) -> list[float]:
    """Fraction of each bucket of [start, end) in which the spans executed (0..1)."""
    count = max(0, (end - start + bucket_ns - 1) // bucket_ns)
    buckets = [0] * count
    for span in spans:
        low, high = max(span.t_start, start), min(span.t_end, end)
        while low < high:
            index = (low - start) // bucket_ns
            edge = min(high, start + (index + 1) * bucket_ns)
            buckets[index] += edge - low
            low = edge
    return [b / bucket_ns for b in buckets]


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile; values must not be empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError(
            "a percentile of nothing was asked for: the measurement produced no samples"
        )
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
