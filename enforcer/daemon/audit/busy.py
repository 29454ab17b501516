"""What the driver says that a job did on a card against what the ledger booked for it, over a sliding window.

A job whose shim lies about its kernels is charged too little, and so takes more than its share. NVML counts the time in
which a process had a kernel on the card; the arbiter's counter `busy_ns` is what the ledger books. Pure: figures in,
keys of jobs out.

NVML's figures are averages of about the last second. So the booked time counts from one second before the last look
that the window leaves out to a poll after its last look, and a look later than a second after the last one is taken for
one second: what is told is never more than what was. Polls far apart begin anew: an arbiter that could not run books
no more than a few seconds of what ran meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from enforcer.daemon.arbiter.port import Tenant

SPAN_NS = 10**9  # what one of NVML's figures is the average of, at most
LATE_NS = 2 * 10**9  # how late a poll may come: with the default pace the 4 s that the policy books of a gap
TWICE = 2  # windows in a row, each a poll of the arbiter after the other
Key = tuple[int, str]  # a job on a card
Members = Mapping[Key, frozenset[int]]
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Excess:
    """Percent of the window: what NVML tells of all processes of the job, and what was booked."""

    busy_percent: int
    booked_percent: int
    window_s: int


class _Point(NamedTuple):
    at_ns: int
    looked_ns: int  # the last look before it
    told_ns: int
    booked_ns: int


@dataclass
class _Record:
    """One job on one card. `since`: the arbiter's start and the tenant's: with others it counts from zero."""

    since: tuple[int, int]
    told_ns: int = 0
    points: deque[_Point] = field(default_factory=deque)
    over: int = 0
    excess: Excess | None = None


class BusyWatch:
    """Fed with each look: `book` what was polled before it, then `take` it; `over` says of which jobs more was seen
    than booked, twice. `pace_ns`: from poll to poll."""

    def __init__(self, window_ns: int, slack: int, pace_ns: int) -> None:
        self._window_ns, self._slack, self._gap_ns = window_ns, slack, pace_ns + LATE_NS
        self._records: dict[Key, _Record] = {}
        self._looked_ns: int | None = None
        self._polled_ns = self._heard_ns = 0
        self._members: Members = {}

    def take(self, now_ns: int, busy: Mapping[str, Mapping[int, int] | None], members: Members) -> None:
        """One look: percent by process and card (None: not told), and the registered processes of each job.

        A process that ended since the last look still counts: its figure may come after it.
        """
        before, self._members = self._members, members
        span = 0 if self._looked_ns is None else min(now_ns - self._looked_ns, SPAN_NS)
        self._looked_ns = now_ns
        for key, record in list(self._records.items()):
            rows = busy.get(key[1])
            if rows is None:
                del self._records[key]
            elif rows:
                pids = members.get(key, NOBODY)
                if members is not before:
                    pids |= before.get(key, NOBODY)
                record.told_ns += span * min(100, sum([rows.get(pid, 0) for pid in pids])) // 100

    def polled(self, now_ns: int) -> None:
        """A poll of the arbiter, whether or not somebody looks before the next."""
        before, self._heard_ns = self._heard_ns, now_ns
        if now_ns - before > self._gap_ns:
            self._records.clear()

    def book(self, polled_ns: int, tenants: Iterable[Tenant], told: Iterable[str]) -> None:
        """What the arbiter counted by then; the same again says nothing new. `told`: cards with utilisation."""
        if polled_ns == self._polled_ns:
            return
        looked_ns = polled_ns if self._looked_ns is None else self._looked_ns
        self._polled_ns, before, cards = polled_ns, self._records, frozenset(told)
        self._records = {}
        for tenant in tenants:
            sample = tenant.sample
            key, since = (sample.job_id, sample.uuid), (sample.boot_id, sample.tenant_since)
            if not tenant.measured or sample.uuid not in cards:
                continue
            record = before.get(key)
            fresh = record is None or record.since != since
            self._records[key] = record = _Record(since) if fresh or record is None else record
            self._compare(record, _Point(polled_ns, looked_ns, record.told_ns, sample.busy_ns))

    def _compare(self, record: _Record, now: _Point) -> None:
        points = record.points
        points.append(now)
        record.excess = self._excess(points, now)
        record.over = record.over + 1 if record.excess is not None else 0

    def _excess(self, points: deque[_Point], now: _Point) -> Excess | None:
        """How far above; None where it is not, or the window is not full yet."""
        begin, latest_ns = None, now.at_ns - self._window_ns
        for point in points:
            if point.at_ns > latest_ns:
                break
            begin = point
        if begin is None:
            return None
        earlier_ns = begin.looked_ns - SPAN_NS
        while len(points) > 1 and points[1].at_ns <= earlier_ns:
            points.popleft()
        if points[0].at_ns > earlier_ns:
            return None
        length = now.at_ns - begin.at_ns
        told, booked = now.told_ns - begin.told_ns, now.booked_ns - points[0].booked_ns
        if told - booked <= length * self._slack // 100:
            return None
        return Excess(100 * told // length, 100 * booked // length, round(length / 10**9))

    @property
    def over(self) -> dict[Key, Excess]:
        """The jobs that did more than was booked, in two windows in a row."""
        return {
            key: record.excess
            for key, record in self._records.items()
            if record.over >= TWICE and record.excess is not None
        }

    def forget(self, key: Key) -> None:
        """Begin anew with a job: its processes were dealt with, and what they did is not its next ones'."""
        self._records.pop(key, None)

    def clear(self) -> None:
        """Begin anew with all: another arbiter counts."""
        self._records.clear()
