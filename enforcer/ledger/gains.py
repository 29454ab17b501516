"""Computes gains between two samples, and the rows for them. Pure;
enforcer/ledger/store.py writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from enforcer.ledger.schema import COUNTERS, FINE_S, OPTIONAL, CardSample, Sample, fit, fitted
from enforcer.ledger.statements import ADD, ADD_LATENCY, ADD_SERIES, KEEP

_COUNTERS, _OPTIONAL = attrgetter(*COUNTERS), attrgetter(*OPTIONAL)


class Baseline(NamedTuple):
    """The last counters of a tenant: a row of `baseline`. A tuple, as each poll makes many."""

    boot_id: str
    tenant_since: int
    counters: tuple[int, ...]
    optional: tuple[int | None, ...]
    close_hist: tuple[int, ...] | None
    hist_text: str | None  # `close_hist` as JSON
    sampled_at: int | None

    def goes_on(self, before: Baseline) -> bool:
        """Whether the counters continue those of `before`."""
        return self.boot_id == before.boot_id and self.tenant_since == before.tenant_since


@dataclass
class HeldCard:
    """A card's last values in its bucket, and the number of samples with them not yet written."""

    sample: CardSample
    at: int
    more: int


@dataclass
class Writes:
    """The rows of one sample, by statement: many rows per statement cost far less."""

    usage: list[tuple[Any, ...]] = field(default_factory=list)
    series: list[tuple[Any, ...]] = field(default_factory=list)
    latency: list[tuple[int, int, int]] = field(default_factory=list)
    baseline: list[tuple[Any, ...]] = field(default_factory=list)

    def all(self) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
        """Each statement with rows."""
        for statement, rows in (
            (ADD, self.usage),
            (ADD_LATENCY, self.latency),
            (ADD_SERIES, self.series),
            (KEEP, self.baseline),
        ):
            if rows:
                yield statement, rows


def counter_deltas(sample: Sample, before: Sequence[int | str] | None) -> list[int]:
    """Gains of counters since `before` (boot_id, tenant_since, counters), None for no sample
    before.

    After another start of the arbiter, for another tenant, or a counter that fell, it counts from
    zero.
    """
    now = fitted(_COUNTERS(sample))
    if before is None or (str(before[0]), before[1]) != (
        str(sample.boot_id),
        fit(sample.tenant_since),
    ):
        return list(now)
    return list(gains(now, tuple(int(value) for value in before[2:])))


def baseline_of(sample: Sample, before: Baseline | None, now_ns: int) -> Baseline:
    """The tenant's counters as they are kept."""
    if before is not None and before.close_hist == sample.close_hist:
        hist, text = before.close_hist, before.hist_text
    else:
        hist = None if sample.close_hist is None else fitted(sample.close_hist)
        text = None if hist is None else str(list(hist))  # a list of integers prints as JSON
    return Baseline(
        str(sample.boot_id),
        fit(sample.tenant_since),
        fitted(_COUNTERS(sample)),
        tuple([None if value is None else fit(value) for value in _OPTIONAL(sample)]),
        hist,
        text,
        now_ns,
    )


def gains(now: tuple[int, ...], before: tuple[int, ...] | None) -> tuple[int, ...]:
    """Gains of counters; one that fell counts from zero."""
    if before is None:
        return now
    return tuple([new - old if new >= old else new for new, old in zip(now, before, strict=True)])


def recently(recent: deque[tuple[int, int]], gained: int, now_ns: int) -> int:
    """Busy time of the last FINE_S seconds, after this gain is put to those of `recent`. What came
    before a restart of qgpud is not in it: then some seconds of the busiest may count as idle.
    """
    recent.append((now_ns, gained))
    while recent[0][0] <= now_ns - FINE_S * 10**9:
        recent.popleft()
    return min(sum(gain for _, gain in recent), FINE_S * 10**9)


def optional_gains(
    now: tuple[int | None, ...], before: tuple[int | None, ...] | None
) -> list[int | None]:
    """Gains of optional counters; None if the arbiter does not report them."""
    pairs = zip(now, before or (0,) * len(now), strict=True)
    return [None if new is None else _gained(new, old or 0) for new, old in pairs]


def closings(row: int, now: tuple[int, ...], before: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Closed gates since then, by bucket."""
    pairs = enumerate(zip_longest(now, before[: len(now)], fillvalue=0))
    return [(row, bucket, _gained(new, old)) for bucket, (new, old) in pairs if new and new != old]


def card_rows(node: str, held: HeldCard | None) -> list[tuple[Any, ...]]:
    """The unwritten samples of a card as a row or none; they count as written then."""
    if held is None or not held.more:
        return []
    card, count = held.sample, held.more
    held.more = 0
    util = None if card.util_percent is None else card.util_percent * count
    memory = None if card.mem_used is None else fit(card.mem_used)
    samples = 0 if util is None else count
    return [(FINE_S, held.at, card.uuid, node, card.card_index, samples, util, memory)]


def _gained(new: int, old: int) -> int:
    return new - old if new >= old else new
