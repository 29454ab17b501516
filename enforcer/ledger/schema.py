"""The ledger's types, and the numbered SQL files that make it (docs/specs/reporting/ledger.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

FILE_NAME = "ledger.sqlite"
# Sums that each arbiter reports; those that only a newer one reports; peaks.
COUNTERS = (
    "busy_ns",
    "launches",
    "denied",
    "preemptions",
    "closed_preempted_ns",
    "closed_share_ns",
)
OPTIONAL = ("closed_suspended_ns", "held_ns", "closed_idle_ns")
PEAKS = ("mem_peak", "gate_close_max_ns")
MIB = 1 << 20
FINE_S, COARSE_S = 10, 300  # widths of the series' buckets
FINE_KEPT_S = 86400  # seconds after which fine buckets become coarse: a day


class LedgerError(RuntimeError):
    """The ledger cannot be used; the text is a sentence that names the file."""


class Sample(NamedTuple):
    """Counters of one tenant since `tenant_since` (the arbiter's clock) in its start `boot_id`.

    `mem_used` is momentary. `close_hist[k]`: gates closed in less than 2^k microseconds, the last
    entry the rest. None: not reported. A tuple, as a busy node makes and compares a hundred per
    poll.
    """

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
    closed_suspended_ns: int | None = None
    held_ns: int | None = None
    closed_idle_ns: int | None = None
    mem_refused: int = 0
    mem_used: int | None = None
    close_hist: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CardSample:
    """One NVML sample of a whole card; None if not reported."""

    uuid: str
    card_index: int | None
    util_percent: int | None
    mem_used: int | None


class Usage(NamedTuple):
    """One row of the ledger: times in ns, memory in bytes, None = not measured.

    A tuple, since a report of a year makes a hundred thousand.
    """

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
    closed_suspended_ns: int | None = None
    held_ns: int | None = None
    harvest_ns: int | None = None
    mem_mib_ms: int | None = None
    mem_seen_ms: int | None = None
    fetched: int | None = None  # 1: a task fetched the grant, 0: none did until its end
    reclaimed_ns: int | None = None  # its memory was away for other jobs
    closed_idle_ns: int | None = None  # of closed_preempted_ns: no job was on the card
    mem_refused: int | None = (
        None  # most that it would have held with a refused allocation; 0: none
    )
    busy_most_ns: int | None = None  # largest gain of busy_ns within FINE_S

    @property
    def key(self) -> tuple[int, str, int]:
        """The key of the row in all ledgers."""
        return (self.job_id, self.uuid, self.granted_at)

    def wall_ns(self, now_ns: int) -> int:
        """Duration of the grant in ns, until `now_ns` (CLOCK_REALTIME) if it still stands."""
        return max(0, (now_ns if self.ended_at is None else self.ended_at) - self.granted_at)

    @property
    def mem_mean(self) -> int | None:
        """Mean of the memory held, in bytes."""
        if self.mem_mib_ms is None or not self.mem_seen_ms:
            return None
        return self.mem_mib_ms * MIB // self.mem_seen_ms


@dataclass(frozen=True)
class Point:
    """One bucket of a row's series: `step` seconds from `at` (CLOCK_REALTIME, seconds)."""

    at: int
    step: int
    busy_ns: int
    closed_preempted_ns: int
    closed_share_ns: int
    launches: int
    mem_used: int | None


@dataclass(frozen=True)
class CardPoint:
    """One bucket of a card's series; `util` is the mean percent."""

    uuid: str
    node: str
    card_index: int | None
    at: int
    step: int
    util: float | None
    mem_used: int | None


COLUMNS = tuple("class" if name == "job_class" else name for name in Usage._fields)


def migrations() -> list[tuple[int, str]]:
    """The numbered SQL files that ship, in order."""
    found = []
    for entry in resources.files("enforcer.ledger").joinpath("sql").iterdir():
        if match := re.fullmatch(r"([0-9]{4})_[a-z0-9_]+\.sql", entry.name):
            found.append((int(match[1]), entry.read_text()))
    return sorted(found)


def fit(value: int) -> int:
    """Clamp to SQLite's signed 64 bits; no real value is larger."""
    return value if 0 <= value < 2**63 else 2**63 - 1 if value > 0 else 0


def fitted(values: tuple[int, ...]) -> tuple[int, ...]:
    """Clamp several; the same object if all fit, which is nearly always."""
    return (
        values if values and min(values) >= 0 and max(values) < 2**63 else tuple(map(fit, values))
    )
