"""Compares a job's GPU time by NVML with the time that the ledger booked, over a sliding window.

A shim that reports false kernel times is charged too little, so its job exceeds its share. NVML
counts the time in which a process had a kernel on the card. The ledger books the arbiter's counter
`busy_ns`. This module is pure: figures go in, keys of jobs come out.

NVML time is never overestimated. Each of its figures is the average of about the last second:

* booked time counts from one second before the last sample that precedes the window;
* samples more than a second apart count as one second;
* polls far apart start a new window: an arbiter that could not run books a few seconds at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from enforcer.daemon.arbiter.port import Tenant

SPAN_NS = 10**9  # ns: NVML averages utilisation over one second at most
# ns: lateness after which a poll starts a new window; with the default pace a gap of 4 s
LATE_NS = 2 * 10**9
WINDOWS_NEEDED = 2  # windows in a row above the limit, since one may be a coincidence
Key = tuple[int, str]  # job and card
Members = Mapping[Key, frozenset[int]]
NO_PIDS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Excess:
    """GPU time in percent of the window: by NVML for all processes of the job, and as booked."""

    busy_percent: int
    booked_percent: int
    window_s: int


class _Point(NamedTuple):
    at_ns: int
    sampled_ns: int  # time of the last NVML sample before it
    nvml_ns: int
    booked_ns: int


@dataclass
class _Record:
    """One job on one card. `since`: start of arbiter and tenant; another
    value starts a new window.
    """

    since: tuple[int, int]
    nvml_ns: int = 0
    points: deque[_Point] = field(default_factory=deque)
    over: int = 0
    excess: Excess | None = None


class BusyWatch:
    """Finds jobs whose GPU time by NVML exceeds the booked time in two windows in a row.

    Call `add_poll` with the last poll of the arbiter, then `add_sample` with the NVML sample.
    `pace_ns` is the period of polls.
    """

    def __init__(self, window_ns: int, slack: int, pace_ns: int) -> None:
        self._window_ns, self._slack, self._gap_ns = window_ns, slack, pace_ns + LATE_NS
        self._records: dict[Key, _Record] = {}
        self._sampled_ns: int | None = None
        self._polled_ns = self._last_poll_ns = 0
        self._members: Members = {}

    def add_sample(
        self, now_ns: int, busy: Mapping[str, Mapping[int, int] | None], members: Members
    ) -> None:
        """Add one NVML sample: percent by card and process (None: not reported), and registered
        processes.

        A process that ended since the last sample still counts: NVML may report it late.
        """
        before, self._members = self._members, members
        span = 0 if self._sampled_ns is None else min(now_ns - self._sampled_ns, SPAN_NS)
        self._sampled_ns = now_ns
        for key, record in list(self._records.items()):
            rows = busy.get(key[1])
            if rows is None:
                del self._records[key]
            elif rows:
                pids = members.get(key, NO_PIDS)
                if members is not before:
                    pids |= before.get(key, NO_PIDS)
                record.nvml_ns += span * min(100, sum([rows.get(pid, 0) for pid in pids])) // 100

    def note_poll(self, now_ns: int) -> None:
        """Note a poll of the arbiter, whether or not an NVML sample follows."""
        before, self._last_poll_ns = self._last_poll_ns, now_ns
        if now_ns - before > self._gap_ns:
            self._records.clear()

    def add_poll(self, polled_ns: int, tenants: Iterable[Tenant], reporting: Iterable[str]) -> None:
        """Add the counters of one poll; the same poll again changes nothing.

        `reporting`: cards for which NVML reports utilisation.
        """
        if polled_ns == self._polled_ns:
            return
        sampled_ns = polled_ns if self._sampled_ns is None else self._sampled_ns
        self._polled_ns, before, cards = polled_ns, self._records, frozenset(reporting)
        self._records = {}
        for tenant in tenants:
            sample = tenant.sample
            key, since = (sample.job_id, sample.uuid), (sample.boot_id, sample.tenant_since)
            if not tenant.measured or sample.uuid not in cards:
                continue
            record = before.get(key)
            fresh = record is None or record.since != since
            self._records[key] = record = _Record(since) if fresh or record is None else record
            self._compare(record, _Point(polled_ns, sampled_ns, record.nvml_ns, sample.busy_ns))

    def _compare(self, record: _Record, now: _Point) -> None:
        points = record.points
        points.append(now)
        record.excess = self._excess(points, now)
        record.over = record.over + 1 if record.excess is not None else 0

    def _excess(self, points: deque[_Point], now: _Point) -> Excess | None:
        """The excess; None if there is none, or the window is not full yet."""
        begin, latest_ns = None, now.at_ns - self._window_ns
        for point in points:
            if point.at_ns > latest_ns:
                break
            begin = point
        if begin is None:
            return None
        earlier_ns = begin.sampled_ns - SPAN_NS
        while len(points) > 1 and points[1].at_ns <= earlier_ns:
            points.popleft()
        if points[0].at_ns > earlier_ns:
            return None
        length = now.at_ns - begin.at_ns
        reporting, booked = now.nvml_ns - begin.nvml_ns, now.booked_ns - points[0].booked_ns
        if reporting - booked <= length * self._slack // 100:
            return None
        return Excess(100 * reporting // length, 100 * booked // length, round(length / 10**9))

    @property
    def over(self) -> dict[Key, Excess]:
        """The jobs above the limit in two windows in a row."""
        return {
            key: record.excess
            for key, record in self._records.items()
            if record.over >= WINDOWS_NEEDED and record.excess is not None
        }

    def forget(self, key: Key) -> None:
        """Start a new window for a job whose processes were acted upon: its next ones begin at
        zero.
        """
        self._records.pop(key, None)

    def clear(self) -> None:
        """Start new windows for all jobs, since another arbiter counts from zero."""
        self._records.clear()
