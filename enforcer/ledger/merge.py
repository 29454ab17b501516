"""Writes ledger records as lines of JSON, and merges them; a repeated merge changes nothing.

A record is one grant with all its series, so a later copy replaces an earlier one.
"""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from enforcer.ledger.read import has_table, latency_of, reading, series_of, usage_between
from enforcer.ledger.reclaims import Reclaim, put, reclaims_of
from enforcer.ledger.schema import COARSE_S, COLUMNS, LedgerError, Point, Usage, fit
from enforcer.ledger.store import Ledger

VERSION = 1
BATCH = 200  # records per transaction, so that the ledger is not locked for long
BUCKETS_A_LINE = 5000  # keeps a line far below MAX_LINE
MAX_LINE = 8 << 20  # bytes: a node that was broken into must not exhaust memory
T = TypeVar("T")
# ns before the last collection to collect again, as it may have missed grants that just ended
OVERLAP_NS = 3600 * 10**9


@dataclass(frozen=True)
class Record:
    """One grant with its series and histogram."""

    usage: Usage
    points: tuple[Point, ...] = ()
    latency: tuple[tuple[int, int], ...] = ()
    reclaims: tuple[Reclaim, ...] = ()

    def to_line(self) -> str:
        """One line of JSON."""
        body = {
            "version": VERSION,
            "usage": dict(zip(COLUMNS, self.usage, strict=True)),
            "series": [astuple(p) for p in self.points],
            "latency": self.latency,
        }
        if self.reclaims:
            body["reclaims"] = [row[len(self.usage.key) :] for row in self.reclaims]
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """Parse a line; keys of a newer qgpu are ignored. Raises LedgerError."""
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"a line of {len(line)} bytes")
            data = json.loads(line)
            if data["version"] != VERSION:
                raise ValueError(f"version {data['version']}")
            values = data["usage"]
            usage = Usage(*(_checked(name, values.get(name)) for name in COLUMNS))
            points = tuple(_point(point) for point in data["series"])
            latency = tuple((_index(k), _index(v)) for k, v in data["latency"])
            reclaims = tuple(_reclaim(usage, row) for row in data.get("reclaims", ()))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LedgerError(f"this is no record of a ledger: {error}") from None
        return cls(usage, points, latency, reclaims)


_TEXT = {"node", "uuid", "class", "state", "end_reason", "why", "result"}
_REQUIRED = {
    "job_id",
    "node",
    "uuid",
    "card_index",
    "uid",
    "state",
    "share",
    "mem_cap",
    "mem_total",
    "granted_at",
}


def _checked(name: str, value: object) -> Any:
    """Check one field: text or a number, present if required."""
    if value is None and name not in _REQUIRED:
        return None
    if name in _TEXT:
        # It appears on administrators' terminals: no control characters of a compromised node.
        if (
            not isinstance(value, str)
            or len(value) > 255
            or not (value.isascii() and value.isprintable())
        ):
            raise ValueError(f"{name} is {value!r:.60}")
        return value
    return _index(value)


def _reclaim(usage: Usage, values: Sequence[object]) -> Reclaim:
    """An interval without its key, which is that of the grant."""
    left, *numbers = values[:5]
    known = [None if value is None else _index(value) for value in numbers]
    texts = [_checked("why", values[5]) or "", _checked("result", values[6])]
    return Reclaim._make([*usage.key, _index(left), *known, *texts])


def _point(values: Sequence[object]) -> Point:
    at, step, busy, preempted, share, launches, memory = values
    return Point(
        at=_index(at),
        step=_index(step),
        busy_ns=_index(busy),
        closed_preempted_ns=_index(preempted),
        closed_share_ns=_index(share),
        launches=_index(launches),
        mem_used=None if memory is None else _index(memory),
    )


def _index(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.60} is no number")
    return value


