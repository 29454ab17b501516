"""The usage ledger of one node: SQLite, one row per (job, card, grant).

Format: docs/specs/reporting/ledger.md. Only qgpud writes; reading is always possible (WAL).
Counters are sums of the arbiter's reports; restarts of arbiter or qgpud neither lose nor double
them. None means not measured; 0 means measured and zero.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from enforcer.ledger.file import make
from enforcer.ledger.gains import (
    Baseline,
    HeldCard,
    Writes,
    baseline_of,
    card_rows,
    closings,
    counter_deltas,
    gains,
    optional_gains,
    recently,
)
from enforcer.ledger.read import read_usage
from enforcer.ledger.schema import (
    COUNTERS,
    FILE_NAME,
    FINE_S,
    MIB,
    PEAKS,
    CardSample,
    LedgerError,
    Sample,
    Usage,
    fit,
    fitted,
    migrations,
)
from enforcer.ledger.statements import ADD_CARD, ADD_SERIES, BASE, OPEN_USAGE, TOUCH
from enforcer.ledger.sync import Syncer
from gres.grant.store import Grant

__all__ = [
    "COUNTERS",
    "FILE_NAME",
    "PEAKS",
    "CardSample",
    "Ledger",
    "LedgerError",
    "Sample",
    "Usage",
    "counter_deltas",
    "migrations",
    "read_usage",
]

# ns between two samples beyond which the memory held is not known
MAX_GAP_NS = 10 * 10**9
BUCKET_NS = FINE_S * 10**9
_BUSY = COUNTERS.index("busy_ns")
_SERIES = itemgetter(
    *map(COUNTERS.index, ("busy_ns", "closed_preempted_ns", "closed_share_ns", "launches"))
)
SERIES_MOST = 2**53  # bound per sample, so that sums fit as well
_PEAKS = attrgetter(*PEAKS)


class Ledger:
    """The ledger opened for writing; creates or migrates the file and its schema."""

    def __init__(self, path: str | Path) -> None:
        """Open the file. Raises LedgerError if that fails or a newer qgpu wrote it."""
        self.path = Path(path)
        self._rows: dict[tuple[int, str], int] = {}
        # cards with a standing online grant; None: not read yet
        self._online: frozenset[str] | None = None
        self._baselines: dict[int, Baseline] = {}
        self._nvml_peaks: dict[int, int] = {}
        self._cards: dict[tuple[str, str], HeldCard] = {}
        # the last sample of each open row, written or not
        self._last: dict[int, tuple[Sample, int]] = {}
        # gains of busy_ns of each open row in the last FINE_S, with their times
        self._recent: dict[int, deque[tuple[int, int]]] = {}
        self._syncer = Syncer(self.path.with_name(self.path.name + "-wal"))
        try:
            make(self.path)
            self.db = sqlite3.connect(self.path, isolation_level=None, timeout=5)
            self.db.execute("PRAGMA journal_mode = WAL")
            # SQLite syncs at checkpoints; our thread syncs what was committed, after each sample.
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
                f"the ledger {self.path} has schema {version}, this qgpu knows up to"
                f" {known[-1][0]}: it was written by a newer release"
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
            self._last.clear()
            self._recent.clear()
            self._online = None
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
            raise

    # ---- grants ---------------------------------------------------------------------------------

    def open_grant(self, grant: Grant) -> None:
        """Make the rows of a grant; old ones stay. Those of a card that it was moved from end."""
        with self.transaction():
            self._end_former(grant)
            for card in grant.cards if grant.state != "refused" else ():
                self.db.execute(
                    OPEN_USAGE,
                    (
                        grant.job_id,
                        grant.node,
                        card.uuid,
                        card.index,
                        grant.uid,
                        grant.job_class,
                        grant.state,
                        card.share,
                        card.mem_cap,
                        card.mem_total,
                        card.moved_ns or grant.created_ns,
                    ),
                )
                self._rows.pop((grant.job_id, card.uuid), None)
            self._online = None

    def _end_former(self, grant: Grant) -> None:
        for card in grant.cards:
            if card.moved_ns:
                here = (card.uuid, card.moved_ns)
                other = "AND NOT (uuid = ? AND granted_at = ?)"
                self._close(grant.job_id, "moved", card.moved_ns, None, other, here)

    def seen_by_driver(self, job_id: int) -> bool:
        """Whether the driver counted memory for the job's standing grant."""
        query = (
            "SELECT max(coalesce(nvml_mem_peak, 0)) FROM usage WHERE job_id = ? AND ended_at IS"
            " NULL"
        )
        return bool(self.db.execute(query, (job_id,)).fetchone()[0])

    def end(self, job_id: int, reason: str, now_ns: int, fetched: bool | None = None) -> int:
        """Close the open rows of a job; their number. `fetched`: whether a task took its grant."""
        with self.transaction():
            return self._close(job_id, reason, now_ns, fetched)

    def _close(
        self,
        job_id: int,
        reason: str,
        now_ns: int,
        fetched: bool | None,
        which: str = "",
        values: Sequence[str | int] = (),
    ) -> int:
        """Close the open rows of a job that also meet `which`."""
        self._forget(job_id)
        self._online = None
        rows = f"job_id = ? AND ended_at IS NULL {which}"
        self.db.execute(
            f"DELETE FROM baseline WHERE usage_id IN (SELECT id FROM usage WHERE {rows})",
            (job_id, *values),
        )
        ends = "ended_at = max(?, granted_at), end_reason = ?, fetched = ?"
        what = (now_ns, reason, fetched, job_id, *values)
        return self.db.execute(f"UPDATE usage SET {ends} WHERE {rows}", what).rowcount

    def _forget(self, job_id: int) -> None:
        for key in [key for key in self._rows if key[0] == job_id]:
            row = self._rows.pop(key)
            self._baselines.pop(row, None)
            self._nvml_peaks.pop(row, None)
            self._last.pop(row, None)
            self._recent.pop(row, None)

    def _with_online(self) -> frozenset[str]:
        """Cards with a standing online grant: busy time of offline jobs there is harvest."""
        if self._online is None:
            rows = self.db.execute(
                "SELECT uuid FROM usage WHERE ended_at IS NULL AND class = 'online'"
            )
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

    # ---- samples --------------------------------------------------------------------------------

    def record(self, samples: Iterable[Sample], now_ns: int) -> None:
        """Add the gains since the last sample of each tenant; unknown tenants are skipped.

        An unchanged tenant is written once per bucket of its series, so an idle node costs little.
        """
        changed: list[Sample] = []
        same: list[tuple[int, Sample, Baseline]] = []
        for sample in samples:
            row = self._rows.get((sample.job_id, sample.uuid))
            said = None if row is None else self._last.get(row)
            before = None if row is None else self._baselines.get(row)
            if (
                row is None
                or said is None
                or before is None
                or not (said[0] is sample or said[0] == sample)
            ):
                changed.append(sample)
            elif (before.sampled_at or 0) // BUCKET_NS != now_ns // BUCKET_NS:
                same.append((row, sample, before))
            else:
                self._last[row] = (sample, now_ns)
        if not changed and not same:
            return
        with self.transaction():
            self._touch(same, now_ns)
            writes = Writes()
            for sample in changed:
                row = self._open_row(sample.job_id, sample.uuid)
                if row is not None:
                    self._add(row, sample, now_ns, writes)
                    self._last[row] = (sample, now_ns)
            for statement, rows in writes.all():
                self.db.executemany(statement, rows)
        self._syncer.kick()

    def _touch(self, same: Sequence[tuple[int, Sample, Baseline]], now_ns: int) -> None:
        """Start a new bucket for unchanged tenants: they were sampled,
        and held as much as before.
        """
        usage, series = [], []
        at = now_ns // 10**9 // FINE_S * FINE_S
        for row, sample, before in same:
            held, seen = self._memory_gains(row, sample, before, now_ns)
            usage.append((held, seen, now_ns, row))
            memory = None if sample.mem_used is None else fit(sample.mem_used)
            series.append((row, FINE_S, at, 0, 0, 0, 0, memory))
            self._baselines[row] = before._replace(sampled_at=now_ns)
            self._last[row] = (sample, now_ns)
        self.db.executemany(TOUCH, usage)
        self.db.executemany(ADD_SERIES, series)
        self.db.executemany(
            "UPDATE baseline SET sampled_at = ? WHERE usage_id = ?",
            [(now_ns, row) for row, _, _ in same],
        )

    def record_memory(self, job_id: int, uuid: str, nvml_bytes: int) -> None:
        """Note the memory that the driver counts for a job on a card; the largest is kept."""
        row = self._open_row(job_id, uuid)
        if row is not None and self._nvml_peaks.get(row, -1) < nvml_bytes:
            self.db.execute(
                "UPDATE usage SET nvml_mem_peak = ? WHERE id = ? AND coalesce(nvml_mem_peak, -1) <"
                " ?",
                (fit(nvml_bytes), row, fit(nvml_bytes)),
            )
            self._nvml_peaks[row] = nvml_bytes

    def record_cards(self, node: str, cards: Iterable[CardSample], now_ns: int) -> None:
        """Note samples of whole cards; one without values makes no entry.

        Equal samples are counted here, and written when a value changes or the bucket ends.
        """
        at = now_ns // 10**9 // FINE_S * FINE_S
        rows: list[tuple[Any, ...]] = []
        for card in cards:
            if card.util_percent is None and card.mem_used is None:
                continue
            held = self._cards.get((node, card.uuid))
            if held is not None and held.at == at and held.sample == card:
                held.more += 1
                continue
            rows += card_rows(node, held)
            self._cards[node, card.uuid] = held = HeldCard(card, at, 1)
            rows += card_rows(node, held)
        self._write_cards(rows)

    def _write_cards(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            with self.transaction():
                self.db.executemany(ADD_CARD, rows)

    def _add(self, row: int, sample: Sample, now_ns: int, writes: Writes) -> None:
        before = self._baseline(row)
        now = baseline_of(sample, before, now_ns)
        known = before if before is not None and now.goes_on(before) else None
        gained = gains(now.counters, None if known is None else known.counters)
        harvest = gained[_BUSY] if sample.uuid in self._with_online() else 0
        recent = self._recent.setdefault(row, deque())
        needs = (fit(sample.mem_refused), recently(recent, gained[_BUSY], now_ns))
        optional = optional_gains(now.optional, None if known is None else known.optional)
        held = self._memory_gains(row, sample, before, now_ns)
        writes.usage.append(
            (*gained, *fitted(_PEAKS(sample)), *needs, harvest, *optional, *held, now_ns, row)
        )
        series: tuple[int, ...] = _SERIES(gained)
        if max(series) > SERIES_MOST:
            series = tuple(min(value, SERIES_MOST) for value in series)
        memory = None if sample.mem_used is None else fit(sample.mem_used)
        writes.series.append((row, FINE_S, now_ns // 10**9 // FINE_S * FINE_S, *series, memory))
        if now.close_hist is not None and (known is None or known.close_hist is not now.close_hist):
            old = (() if known is None else known.close_hist) or ()
            writes.latency += closings(row, now.close_hist, old)
        writes.baseline.append(
            (
                row,
                now.boot_id,
                now.tenant_since,
                *now.counters,
                *now.optional,
                now.hist_text,
                now_ns,
            )
        )
        self._baselines[row] = now

    def _memory_gains(
        self, row: int, sample: Sample, before: Baseline | None, now_ns: int
    ) -> tuple[int | None, int | None]:
        """Memory held times the time since the last write (MiB x ms), and
        that time, for the mean.
        """
        if sample.mem_used is None or before is None or before.sampled_at is None:
            return None, None
        held, seen, since = 0, 0, before.sampled_at
        last, last_ns = self._last.get(row, (sample, 0))
        if last_ns > since and last.mem_used is not None:  # unchanged samples were not written
            seen = round((last_ns - since) / 10**6)
            held, since = min(last.mem_used, 2**50) // MIB * seen, last_ns
        if 0 < now_ns - since <= MAX_GAP_NS:
            took = round((now_ns - since) / 10**6)
            held, seen = held + min(sample.mem_used, 2**50) // MIB * took, seen + took
        return (held, seen) if seen else (None, None)

    def _baseline(self, row: int) -> Baseline | None:
        if row in self._baselines:
            return self._baselines[row]
        found = self.db.execute(
            f"SELECT {', '.join(BASE[1:])} FROM baseline WHERE usage_id = ?", (row,)
        ).fetchone()
        if found is None:
            return None
        split = 2 + len(COUNTERS)
        hist = None if found[-2] is None else tuple(json.loads(found[-2]))
        return Baseline(
            found[0], found[1], found[2:split], found[split:-2], hist, found[-2], found[-1]
        )

    def close(self) -> None:
        """Close the file; all commits are in it."""
        with contextlib.suppress(sqlite3.Error):
            self._write_cards(
                [row for (node, _), held in self._cards.items() for row in card_rows(node, held)]
            )
        self._syncer.close()
        self.db.close()
