"""The usage ledger of one node: SQLite, one row per (job, card, grant). docs/specs/ledger.md is the format.

Written by qgpud alone; read by `qgpu report` at any time (WAL). Counters are sums of what the arbiter
reported; a restart of the arbiter or of qgpud neither loses nor doubles them. None means not measured, 0
measured and zero.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

from gres.grants import Grant

FILE_NAME = "ledger.sqlite"
COUNTERS = ("busy_ns", "launches", "denied", "preemptions", "closed_preempted_ns", "closed_share_ns")
PEAKS = ("mem_peak", "gate_close_max_ns")


class LedgerError(RuntimeError):
    """The ledger cannot be used; the text is a sentence that names the file."""


@dataclass(frozen=True)
class Sample:
    """What the arbiter counted for one tenant since `tenant_since` (its own clock) of its start `boot_id`."""

    job_id: int
    uuid: str
    boot_id: int
    tenant_since: int
    busy_ns: int = 0
    launches: int = 0
    denied: int = 0
    preemptions: int = 0
    closed_preempted_ns: int = 0
    closed_share_ns: int = 0
    mem_peak: int = 0
    gate_close_max_ns: int = 0


@dataclass(frozen=True)
class Usage:
    """One row of the ledger: times and durations in nanoseconds, memory in bytes, None = not measured."""

    job_id: int
    node: str
    uuid: str
    card_index: int
    uid: int
    job_class: str | None
    state: str
    share: int
    mem_cap: int
    mem_total: int
    granted_at: int
    ended_at: int | None
    end_reason: str | None
    busy_ns: int | None
    launches: int | None
    mem_peak: int | None
    nvml_mem_peak: int | None
    denied: int | None
    preemptions: int | None
    closed_preempted_ns: int | None
    closed_share_ns: int | None
    gate_close_max_ns: int | None
    sampled_at: int | None

    def wall_ns(self, now_ns: int) -> int:
        """How long the grant stood, until `now_ns` (CLOCK_REALTIME) if it still does."""
        return max(0, (now_ns if self.ended_at is None else self.ended_at) - self.granted_at)


_COLUMNS = ", ".join("class" if f.name == "job_class" else f.name for f in fields(Usage))


def migrations() -> list[tuple[int, str]]:
    """The numbered SQL files that ship, in order."""
    found = []
    for entry in resources.files("enforcer").joinpath("sql").iterdir():
        if match := re.fullmatch(r"([0-9]{4})_[a-z0-9_]+\.sql", entry.name):
            found.append((int(match[1]), entry.read_text()))
    return sorted(found)


class Ledger:
    """The ledger opened for writing. The file and its schema are made or brought up to date here."""

    def __init__(self, path: str | Path) -> None:
        """Raises LedgerError when the file cannot be opened or comes from a newer qgpu."""
        self.path = Path(path)
        try:
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=5)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a power cut may lose the last seconds, never the file
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self.path} cannot be opened: {error}") from None

    def _migrate(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        known = migrations()
        if version > known[-1][0]:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}, this qgpu knows up to {known[-1][0]}:"
                " it was written by a newer release"
            )
        for number, script in known:
            if number > version:
                self._db.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def open_grant(self, grant: Grant) -> None:
        """Make the rows of a grant; those that exist already stay as they are."""
        with self._transaction():
            for card in grant.cards if grant.state != "refused" else ():
                self._db.execute(
                    "INSERT OR IGNORE INTO usage (job_id, node, uuid, card_index, uid, class, state, share,"
                    " mem_cap, mem_total, granted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (grant.job_id, grant.node, card.uuid, card.index, grant.uid, grant.job_class, grant.state,
                     card.share, card.mem_cap, card.mem_total, grant.created_ns),
                )  # fmt: skip

    def record(self, samples: Iterable[Sample], now_ns: int) -> None:
        """Add what happened since the last sample of the same tenant; unknown tenants are passed over."""
        with self._transaction():
            for sample in samples:
                row = self._open_row(sample.job_id, sample.uuid)
                if row is not None:
                    self._add(row, sample, now_ns)

    def record_memory(self, job_id: int, uuid: str, nvml_bytes: int) -> None:
        """Note the memory that the driver counts for a job on a card; the largest is kept."""
        row = self._open_row(job_id, uuid)
        if row is not None:
            self._db.execute(
                "UPDATE usage SET nvml_mem_peak = max(coalesce(nvml_mem_peak, 0), ?) WHERE id = ?",
                (nvml_bytes, row),
            )

    def end(self, job_id: int, reason: str, now_ns: int) -> int:
        """Close all open rows of a job; returns how many there were."""
        done = self._db.execute(
            "UPDATE usage SET ended_at = max(?, granted_at), end_reason = ?"
            " WHERE job_id = ? AND ended_at IS NULL",
            (now_ns, reason, job_id),
        )
        return done.rowcount

    def _open_row(self, job_id: int, uuid: str) -> int | None:
        row = self._db.execute(
            "SELECT id FROM usage WHERE job_id = ? AND uuid = ? AND ended_at IS NULL"
            " ORDER BY granted_at DESC LIMIT 1",
            (job_id, uuid),
        ).fetchone()
        return None if row is None else int(row[0])

    def _add(self, row: int, sample: Sample, now_ns: int) -> None:
        before = self._db.execute(
            f"SELECT boot_id, tenant_since, {', '.join(COUNTERS)} FROM baseline WHERE usage_id = ?", (row,)
        ).fetchone()
        deltas = counter_deltas(sample, before)
        sums = ", ".join(f"{name} = coalesce({name}, 0) + ?" for name in COUNTERS)
        peaks = ", ".join(f"{name} = max(coalesce({name}, 0), ?)" for name in PEAKS)
        values = [*deltas, *(_fit(getattr(sample, name)) for name in PEAKS), now_ns, row]
        self._db.execute(f"UPDATE usage SET {sums}, {peaks}, sampled_at = ? WHERE id = ?", values)
        names = ("usage_id", "boot_id", "tenant_since", *COUNTERS)
        self._db.execute(
            f"INSERT OR REPLACE INTO baseline ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            (
                row,
                str(sample.boot_id),
                _fit(sample.tenant_since),
                *(_fit(getattr(sample, n)) for n in COUNTERS),
            ),
        )

    def close(self) -> None:
        """Close the file; everything committed is on it."""
        self._db.close()


def counter_deltas(sample: Sample, before: Sequence[int | str] | None) -> list[int]:
    """What each counter gained since `before` (boot_id, tenant_since, counters), None if there was nothing.

    Another start of the arbiter, another tenant, or a counter that ran backwards counts from zero again.
    """
    now = [_fit(getattr(sample, name)) for name in COUNTERS]
    if before is None or before[0] != str(sample.boot_id) or before[1] != _fit(sample.tenant_since):
        return now
    return [new - int(old) if new >= int(old) else new for new, old in zip(now, before[2:], strict=True)]


def _fit(value: int) -> int:
    """SQLite's integers are signed 64-bit; nothing real is larger."""
    return min(max(value, 0), 2**63 - 1)


def read_usage(path: str | Path, job_ids: Iterable[int]) -> list[Usage]:
    """Rows of these jobs, oldest first, without writing to the file.

    Raises LedgerError with a sentence when the file cannot be read.
    """
    wanted = list(job_ids)
    marks = ", ".join("?" * len(wanted))
    query = f"SELECT {_COLUMNS} FROM usage WHERE job_id IN ({marks}) ORDER BY granted_at, card_index"
    try:
        with closing(_open_for_reading(Path(path))) as database:
            return [Usage(*row) for row in database.execute(query, wanted)]
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from None


def _open_for_reading(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=5)
    try:
        database.execute("SELECT count(*) FROM sqlite_schema")
        return database
    except sqlite3.OperationalError:
        database.close()
        # WAL needs its two helper files; qgpud removes them when it ends, and a user cannot make them.
        if path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True)
