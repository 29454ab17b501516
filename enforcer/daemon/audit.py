"""What NVML sees against what is granted. Pure: one look at the cards in, findings and memory per job out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from enforcer.nvml import GpuProcess
from gres.grants import Grant

# Looks in a row before a finding is said: a process registers a moment after its context appears.
PATIENCE = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is not as granted. `pid` is one of the processes, to start looking with."""

    kind: str  # stranger: no job with a grant for this card; unregistered: of such a job, but not a tenant
    uuid: str
    pid: int
    job_id: int | None


@dataclass(frozen=True)
class Look:
    """The result of one audit: findings, and bytes per (job, card) as the driver counts them."""

    findings: frozenset[Finding]
    memory: dict[tuple[int, str], int]


def audit(
    processes: Mapping[str, Iterable[GpuProcess]],
    grants: Iterable[Grant],
    registered: Mapping[tuple[int, str], int],
    job_of: Callable[[int], int | None],
) -> Look:
    """Compare the processes per card with the grants and with how many processes each tenant registered.

    The arbiter tells numbers of processes, not their ids: with more processes on the card than registered,
    the youngest (largest pid) is named.
    """
    states = {(grant.job_id, card.uuid): grant.state for grant in grants for card in grant.cards}
    findings: set[Finding] = set()
    memory: dict[tuple[int, str], int] = {}
    for uuid, found in processes.items():
        per_job: dict[int, list[int]] = {}
        for process in found:
            job = job_of(process.pid)
            if job is None or (job, uuid) not in states:
                findings.add(Finding("stranger", uuid, process.pid, job))
                continue
            per_job.setdefault(job, []).append(process.pid)
            if process.mem_used is not None:
                memory[job, uuid] = memory.get((job, uuid), 0) + process.mem_used
        for job, pids in per_job.items():
            if states[job, uuid] == "active" and len(pids) > registered.get((job, uuid), 0):
                findings.add(Finding("unregistered", uuid, max(pids), job))
    return Look(frozenset(findings), memory)


class Patience:
    """Says each finding once, and only when it was there for PATIENCE looks in a row."""

    def __init__(self) -> None:
        self._seen: dict[Finding, int] = {}

    def ripe(self, findings: Iterable[Finding]) -> list[Finding]:
        """Findings to say now."""
        self._seen = {finding: self._seen.get(finding, 0) + 1 for finding in findings}
        return [finding for finding, looks in self._seen.items() if looks == PATIENCE]
