"""Reads ledgers, of a node or collected from many, without writing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from enforcer.ledger.schema import COLUMNS, CardPoint, LedgerError, Point, Usage


@contextmanager
def reading(path: str | Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger read-only. Raises LedgerError with a sentence, for errors inside too."""
    try:
        with closing(_open(Path(path))) as database:
            yield database
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from None


def _open(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=5)
    try:
        database.execute("SELECT count(*) FROM sqlite_schema")
        return database
    except sqlite3.OperationalError:
        database.close()
        # WAL needs its two helper files; qgpud removes them when it ends, and a user cannot make
        # them.
        if path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)


# Columns that totals need; others stay NULL, which is faster for a hundred thousand rows.
FOR_TOTALS = frozenset(
    {
        "job_id",
        "node",
        "uuid",
        "card_index",
        "uid",
        "class",
        "granted_at",
        "ended_at",
        "busy_ns",
        "denied",
        "preemptions",
        "closed_preempted_ns",
        "sampled_at",
        "held_ns",
        "harvest_ns",
        "closed_idle_ns",
    }
)


def _columns(database: sqlite3.Connection, only: frozenset[str] | None = None) -> str:
    """The columns of Usage; those missing in an older schema count as not measured."""
    there = {row[1] for row in database.execute("PRAGMA table_info(usage)")}
    there = there if only is None else there & only
    return ", ".join(name if name in there else f"NULL AS {name}" for name in COLUMNS)


def node_configs(database: sqlite3.Connection) -> dict[str, tuple[str, int]]:
    """SHA-256 of each node's qgpu.yaml, and when it was collected (seconds of CLOCK_REALTIME)."""
    if not has_table(database, "node_config"):
        return {}
    rows = database.execute("SELECT node, sha256, at FROM node_config")
    return {node: (digest, at) for node, digest, at in rows}


def has_table(database: sqlite3.Connection, name: str) -> bool:
    """Whether this schema has the table."""
    found = database.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)
    )
    return found.fetchone() is not None


def users_of(database: sqlite3.Connection) -> frozenset[int]:
    """Uids with a row."""
    return frozenset(row[0] for row in database.execute("SELECT DISTINCT uid FROM usage"))


def usage_of_jobs(
    database: sqlite3.Connection, job_ids: Iterable[int]
) -> Iterator[tuple[int, Usage]]:
    """Rows of these jobs with their ids, oldest first."""
    wanted = list(dict.fromkeys(job_ids))
    names = _columns(database)
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        marks = ", ".join("?" * len(part))
        query = (
            f"SELECT id, {names} FROM usage WHERE job_id IN ({marks}) ORDER BY granted_at,"
            " card_index"
        )
        yield from ((row[0], Usage._make(row[1:])) for row in database.execute(query, part))


def usage_between(
    database: sqlite3.Connection,
    since_ns: int,
    until_ns: int,
    uid: int | None = None,
    only: frozenset[str] | None = None,
) -> Iterator[tuple[int, Usage]]:
    """Rows of grants that stood in the window, with their ids; of one user if `uid` is given.

    `only` names the columns needed; the others are None.
    """
    who, values = ("", []) if uid is None else (" AND uid = ?", [uid])
    # Two queries, so that the index on ended_at serves both.
    for ended in ("ended_at IS NULL", "ended_at > ?"):
        bounds = [until_ns] if ended.endswith("NULL") else [since_ns, until_ns]
        query = (
            f"SELECT id, {_columns(database, only)} FROM usage WHERE {ended} AND granted_at <"
            f" ?{who}"
        )
        yield from (
            (row[0], Usage._make(row[1:])) for row in database.execute(query, [*bounds, *values])
        )


def series_of(database: sqlite3.Connection, usage_id: int) -> list[Point]:
    """The buckets of one row, oldest first."""
    if not has_table(database, "series"):
        return []
    rows = database.execute(
        "SELECT at, step, busy_ns, closed_preempted_ns, closed_share_ns, launches, mem_used FROM"
        " series WHERE usage_id = ? ORDER BY at",
        (usage_id,),
    )
    return [Point(*row) for row in rows]


def latency_of(database: sqlite3.Connection, usage_id: int) -> dict[int, int] | None:
    """Histogram of one row: bucket -> count; None if not measured."""
    if not has_table(database, "latency"):
        return None
    rows = database.execute("SELECT bucket, count FROM latency WHERE usage_id = ?", (usage_id,))
    return dict(rows.fetchall()) or None


def card_series(database: sqlite3.Connection, since_s: int, until_s: int) -> list[CardPoint]:
    """Use of whole cards in the window, oldest first."""
    if not has_table(database, "card_series"):
        return []
    rows = database.execute(
        "SELECT uuid, node, card_index, at, step, util_percent, samples, mem_used FROM card_series"
        " WHERE at >= ? AND at < ? ORDER BY at",
        (since_s, until_s),
    )
    points = []
    for uuid, node, index, at, step, total, samples, memory in rows:
        util = total / samples if samples and total is not None else None
        points.append(CardPoint(uuid, node, index, at, step, util, memory))
    return points


def read_usage(path: str | Path, job_ids: Iterable[int]) -> list[Usage]:
    """Rows of these jobs, oldest first, without writing to the file.

    Raises LedgerError with a sentence when the file cannot be read.
    """
    with reading(path) as database:
        return [usage for _, usage in usage_of_jobs(database, job_ids)]
