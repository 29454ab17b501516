"""Keeps a ledger small: coarse series after a day, none after the retention, and a bound on its
size.

Each call does a little and commits, so that no Prolog waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from enforcer.ledger.schema import COARSE_S, FINE_KEPT_S, FINE_S
from enforcer.ledger.store import Ledger

ROWS_AT_ONCE = 100  # rows per step, so that a step takes milliseconds
SLOTS_AT_ONCE = 4  # coarse buckets per step, for the same reason

_MERGE_SERIES = """
INSERT INTO series (usage_id, step, at, samples, busy_ns, closed_preempted_ns, closed_share_ns,
    launches, mem_used)
SELECT usage_id, :coarse, :slot, sum(samples), sum(busy_ns), sum(closed_preempted_ns),
       sum(closed_share_ns), sum(launches), max(mem_used)
FROM series WHERE step = :fine AND at >= :slot AND at < :slot + :coarse GROUP BY usage_id
ON CONFLICT DO UPDATE SET samples = samples + excluded.samples,
    busy_ns = busy_ns + excluded.busy_ns,
    closed_preempted_ns = closed_preempted_ns + excluded.closed_preempted_ns,
    closed_share_ns = closed_share_ns + excluded.closed_share_ns,
    launches = launches + excluded.launches,
    mem_used = max(coalesce(mem_used, excluded.mem_used), coalesce(excluded.mem_used, mem_used))
"""
_MERGE_CARDS = """
INSERT INTO card_series (step, at, uuid, node, card_index, samples, util_percent, mem_used)
SELECT :coarse, :slot, uuid, node, max(card_index), sum(samples), sum(util_percent), max(mem_used)
FROM card_series WHERE step = :fine AND at >= :slot AND at < :slot + :coarse GROUP BY uuid
ON CONFLICT DO UPDATE SET samples = samples + excluded.samples,
    util_percent =
        coalesce(util_percent + excluded.util_percent, util_percent, excluded.util_percent),
    mem_used = max(coalesce(mem_used, excluded.mem_used), coalesce(excluded.mem_used, mem_used))
"""


@dataclass(frozen=True)
class Limits:
    """Retention of an ended grant, and bytes of pages that may be in use."""

    retention_s: float
    max_bytes: int


def used_bytes(ledger: Ledger) -> int:
    """Bytes of pages in use; the file reuses freed pages, so its size follows."""
    page, count, free = (
        int(ledger.db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_size", "page_count", "freelist_count")
    )
    return page * (count - free)


def prune(ledger: Ledger, limits: Limits, now_ns: int) -> bool:
    """One small step of housekeeping; True when there is more to do."""
    now_s = now_ns // 10**9
    more = _coarsen(ledger, now_s - FINE_KEPT_S)
    more = _forget_before(ledger, now_ns - int(limits.retention_s * 10**9)) or more
    if used_bytes(ledger) > limits.max_bytes:
        more = _drop_oldest(ledger) or more
    return more


def _coarsen(ledger: Ledger, before_s: int) -> bool:
    """Merge whole slots of fine buckets older than that."""
    for _ in range(SLOTS_AT_ONCE):
        oldest = ledger.db.execute(
            "SELECT min(at) FROM (SELECT min(at) AS at FROM series WHERE step = :fine"
            " UNION ALL SELECT min(at) FROM card_series WHERE step = :fine)",
            {"fine": FINE_S},
        ).fetchone()[0]
        if oldest is None or oldest // COARSE_S * COARSE_S + COARSE_S > before_s:
            return False
        values = {"fine": FINE_S, "coarse": COARSE_S, "slot": oldest // COARSE_S * COARSE_S}
        with ledger.transaction():
            for table, merge in (("series", _MERGE_SERIES), ("card_series", _MERGE_CARDS)):
                ledger.db.execute(merge, values)
                ledger.db.execute(
                    f"DELETE FROM {table} WHERE step = :fine AND at >= :slot AND at < :slot +"
                    " :coarse",
                    values,
                )
    return True


def _forget_before(ledger: Ledger, before_ns: int) -> bool:
    before_s = before_ns // 10**9
    with ledger.transaction():
        rows = ledger.db.execute(
            "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE ended_at < ? ORDER BY"
            " ended_at LIMIT ?)",
            (before_ns, ROWS_AT_ONCE),
        ).rowcount
        ledger.db.execute("DELETE FROM card_series WHERE step = ? AND at < ?", (COARSE_S, before_s))
        # A grant older than the retention keeps its sums, not its old buckets.
        ledger.db.execute("DELETE FROM series WHERE step = ? AND at < ?", (COARSE_S, before_s))
    return rows == ROWS_AT_ONCE


def _drop_oldest(ledger: Ledger) -> bool:
    """The file is too large: drop the oldest grants of the user with most despite the retention,
    or the oldest tenth of series. So a user with a million short jobs drops his own alone.
    """
    with ledger.transaction():
        rows = ledger.db.execute(
            "DELETE FROM usage WHERE id IN (SELECT id FROM usage WHERE ended_at IS NOT NULL AND"
            " uid = (SELECT uid FROM usage WHERE ended_at IS NOT NULL GROUP BY uid"
            " ORDER BY count(*) DESC LIMIT 1) ORDER BY ended_at LIMIT ?)",
            (ROWS_AT_ONCE,),
        ).rowcount
        for step in (COARSE_S, FINE_S):
            for table in ("series", "card_series"):
                low, high = ledger.db.execute(
                    f"SELECT min(at), max(at) FROM {table} WHERE step = ?", (step,)
                ).fetchone()
                if rows == 0 and low is not None:
                    cut = low + max(step, (high - low) // 10)
                    rows += ledger.db.execute(
                        f"DELETE FROM {table} WHERE step = ? AND at < ?", (step, cut)
                    ).rowcount
    return rows > 0
