"""What a look gained over the one before, and the rows that say so: pure, for enforcer/ledger.py to write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from enforcer.ledger_schema import COUNTERS, FINE_S, OPTIONAL, CardSample, Sample, fit, fitted
from enforcer.ledger_sql import ADD, ADD_LATENCY, ADD_SERIES, KEEP

_COUNTERS, _OPTIONAL = attrgetter(*COUNTERS), attrgetter(*OPTIONAL)


@dataclass(frozen=True)
class Baseline:
    """What a tenant had said last: the row of `baseline`."""

    boot_id: str
    tenant_since: int
    counters: tuple[int, ...]
    optional: tuple[int | None, ...]
    close_hist: tuple[int, ...] | None
    hist_text: str | None  # the same as JSON
    sampled_at: int | None

    def same(self, sample: Sample) -> bool:
        """Whether the sample goes on counting where this one stood."""
        return self.boot_id == str(sample.boot_id) and self.tenant_since == fit(sample.tenant_since)


@dataclass
class HeldCard:
    """What a card said last in its bucket, and how many looks that said so are not written yet."""

    sample: CardSample
    at: int
    more: int


@dataclass
class Writes:
    """What one look adds, by statement: many rows to a statement cost a fraction of as many statements."""

    usage: list[tuple[Any, ...]] = field(default_factory=list)
    series: list[tuple[Any, ...]] = field(default_factory=list)
    latency: list[tuple[int, int, int]] = field(default_factory=list)
    baseline: list[tuple[Any, ...]] = field(default_factory=list)

    def all(self) -> Iterator[tuple[str, Sequence[tuple[Any, ...]]]]:
        """Each statement that has rows, with them."""
        for statement, rows in (
            (ADD, self.usage), (ADD_LATENCY, self.latency), (ADD_SERIES, self.series), (KEEP, self.baseline)
        ):  # fmt: skip
            if rows:
                yield statement, rows


def counter_deltas(sample: Sample, before: Sequence[int | str] | None) -> list[int]:
    """What each counter gained since `before` (boot_id, tenant_since, counters), None if there was nothing.

    Another start of the arbiter, another tenant, or a counter that ran backwards counts from zero again.
    """
    now = fitted(_COUNTERS(sample))
    if before is None or (str(before[0]), before[1]) != (str(sample.boot_id), fit(sample.tenant_since)):
        return list(now)
    return list(gains(now, tuple(int(value) for value in before[2:])))


def baseline_of(sample: Sample, before: Baseline | None, now_ns: int) -> Baseline:
    """What the tenant says now, as it is kept."""
    hist = None if sample.close_hist is None else fitted(sample.close_hist)
    if before is not None and before.close_hist == hist:
        hist, text = before.close_hist, before.hist_text
    else:
        text = None if hist is None else json.dumps(hist)
    return Baseline(
        str(sample.boot_id),
        fit(sample.tenant_since),
        fitted(_COUNTERS(sample)),
        tuple(None if value is None else fit(value) for value in _OPTIONAL(sample)),
        hist,
        text,
        now_ns,
    )


def gains(now: tuple[int, ...], before: tuple[int, ...] | None) -> tuple[int, ...]:
    if before is None:
        return now
    return tuple(_gained(new, old) for new, old in zip(now, before, strict=True))


def optional_gains(now: tuple[int | None, ...], before: tuple[int | None, ...]) -> Iterator[int | None]:
    """What the optional counters gained; None where the arbiter does not tell."""
    for place, value in enumerate(now):
        old = before[place] if place < len(before) else None
        yield None if value is None else _gained(value, old or 0)


def closings(row: int, now: tuple[int, ...], before: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Gates that closed since then, by bucket."""
    for bucket, count in enumerate(now):
        old = before[bucket] if bucket < len(before) else 0
        if gained := _gained(count, old):
            yield row, bucket, gained


def card_rows(node: str, held: HeldCard | None) -> list[tuple[Any, ...]]:
    """What of it is not written yet, as a row or none; it counts as written from then on."""
    if held is None or not held.more:
        return []
    card, count = held.sample, held.more
    held.more = 0
    util = None if card.util_percent is None else card.util_percent * count
    memory = None if card.mem_used is None else fit(card.mem_used)
    looks = 0 if util is None else count
    return [(FINE_S, held.at, card.uuid, node, card.card_index, looks, util, memory)]


def _gained(new: int, old: int) -> int:
    return new - old if new >= old else new
