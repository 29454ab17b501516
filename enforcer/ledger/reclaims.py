"""Intervals in which a job's memory was away from its cards: the table `reclaims`.

One row per interval and card. `usage.reclaimed_ns` is their sum, with open intervals counted up to
the last `tally`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from enforcer.ledger.read import has_table
from enforcer.ledger.schema import fit
from enforcer.ledger.store import Ledger
from gres.grant.store import Grant

MAX_TEXT = 255  # characters of `why` and `result`
COLUMNS = (
    "job_id",
    "uuid",
    "granted_at",
    "left_at",
    "back_at",
    "bytes",
    "leave_ns",
    "return_ns",
    "why",
    "result",
)
_TALLY = (
    "UPDATE usage SET reclaimed_ns = (SELECT sum(max(0, coalesce(back_at, :now) - left_at)) FROM"
    " reclaims r WHERE r.job_id = usage.job_id AND r.uuid = usage.uuid AND r.granted_at ="
    " usage.granted_at) WHERE (job_id, uuid, granted_at) IN (SELECT job_id, uuid, granted_at FROM"
    " reclaims WHERE"
)


class Reclaim(NamedTuple):
    """One interval on one card: times in ns of CLOCK_REALTIME, durations in ns, memory in bytes."""

    job_id: int
    uuid: str
    granted_at: int
    left_at: int
    back_at: int | None = None
    bytes: int | None = None
    leave_ns: int | None = None
    return_ns: int | None = None
    why: str = ""
    result: str | None = None


def left(ledger: Ledger, grant: Grant, now_ns: int, why: str, sizes: Mapping[str, int]) -> None:
    """The job's memory begins to leave its cards; `sizes`: what it holds there."""
    with ledger.transaction():
        ledger.db.executemany(
            "INSERT OR IGNORE INTO reclaims (job_id, uuid, granted_at, left_at, bytes, why) VALUES"
            " (?, ?, ?, ?, ?, ?)",
            [
                (
                    grant.job_id,
                    card.uuid,
                    card.moved_ns or grant.created_ns,
                    now_ns,
                    fit(sizes.get(card.uuid, 0)),
                    why[:MAX_TEXT],
                )
                for card in grant.cards
            ],
        )


def moved(ledger: Ledger, job_id: int, leave_ns: int) -> None:
    """The memory left."""
    with ledger.transaction():
        ledger.db.execute(
            "UPDATE reclaims SET leave_ns = ? WHERE job_id = ? AND back_at IS NULL",
            (leave_ns, job_id),
        )


def back(
    ledger: Ledger, job_id: int, now_ns: int, result: str, return_ns: int | None = None
) -> None:
    """The interval is over: the memory is back, was never moved, or its job ended."""
    with ledger.transaction():
        ledger.db.execute(
            "UPDATE reclaims SET back_at = max(?, left_at), return_ns = ?, result = ? WHERE job_id"
            " = ? AND back_at IS NULL",
            (now_ns, return_ns, result[:MAX_TEXT], job_id),
        )
        ledger.db.execute(f"{_TALLY} job_id = :job)", {"now": now_ns, "job": job_id})


def tally(ledger: Ledger, now_ns: int) -> None:
    """Count the open intervals up to now."""
    with ledger.transaction():
        ledger.db.execute(f"{_TALLY} back_at IS NULL)", {"now": now_ns})


def open_rows(ledger: Ledger) -> dict[int, list[Reclaim]]:
    """The intervals that are not over, by job."""
    found: dict[int, list[Reclaim]] = {}
    for row in ledger.db.execute(
        f"SELECT {', '.join(COLUMNS)} FROM reclaims WHERE back_at IS NULL"
    ):
        found.setdefault(row[0], []).append(Reclaim._make(row))
    return found


def reclaims_of(database: sqlite3.Connection, key: tuple[int, str, int]) -> list[Reclaim]:
    """The intervals of one row of `usage` (job, card, date of the grant), oldest first."""
    if not has_table(database, "reclaims"):
        return []
    rows = database.execute(
        f"SELECT {', '.join(COLUMNS)} FROM reclaims WHERE job_id = ? AND uuid = ? AND granted_at ="
        " ? ORDER BY left_at",
        key,
    )
    return [Reclaim._make(row) for row in rows]


def put(database: sqlite3.Connection, rows: Iterable[Reclaim]) -> None:
    """Merge the intervals of another ledger; a later copy of one replaces it."""
    marks = ", ".join("?" * len(COLUMNS))
    database.executemany(
        f"INSERT OR REPLACE INTO reclaims ({', '.join(COLUMNS)}) VALUES ({marks})", rows
    )
