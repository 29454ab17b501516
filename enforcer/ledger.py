"""The usage ledger of one node: SQLite, one row per (job, card, grant). docs/specs/ledger.md is the format.

Written by qgpud alone; read at any time (WAL). Counters are sums of what the arbiter reported; a restart of
the arbiter or of qgpud neither loses nor doubles them. None means not measured, 0 measured and zero.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from enforcer.ledger_read import read_usage
from enforcer.ledger_schema import (
    COUNTERS,
    FILE_NAME,
    FINE_S,
    MIB,
    OPTIONAL,
    PEAKS,
    CardSample,
    LedgerError,
    Sample,
    Usage,
    fit,
    migrations,
)
from enforcer.ledger_sql import ADD, ADD_SERIES, BASE, KEEP, TOUCH
from enforcer.ledger_sync import Syncer
from gres.grants import Grant

__all__ = [
    "COUNTERS", "FILE_NAME", "PEAKS", "CardSample", "Ledger", "LedgerError", "Sample", "Usage", "counter_deltas",
    "migrations", "read_usage",
]  # fmt: skip

MODE = 0o640  # others ask qgpud, which follows PrivateData
# Between two samples further apart than this nobody knows what was held.
MAX_GAP_NS = 10 * 10**9
BUCKET_NS = FINE_S * 10**9
_SERIES = ("busy_ns", "closed_preempted_ns", "closed_share_ns", "launches")


@dataclass(frozen=True)
class _Baseline:
    """What a tenant had said last: the row of `baseline`."""

    boot_id: str
    tenant_since: int
    counters: tuple[int, ...]
    optional: tuple[int | None, ...]
    close_hist: tuple[int, ...] | None
    sampled_at: int | None

    def same(self, sample: Sample) -> bool:
        """Whether the sample goes on counting where this one stood."""
        return self.boot_id == str(sample.boot_id) and self.tenant_since == fit(sample.tenant_since)


class Ledger:
    """The ledger opened for writing. The file and its schema are made or brought up to date here."""

    def __init__(self, path: str | Path) -> None:
        """Raises LedgerError when the file cannot be opened or comes from a newer qgpu."""
        self.path = Path(path)
        self._rows: dict[tuple[int, str], int] = {}
        self._online: frozenset[str] | None = None  # cards with a standing online grant; None: to be asked
        self._baselines: dict[int, _Baseline] = {}
        self._nvml_peaks: dict[int, int] = {}
        self._said: dict[int, tuple[Sample, int]] = {}  # the last look at each open row, written or not
        self._syncer = Syncer(self.path.with_name(self.path.name + "-wal"))
        try:
            _make(self.path)
            self.db = sqlite3.connect(self.path, isolation_level=None, timeout=5)
            self.db.execute("PRAGMA journal_mode = WAL")
            # SQLite syncs at checkpoints; the thread syncs what was committed since, after each sample.
            self.db.execute("PRAGMA synchronous = NORMAL")
            self.db.execute(f"PRAGMA journal_size_limit = {16 * MIB}")
            self.db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"the ledger {self.path} cannot be opened: {error}") from None

    def _migrate(self) -> None:
        version = int(self.db.execute("PRAGMA user_version").fetchone()[0])
        known = migrations()
        if version > known[-1][0]:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}, this qgpu knows up to {known[-1][0]}:"
                " it was written by a newer release"
            )
        for number, script in known:
            if number > version:
                self.db.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException:
            self._rows.clear()
            self._baselines.clear()
            self._said.clear()
            self._online = None
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            raise

    # ---- grants ----------------------------------------------------------------------------------

    def open_grant(self, grant: Grant) -> None:
        """Make the rows of a grant; those that exist already stay as they are."""
        with self.transaction():
            for card in grant.cards if grant.state != "refused" else ():
                self.db.execute(
                    "INSERT OR IGNORE INTO usage (job_id, node, uuid, card_index, uid, class, state, share,"
                    " mem_cap, mem_total, granted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (grant.job_id, grant.node, card.uuid, card.index, grant.uid, grant.job_class, grant.state,
                     card.share, card.mem_cap, card.mem_total, grant.created_ns),
                )  # fmt: skip
                self._rows.pop((grant.job_id, card.uuid), None)
            self._online = None

    def end(self, job_id: int, reason: str, now_ns: int) -> int:
        """Close all open rows of a job; returns how many there were."""
        with self.transaction():
            self._forget(job_id)
            self._online = None
            self.db.execute(
                "DELETE FROM baseline WHERE usage_id IN"
                " (SELECT id FROM usage WHERE job_id = ? AND ended_at IS NULL)",
                (job_id,),
            )
            done = self.db.execute(
                "UPDATE usage SET ended_at = max(?, granted_at), end_reason = ?"
                " WHERE job_id = ? AND ended_at IS NULL",
                (now_ns, reason, job_id),
            )
        return done.rowcount

    def _forget(self, job_id: int) -> None:
        for key in [key for key in self._rows if key[0] == job_id]:
            row = self._rows.pop(key)
            self._baselines.pop(row, None)
            self._nvml_peaks.pop(row, None)
            self._said.pop(row, None)

    def _with_online(self) -> frozenset[str]:
        """Cards on which an online grant stands: what offline does there is harvest."""
        if self._online is None:
            rows = self.db.execute("SELECT uuid FROM usage WHERE ended_at IS NULL AND class = 'online'")
            self._online = frozenset(uuid for (uuid,) in rows)
        return self._online

    def _open_row(self, job_id: int, uuid: str) -> int | None:
        known = self._rows.get((job_id, uuid))
        if known is not None:
            return known
        row = self.db.execute(
            "SELECT id FROM usage WHERE job_id = ? AND uuid = ? AND ended_at IS NULL"
            " ORDER BY granted_at DESC LIMIT 1",
            (job_id, uuid),
        ).fetchone()
        if row is None:
            return None
        self._rows[job_id, uuid] = int(row[0])
        return int(row[0])

    # ---- samples ---------------------------------------------------------------------------------

    def record(self, samples: Iterable[Sample], now_ns: int) -> None:
        """Add what happened since the last sample of the same tenant; unknown tenants are passed over.

        A tenant of which nothing changed is written once per bucket of its series, so that an idle node costs
        next to nothing.
        """
        changed: list[Sample] = []
        same: list[tuple[int, Sample, _Baseline]] = []
        for sample in samples:
            row = self._rows.get((sample.job_id, sample.uuid))
            said = None if row is None else self._said.get(row)
            before = None if row is None else self._baselines.get(row)
            if row is None or said is None or before is None or said[0] != sample:
                changed.append(sample)
            elif (before.sampled_at or 0) // BUCKET_NS != now_ns // BUCKET_NS:
                same.append((row, sample, before))
            else:
                self._said[row] = (sample, now_ns)
        if not changed and not same:
            return
        with self.transaction():
            self._touch(same, now_ns)
            for sample in changed:
                row = self._open_row(sample.job_id, sample.uuid)
                if row is not None:
                    self._add(row, sample, now_ns)
                    self._said[row] = (sample, now_ns)
        self._syncer.kick()

    def _touch(self, same: Sequence[tuple[int, Sample, _Baseline]], now_ns: int) -> None:
        """A new bucket for tenants of which nothing changed: they were looked at, and held what they held."""
        usage, series = [], []
        at = now_ns // 10**9 // FINE_S * FINE_S
        for row, sample, before in same:
            held, seen = self._memory_gains(row, sample, before, now_ns)
            usage.append((held, held, seen, seen, now_ns, row))
            memory = None if sample.mem_used is None else fit(sample.mem_used)
            series.append((row, FINE_S, at, 0, 0, 0, 0, memory))
            self._baselines[row] = replace(before, sampled_at=now_ns)
            self._said[row] = (sample, now_ns)
        self.db.executemany(TOUCH, usage)
        self.db.executemany(ADD_SERIES, series)
        self.db.executemany(
            "UPDATE baseline SET sampled_at = ? WHERE usage_id = ?", [(now_ns, row) for row, _, _ in same]
        )

    def record_memory(self, job_id: int, uuid: str, nvml_bytes: int) -> None:
        """Note the memory that the driver counts for a job on a card; the largest is kept."""
        row = self._open_row(job_id, uuid)
        if row is not None and self._nvml_peaks.get(row, -1) < nvml_bytes:
            self.db.execute(
                "UPDATE usage SET nvml_mem_peak = ? WHERE id = ? AND coalesce(nvml_mem_peak, -1) < ?",
                (fit(nvml_bytes), row, fit(nvml_bytes)),
            )
            self._nvml_peaks[row] = nvml_bytes

    def record_cards(self, node: str, cards: Iterable[CardSample], now_ns: int) -> None:
        """Note what whole cards did; a card that says nothing makes no entry."""
        at = now_ns // 10**9 // FINE_S * FINE_S
        with self.transaction():
            for card in cards:
                if card.util_percent is None and card.mem_used is None:
                    continue
                said = int(card.util_percent is not None)
                memory = None if card.mem_used is None else fit(card.mem_used)
                self.db.execute(
                    "INSERT INTO card_series (step, at, uuid, node, card_index, samples, util_percent, mem_used)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET samples = samples + excluded.samples,"
                    " util_percent = CASE WHEN excluded.util_percent IS NULL THEN util_percent"
                    " ELSE coalesce(util_percent, 0) + excluded.util_percent END,"
                    " mem_used = max(coalesce(mem_used, excluded.mem_used), coalesce(excluded.mem_used, mem_used))",
                    (FINE_S, at, card.uuid, node, card.card_index, said, card.util_percent, memory),
                )

    def _add(self, row: int, sample: Sample, now_ns: int) -> None:
        before = self._baseline(row)
        deltas = dict(zip(COUNTERS, counter_deltas(sample, before), strict=True))
        peaks = [fit(getattr(sample, name)) for name in PEAKS]
        harvest = deltas["busy_ns"] if sample.uuid in self._with_online() else 0
        more = [*_optional_gains(sample, before), *self._memory_gains(row, sample, before, now_ns)]
        twice = [value for value in more for _ in range(2)]
        self.db.execute(ADD, [*deltas.values(), *peaks, harvest, *twice, now_ns, row])
        self._add_latency(row, sample, before)
        self._add_series(row, sample, deltas, now_ns)
        self._keep_baseline(row, sample, now_ns)

    def _add_latency(self, row: int, sample: Sample, before: _Baseline | None) -> None:
        if sample.close_hist is None:
            return
        known = before.close_hist if before is not None and before.same(sample) else None
        if known == sample.close_hist:
            return
        for bucket, count in enumerate(sample.close_hist):
            old = known[bucket] if known is not None and bucket < len(known) else 0
            if gained := _gained(fit(count), old):
                self.db.execute(
                    "INSERT INTO latency VALUES (?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET count = count + excluded.count",
                    (row, bucket, gained),
                )

    def _memory_gains(
        self, row: int, sample: Sample, before: _Baseline | None, now_ns: int
    ) -> tuple[int | None, int | None]:
        """Memory held times the time since the last write (MiB x ms), and that time; for the mean."""
        if sample.mem_used is None or before is None or before.sampled_at is None:
            return None, None
        held, seen, since = 0, 0, before.sampled_at
        last, last_ns = self._said.get(row, (sample, 0))
        if last_ns > since and last.mem_used is not None:  # looks that changed nothing were not written
            seen = round((last_ns - since) / 10**6)
            held, since = min(last.mem_used, 2**50) // MIB * seen, last_ns
        if 0 < now_ns - since <= MAX_GAP_NS:
            took = round((now_ns - since) / 10**6)
            held, seen = held + min(sample.mem_used, 2**50) // MIB * took, seen + took
        return (held, seen) if seen else (None, None)

    def _add_series(self, row: int, sample: Sample, deltas: dict[str, int], now_ns: int) -> None:
        at = now_ns // 10**9 // FINE_S * FINE_S
        memory = None if sample.mem_used is None else fit(sample.mem_used)
        self.db.execute(
            ADD_SERIES, (row, FINE_S, at, *(min(deltas[name], 2**53) for name in _SERIES), memory)
        )

    def _baseline(self, row: int) -> _Baseline | None:
        if row in self._baselines:
            return self._baselines[row]
        found = self.db.execute(
            f"SELECT {', '.join(BASE[1:])} FROM baseline WHERE usage_id = ?", (row,)
        ).fetchone()
        if found is None:
            return None
        split = 2 + len(COUNTERS)
        hist = None if found[-2] is None else tuple(json.loads(found[-2]))
        return _Baseline(found[0], found[1], found[2:split], found[split:-2], hist, found[-1])

    def _keep_baseline(self, row: int, sample: Sample, now_ns: int) -> None:
        optional = tuple(
            None if getattr(sample, name) is None else fit(getattr(sample, name)) for name in OPTIONAL
        )
        hist = None if sample.close_hist is None else tuple(fit(count) for count in sample.close_hist)
        kept = _Baseline(
            boot_id=str(sample.boot_id),
            tenant_since=fit(sample.tenant_since),
            counters=tuple(fit(getattr(sample, name)) for name in COUNTERS),
            optional=optional,
            close_hist=hist,
            sampled_at=now_ns,
        )
        self.db.execute(
            KEEP,
            (
                row,
                kept.boot_id,
                kept.tenant_since,
                *kept.counters,
                *optional,
                None if hist is None else json.dumps(hist),
                now_ns,
            ),
        )
        self._baselines[row] = kept

    def close(self) -> None:
        """Close the file; everything committed is on it."""
        self._syncer.close()
        self.db.close()


def _make(path: Path) -> None:
    """The file with its mode, before SQLite makes it with another one (its helper files take the same)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        os.fchmod(fd, MODE)
    finally:
        os.close(fd)
    for helper in ("-wal", "-shm"):  # of a release that left them open to all
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + helper).chmod(MODE)


def counter_deltas(sample: Sample, before: _Baseline | Sequence[int | str] | None) -> list[int]:
    """What each counter gained since `before` (boot_id, tenant_since, counters), None if there was nothing.

    Another start of the arbiter, another tenant, or a counter that ran backwards counts from zero again.
    """
    now = [fit(getattr(sample, name)) for name in COUNTERS]
    if before is None:
        return now
    if not isinstance(before, _Baseline):
        counters = tuple(int(value) for value in before[2:])
        before = _Baseline(str(before[0]), int(before[1]), counters, (), None, None)
    if not before.same(sample):
        return now
    return [_gained(new, old) for new, old in zip(now, before.counters, strict=True)]


def _optional_gains(sample: Sample, before: _Baseline | None) -> Iterator[int | None]:
    """What the optional counters gained; None where the arbiter does not tell."""
    known = before.optional if before is not None and before.same(sample) else (None,) * len(OPTIONAL)
    for name, old in zip(OPTIONAL, known, strict=True):
        value = getattr(sample, name)
        yield None if value is None else _gained(fit(value), old or 0)


def _gained(new: int, old: int) -> int:
    return new - old if new >= old else new
