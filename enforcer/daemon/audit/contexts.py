"""What a context costs: learned from NVML, and charged through the arbiter.

The shim reserves it before a context is made. What it costs is known afterwards: what NVML sees of
a process, less what its shim counts. Numbers of contexts are hints of the job. So a learned cost
stays within twice and half of the configured one, which also bounds what one job can do to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.daemon.arbiter.port import Arbiter, ArbiterError, ProcessUse
from enforcer.nvml.port import GpuProcess

Key = tuple[int, str]  # job and card
# Contexts of one process that the audit excuses. A job says itself how many it has, and programs
# have one, or with libraries of their own two or three.
EXCUSED = 4


def measured(found: Iterable[GpuProcess], uses: Mapping[int, ProcessUse]) -> int | None:
    """Bytes of one context, of the process of a tenant where it costs least: others have loaded
    more modules.

    None: no process tells. While a call of the driver is under way it does not.
    """
    costs = [
        (seen.mem_used - use.mem_used + use.mem_contexts) // use.contexts
        for seen in found
        if seen.mem_used is not None
        and (use := uses.get(seen.pid)) is not None
        and use.contexts
        and not use.mem_pending
    ]
    return min(costs, default=None)


def beyond(seen: GpuProcess, use: ProcessUse, pending: int, cost: int) -> int:
    """Bytes of a process that the driver counts and its slot does not, once it gave back what it
    reserved above the cost of its contexts.
    """
    spare = max(0, use.mem_contexts - use.contexts * cost)
    return max(0, (seen.mem_used or 0) - (use.mem_used - spare) - pending)


def excused(uses: Iterable[ProcessUse], cost: int, cap: int, servers: int = 0) -> int:
    """Bytes above the cap that contexts of a job explain: what they cost beyond what was reserved.

    Each of its MPS servers has one, which nothing reserved. At most half the cap, so that no job
    may hide memory as contexts.
    """
    more = (min(use.contexts, EXCUSED) * cost - use.mem_contexts for use in uses)
    return min(sum(max(0, size) for size in more) + servers * cost, cap // 2)


@dataclass
class ContextCosts:
    """The cost of a context by job and card, in bytes."""

    configured: int
    _jobs: dict[Key, int] = field(default_factory=dict)
    _cards: dict[str, int] = field(default_factory=dict)

    def of(self, job_id: int, uuid: str, found: int | None = None) -> int:
        """What was found just now, else the job's own, else the last on this card when the job was
        first asked for, else the configured one.
        """
        if found is not None:
            return min(max(found, self.configured // 2), 2 * self.configured)
        last = self._cards.get(uuid, self.configured)
        return self._jobs.setdefault((job_id, uuid), last)

    def learn(self, measured: Mapping[Key, int]) -> None:
        """Take measured costs over. Others begin with no more than the configured one: the least
        share has room for that.
        """
        for (job_id, uuid), found in measured.items():
            self._jobs[job_id, uuid] = cost = self.of(job_id, uuid, found)
            self._cards[uuid] = min(cost, self.configured)

    def ended(self, job_id: int) -> None:
        """A job's grant ended."""
        self._jobs = {key: cost for key, cost in self._jobs.items() if key[0] != job_id}


@dataclass
class Charges:
    """Sends the arbiter what changed: overhead, and the cost of the next context."""

    arbiter: Arbiter
    costs: ContextCosts
    _sent: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def send(self, overhead: Mapping[Key, int]) -> None:
        """Send changed charges. `forget` makes the next call send all."""
        for (job_id, uuid), size in overhead.items():
            charge = size, self.costs.of(job_id, uuid)
            if self._sent.get((job_id, uuid)) == charge:
                continue
            try:
                self.arbiter.overhead(job_id, uuid, *charge)
            except ArbiterError:
                return  # a new connection begins with `forget`
            self._sent[job_id, uuid] = charge

    def forget(self) -> None:
        """The arbiter is another one: it has only the grants."""
        self._sent.clear()

    def ended(self, job_id: int) -> None:
        """A job's grant ended: a later run of it starts with a new tenant."""
        self.costs.ended(job_id)
        self._sent = {key: charge for key, charge in self._sent.items() if key[0] != job_id}