def records(path: str | Path, ended_after_ns: int = 0) -> Iterator[Record]:
    """Grants of a ledger that stand or ended after that time. Raises LedgerError."""
    with reading(path) as database:
        for row, usage in list(usage_between(database, ended_after_ns, 2**63 - 1)):
            histogram = latency_of(database, row) or {}
            points, counts = tuple(series_of(database, row)), tuple(sorted(histogram.items()))
            yield Record(usage, points, counts, tuple(reclaims_of(database, usage.key)))


def read_lines(path: Path) -> Iterator[Record | CardBuckets]:
    """Records of a file of lines. Raises LedgerError."""
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                yield parse_line(line)
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class CardBuckets:
    """Use of one whole card per bucket: (step, at, index, samples, sum of utilisation, memory)."""

    uuid: str
    node: str
    buckets: tuple[tuple[int | None, ...], ...]
    config: str = ""  # SHA-256 of the node's qgpu.yaml; an older qgpu sends none and ignores it

    def to_line(self) -> str:
        """One line of JSON."""
        card = {"uuid": self.uuid, "node": self.node, "series": self.buckets, "config": self.config}
        return json.dumps({"version": VERSION, "card": card}, separators=(",", ":"))


def card_records(path: str | Path, after_ns: int = 0) -> Iterator[CardBuckets]:
    """Use of the cards of a ledger since then, one card at a time. Raises LedgerError."""
    with reading(path) as database:
        if not has_table(database, "card_series"):
            return
        rows = database.execute(
            "SELECT uuid, node, step, at, card_index, samples, util_percent, mem_used FROM"
            " card_series WHERE at >= ? ORDER BY uuid, node, at",
            (after_ns // 10**9,),
        )
        for (uuid, node), mine in itertools.groupby(rows, key=lambda row: (row[0], row[1])):
            for part in _parts(mine, BUCKETS_A_LINE):
                yield CardBuckets(uuid, node, tuple(row[2:] for row in part))


def _parts(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(rows)
    while part := list(itertools.islice(source, size)):
        yield part


def _card_buckets(data: dict[str, Any]) -> CardBuckets:
    """Parse the buckets of a card. Raises ValueError, TypeError, KeyError."""
    buckets = []
    for step, at, *rest in data["series"]:
        index, samples, util, memory = rest
        known = [None if value is None else _index(value) for value in (index, util, memory)]
        buckets.append((_index(step), _index(at), known[0], _index(samples), known[1], known[2]))
    digest = data.get("config", "")
    if not isinstance(digest, str) or not re.fullmatch(r"(?:[0-9a-f]{64})?", digest):
        raise ValueError(f"config is {digest!r:.80}")
    uuid, node = _checked("uuid", data["uuid"]), _checked("node", data["node"])
    return CardBuckets(uuid, node, tuple(buckets), digest)


def parse_line(line: str | bytes) -> Record | CardBuckets:
    """A line of `qgpu collect --send`. Raises LedgerError."""
    try:
        if len(line) > MAX_LINE:
            raise ValueError(f"a line of {len(line)} bytes")
        data = json.loads(line)
        if data["version"] == VERSION and "card" in data:
            return _card_buckets(data["card"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LedgerError(f"this is no record of a ledger: {error}") from None
    return Record.from_line(line)


def put_card(ledger: Ledger, card: CardBuckets) -> None:
    """Merge a card's buckets. A bucket only grows, so of two copies the one with more samples wins.

    A coarse bucket replaces the fine ones that it was made of.
    """
    coarse = [bucket for bucket in card.buckets if bucket[0] == COARSE_S]
    with ledger.transaction():
        if card.config:
            row = (card.node, card.config, int(time.time()))
            ledger.db.execute(
                "INSERT OR REPLACE INTO node_config (node, sha256, at) VALUES (?, ?, ?)", row
            )
        ledger.db.executemany(
            "DELETE FROM card_series WHERE uuid = ? AND step < ? AND at >= ? AND at < ?",
            [(card.uuid, COARSE_S, at, (at or 0) + COARSE_S) for _, at, *_ in coarse],
        )
        known = ledger.db.execute(
            "SELECT at FROM card_series WHERE uuid = ? AND step = ?", (card.uuid, COARSE_S)
        )
        covered = {at for (at,) in known} | {bucket[1] for bucket in coarse}
        fine = [
            b
            for b in card.buckets
            if b[0] != COARSE_S and (b[1] or 0) // COARSE_S * COARSE_S not in covered
        ]
        ledger.db.executemany(
            "INSERT INTO card_series (step, at, uuid, node, card_index, samples, util_percent,"
            " mem_used) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET samples ="
            " excluded.samples, util_percent = excluded.util_percent, mem_used ="
            " excluded.mem_used, card_index = excluded.card_index WHERE excluded.samples >="
            " samples",
            [(step, at, card.uuid, card.node, *rest) for step, at, *rest in (*coarse, *fine)],
        )


@dataclass
class Merged:
    """The result of a merge."""

    new: int = 0
    changed: int = 0
    same: int = 0


def merge(ledger: Ledger, found: Iterable[Record | CardBuckets]) -> Iterator[Merged]:
    """Merge records, one batch per transaction; yields after each, so that the caller may pause."""
    done = Merged()
    batch: list[Record] = []
    for record in found:
        if isinstance(record, CardBuckets):
            put_card(ledger, record)
            yield done
            continue
        batch.append(record)
        if len(batch) >= BATCH:
            _take(ledger, batch, done)
            batch = []
            yield done
    if batch:
        _take(ledger, batch, done)
    yield done


def _take(ledger: Ledger, batch: Iterable[Record], done: Merged) -> None:
    with ledger.transaction():
        for record in batch:
            before = _known(ledger.db, record.usage)
            if before is not None and not _is_news(record.usage, before[1]):
                done.same += 1
                continue
            _put(ledger.db, record, None if before is None else before[0])
            if before is None:
                done.new += 1
            else:
                done.changed += 1


def _known(database: sqlite3.Connection, usage: Usage) -> tuple[int, Usage] | None:
    row = database.execute(
        f"SELECT id, {', '.join(COLUMNS)} FROM usage WHERE job_id = ? AND uuid = ? AND granted_at"
        " = ?",
        usage.key,
    ).fetchone()
    return None if row is None else (row[0], Usage(*row[1:]))


def _is_news(new: Usage, old: Usage) -> bool:
    """Whether a copy is newer than ours; a late older copy must not undo anything."""
    if new == old:
        return False
    mine = (old.ended_at is not None, old.sampled_at or 0)
    theirs = (new.ended_at is not None, new.sampled_at or 0)
    return theirs >= mine


def _put(database: sqlite3.Connection, record: Record, row: int | None) -> None:
    values = [fit(v) if isinstance(v, int) else v for v in record.usage]
    if row is None:
        marks = ", ".join("?" * len(COLUMNS))
        row = database.execute(
            f"INSERT INTO usage ({', '.join(COLUMNS)}) VALUES ({marks})", values
        ).lastrowid
    else:
        sets = ", ".join(f"{name} = ?" for name in COLUMNS)
        database.execute(f"UPDATE usage SET {sets} WHERE id = ?", [*values, row])
    database.execute("DELETE FROM series WHERE usage_id = ?", (row,))
    database.execute("DELETE FROM latency WHERE usage_id = ?", (row,))
    names = [f.name for f in fields(Point)]
    database.executemany(
        f"INSERT OR REPLACE INTO series (usage_id, samples, {', '.join(names)}) VALUES (?, 1, ?,"
        " ?, ?, ?, ?, ?, ?)",
        [(row, *astuple(point)) for point in record.points],
    )
    database.executemany(
        "INSERT OR REPLACE INTO latency VALUES (?, ?, ?)", [(row, *pair) for pair in record.latency]
    )
    put(database, record.reclaims)
