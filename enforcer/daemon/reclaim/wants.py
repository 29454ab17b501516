"""What allocations of jobs wait for, as the arbiter reports it, and what became of retries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.reclaim.model import Want
from enforcer.wire.messages import Want as Report

# The shim tries again within microseconds. A process that gets no processor needs longer; judged
# too early, one more job leaves than must.
SETTLE_NS = 10**9
Key = tuple[int, str]  # job and card


@dataclass
class _Entry:
    pids: dict[int, int] = field(default_factory=dict)
    asked_ns: int | None = None
    free: int = -1  # when it was asked

    @property
    def size(self) -> int:
        return sum(self.pids.values())


@dataclass
class Wants:
    """All that is waited for."""

    clock: Clock
    _entries: dict[Key, _Entry] = field(default_factory=dict)

    def note(self, reports: Iterable[Report]) -> bool:
        """Take the arbiter's reports; whether something is waited for that was not before."""
        news = False
        for report in reports:
            entry = self._entries.setdefault((report.job_id, report.uuid), _Entry())
            before = entry.size
            if report.wanted:
                entry.pids[report.pid] = report.wanted
            else:
                entry.pids.pop(report.pid, None)
            news = news or entry.size > before
        self._sweep()
        return news

    def _sweep(self) -> None:
        """Forget what was served; a refusal right after a retry still belongs to it."""
        now = self.clock.monotonic_ns()
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if entry.size or (entry.asked_ns is not None and now - entry.asked_ns < SETTLE_NS)
        }

    def asked(self, job_id: int, uuid: str, free: int) -> None:
        """A retry was ordered while so much was free."""
        entry = self._entries.get((job_id, uuid))
        if entry is not None:
            entry.asked_ns, entry.free = self.clock.monotonic_ns(), free

    def of(self, job_id: int) -> dict[str, Want]:
        """What the job waits for, by card."""
        now = self.clock.monotonic_ns()
        found = {}
        for (job, uuid), entry in self._entries.items():
            if job == job_id and entry.size:
                asked = entry.asked_ns is not None and now - entry.asked_ns < SETTLE_NS
                found[uuid] = Want(entry.size, entry.free, asked)
        return found

    def cards(self) -> set[str]:
        """The cards whose memory some allocation waits for."""
        return {uuid for (_, uuid), entry in self._entries.items() if entry.size}

    def ended(self, job_id: int) -> None:
        """The job's grant ended."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != job_id}

    def clear(self) -> None:
        """Another arbiter tells all anew."""
        self._entries.clear()
