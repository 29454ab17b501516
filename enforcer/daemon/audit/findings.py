"""What NVML sees against what is granted and registered. Pure: one look at the cards in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.nvml.port import CardUsage, GpuProcess
from gres.grant.store import Grant, GrantCard


@dataclass(frozen=True)
class Finding:
    """One thing that is not as granted. `pids` are the processes that it is about; figures are not compared.

    stranger: a process of no job, on a card that some job was granted. ungranted: of a job, on a card that this job
    was not granted. unregistered: on a card that it was granted, without the shim. over: the job holds more than its
    cap plus slack. busy: it did more than is booked. unaccounted: the card holds more than its processes do.
    """

    kind: str
    uuid: str
    job_id: int | None = None
    pid: int | None = None
    pids: tuple[int, ...] = field(default=(), compare=False)
    figures: dict[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Look:
    """The result of one audit: findings, bytes per (job, card) as the driver counts them, and the part of
    these that no shim counts. `complete`: of every tenant that part could be told. `members`: registered
    processes of governed jobs, by (job, card).
    """

    findings: frozenset[Finding]
    memory: dict[tuple[int, str], int]
    overhead: dict[tuple[int, str], int]
    complete: bool = True
    members: dict[tuple[int, str], frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Registered:
    """The arbiter's list, before and after NVML was asked; `dead` are charged apart until NVML lets go. `orphans`
    died under a former arbiter, whose successor knows nothing of them: they count as what their job holds.

    None where there is no list: then nobody counts as unregistered, and nothing as overhead.
    """

    before: Iterable[ProcessUse] | None
    after: Iterable[ProcessUse] | None
    dead: frozenset[tuple[str, int]] = frozenset()
    orphans: Mapping[tuple[str, int], int] = field(default_factory=dict)  # job of (card, pid)


class _Card:
    """The look at one card."""

    def __init__(self, uuid: str, usage: CardUsage, owners: dict[int, GrantCard], slack: int) -> None:
        self.uuid, self.usage, self.owners, self.slack = uuid, usage, owners, slack
        self.jobs: dict[int, list[GpuProcess]] = {}
        self.findings: list[Finding] = []

    def sort(
        self,
        names: Mapping[int, int],
        job_of: Callable[[int], int | None],
        jobs: Container[int | None],
        dead: frozenset[tuple[str, int]],
    ) -> None:
        """Find the job of each process; the arbiter proved it for those that registered (`names`, on any card)."""
        for process in self.usage.processes:
            if (self.uuid, process.pid) in dead:
                continue
            job = names.get(process.pid) or job_of(process.pid)
            if job in self.owners:
                self.jobs.setdefault(job or 0, []).append(process)
            elif job in jobs:
                self._find("ungranted", job, process)
            elif self.owners:  # on a card that nobody was granted, anybody may work whom qgpu does not know
                self._find("stranger", job, process)

    def _find(self, kind: str, job: int | None, process: GpuProcess) -> None:
        figures = self._figures([process])
        self.findings.append(Finding(kind, self.uuid, job, process.pid, (process.pid,), figures))

    def members(self, job: int, known: set[tuple[int, int]] | None) -> frozenset[int]:
        """Those processes of a job whose work is booked: the registered ones; all where there is no list."""
        found = self.jobs.get(job, [])
        return frozenset(p.pid for p in found if known is None or (job, p.pid) in known)

    def judge(self, governed: Iterable[int], known: set[tuple[int, int]] | None) -> None:
        """Compare each governed job with its list and its cap; then the card with its processes."""
        for job in governed:
            found = self.jobs.get(job, [])
            unknown = [p for p in found if known is not None and (job, p.pid) not in known]
            for process in unknown:
                self._find("unregistered", job, process)
            held, cap = _sum(found), self.owners[job].mem_cap
            if held > cap + self.slack:
                pids = tuple(process.pid for process in found)
                self.findings.append(
                    Finding("over", self.uuid, job, None, pids, {"mem": held, "mem_cap": cap})
                )
        if self.owners:
            self._totals()

    def _totals(self) -> None:
        held, used = _sum(self.usage.processes), self.usage.used
        unknown = any(process.mem_used is None for process in self.usage.processes)
        if used is not None and not unknown and abs(used - held) > self.slack:
            self.findings.append(
                Finding("unaccounted", self.uuid, figures={"mem_card": used, "mem_processes": held})
            )

    def _figures(self, processes: list[GpuProcess]) -> dict[str, int]:
        told = self.usage.busy or {}
        busy = [told[p.pid] for p in processes if p.pid in told]
        return {"mem": _sum(processes)} | ({"busy_percent": sum(busy)} if busy else {})


def _sum(processes: Iterable[GpuProcess]) -> int:
    return sum(process.mem_used or 0 for process in processes)


def audit(
    usage: Mapping[str, CardUsage],
    grants: Iterable[Grant],
    registered: Registered,
    job_of: Callable[[int], int | None],
    slack: int,
) -> Look:
    """Compare what NVML says of the cards with the grants and the registered processes. `slack` is bytes."""
    active: dict[str, set[int]] = {}
    owners: dict[str, dict[int, GrantCard]] = {}
    jobs: set[int | None] = set()
    for grant in grants:
        jobs.add(grant.job_id)
        for card in grant.cards:
            owners.setdefault(card.uuid, {})[grant.job_id] = card
            if grant.state == "active":
                active.setdefault(card.uuid, set()).add(grant.job_id)
    before, after = _held(registered.before), _held(registered.after)
    listed = _known((before, after))
    names = {pid: job for known in (listed or {}).values() for job, pid in known}
    findings: set[Finding] = set()
    memory: dict[tuple[int, str], int] = {}
    overhead: dict[tuple[int, str], int] = {}
    members: dict[tuple[int, str], frozenset[int]] = {}
    complete = True
    for uuid, seen in usage.items():
        one = _Card(uuid, seen, owners.get(uuid, {}), slack)
        orphans = {(job, pid) for (card, pid), job in registered.orphans.items() if card == uuid}
        known = None if listed is None else listed.get(uuid, set()) | orphans
        one.sort(names | {pid: job for job, pid in orphans}, job_of, jobs, registered.dead)
        governed = sorted(active.get(uuid, ()))
        one.judge(governed, known)
        findings.update(one.findings)
        memory |= {(job, uuid): _sum(found) for job, found in one.jobs.items()}
        members |= {(job, uuid): one.members(job, known) for job in governed}
        for job in governed:
            extra = _overhead(one.jobs.get(job, []), before, after, (job, uuid))
            complete = complete and extra is not None
            if extra is not None:
                overhead[job, uuid] = extra
    return Look(frozenset(findings), memory, overhead, complete, members)


Held = dict[tuple[int, str], dict[int, int]]  # bytes by process, by (job, card)


def _held(listed: Iterable[ProcessUse] | None) -> Held | None:
    if listed is None:
        return None
    held: Held = {}
    for use in listed:
        held.setdefault((use.job_id, use.uuid), {})[use.pid] = use.mem_used
    return held


def _known(lists: tuple[Held | None, Held | None]) -> dict[str, set[tuple[int, int]]] | None:
    """(job, pid) of everybody in either list, by card."""
    known: dict[str, set[tuple[int, int]]] = {}
    for held in lists:
        if held is None:
            return None
        for (job, uuid), pids in held.items():
            known.setdefault(uuid, set()).update((job, pid) for pid in pids)
    return known


def _overhead(
    found: list[GpuProcess], before: Held | None, after: Held | None, key: tuple[int, str]
) -> int | None:
    """Bytes of a tenant that the driver counts and no shim does; None while that cannot be told.

    A process that allocates while we look would be charged twice, so a moment is used only when the ledger
    said the same before and after it. A process without shim counts in full.
    """
    if before is None or after is None:
        return None
    held = after.get(key, {})
    if before.get(key, {}) != held:
        return None
    return sum(max(0, p.mem_used - held.get(p.pid, 0)) for p in found if p.mem_used is not None)
