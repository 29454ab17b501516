"""Compares one NVML sample with grants and registrations. Pure: cards in, findings out."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit.contexts import beyond, excused, measured
from enforcer.nvml.port import CardUsage, GpuProcess
from enforcer.wire.layout import MAX_PROCS
from gres.grant.store import Grant, GrantCard


@dataclass(frozen=True)
class Finding:
    """One fault. `pids` are the processes concerned; `pids` and `figures` are not compared.

    Kinds:

    * stranger: a process of no job on a granted card
    * ungranted: a process of a job on a card that this job was not granted
    * unregistered: a process without the shim on a card of its job, and no server of MPS
    * over: the job holds more than its cap plus slack
    * busy: the job used more GPU time than was booked
    * unaccounted: the card holds more or less than its processes do
    """

    kind: str
    uuid: str
    job_id: int | None = None
    pid: int | None = None
    pids: tuple[int, ...] = field(default=(), compare=False)
    figures: dict[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class AuditResult:
    """The result of one audit.

    `memory` is bytes per (job, card) by the driver, `overhead` the part of them that no shim
    counts. `complete`: the overhead of every tenant is known. `members`: registered processes of
    governed jobs by (job, card), and their MPS servers. `contexts`: measured bytes of one context.
    """

    findings: frozenset[Finding]
    memory: dict[tuple[int, str], int]
    overhead: dict[tuple[int, str], int]
    complete: bool = True
    members: dict[tuple[int, str], frozenset[int]] = field(default_factory=dict)
    contexts: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Registered:
    """The arbiter's list of processes, before and after NVML was asked.

    `dead` are charged separately until NVML stops listing them. `orphans` died under a former
    arbiter, so the present one does not know them: they count as held by their job. Without a list
    (None) no process counts as unregistered, and nothing as overhead.
    """

    before: Iterable[ProcessUse] | None
    after: Iterable[ProcessUse] | None
    dead: frozenset[tuple[str, int]] = frozenset()
    orphans: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (card, pid) -> job


class _Card:
    """The audit of one card."""

    def __init__(
        self, uuid: str, usage: CardUsage, owners: dict[int, GrantCard], slack: int
    ) -> None:
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
        """Find the job of each process; `names` are those that the
        arbiter verified, on any card.
        """
        for process in self.usage.processes:
            if (self.uuid, process.pid) in dead:
                continue
            job = names.get(process.pid) or job_of(process.pid)
            if job in self.owners:
                self.jobs.setdefault(job or 0, []).append(process)
            elif job in jobs:
                self._find("ungranted", job, process)
            elif self.owners:  # processes outside of jobs may use cards without a grant
                self._find("stranger", job, process)

    def _find(self, kind: str, job: int | None, process: GpuProcess) -> None:
        figures = self._figures([process])
        self.findings.append(Finding(kind, self.uuid, job, process.pid, (process.pid,), figures))

    def servers(
        self, job: int, uses: Mapping[int, ProcessUse], is_server: Callable[[int], bool]
    ) -> frozenset[int]:
        """MPS servers of a job. What counts a context of its own in its shim is none."""
        found = [p.pid for p in self.jobs.get(job, [])]
        return frozenset(
            pid for pid in found if not (pid in uses and uses[pid].contexts) and is_server(pid)
        )

    def members(self, job: int, registered: set[tuple[int, int]] | None) -> frozenset[int]:
        """Processes of a job whose work is booked: the registered ones, or all without a list."""
        found = self.jobs.get(job, [])
        return frozenset(p.pid for p in found if registered is None or (job, p.pid) in registered)

    def judge(
        self,
        governed: Iterable[int],
        registered: set[tuple[int, int]] | None,
        excuse: Callable[[int, int], int],
        servers: Mapping[int, Container[int]],
    ) -> None:
        """Compare each governed job with its registrations and its cap, then the card with its
        processes. `excuse`: bytes of a job's contexts above a cap. `servers` of MPS need not
        register.
        """
        for job in governed:
            found = self.jobs.get(job, [])
            unregistered = [
                p for p in found if registered is not None and (job, p.pid) not in registered
            ]
            for process in unregistered:
                if process.pid not in servers[job]:
                    self._find("unregistered", job, process)
            held, cap = _sum(found), self.owners[job].mem_cap
            if held > cap + self.slack and held > cap + self.slack + excuse(job, cap):
                pids = tuple(process.pid for process in found)
                self.findings.append(
                    Finding("over", self.uuid, job, None, pids, {"mem": held, "mem_cap": cap})
                )
        if self.owners:
            self._totals()

    def _totals(self) -> None:
        held, used = _sum(self.usage.processes), self.usage.used
        unsized = any(process.mem_used is None for process in self.usage.processes)
        if used is not None and not unsized and abs(used - held) > self.slack:
            self.findings.append(
                Finding("unaccounted", self.uuid, figures={"mem_card": used, "mem_processes": held})
            )

    def _figures(self, processes: list[GpuProcess]) -> dict[str, int]:
        percent = self.usage.busy or {}
        busy = [percent[p.pid] for p in processes if p.pid in percent]
        return {"mem": _sum(processes)} | ({"busy_percent": sum(busy)} if busy else {})


def _sum(processes: Iterable[GpuProcess]) -> int:
    return sum(process.mem_used or 0 for process in processes)


def audit(
    usage: Mapping[str, CardUsage],
    grants: Iterable[Grant],
    registered: Registered,
    job_of: Callable[[int], int | None],
    slack: int,
    cost: Callable[[int, str, int | None], int] = lambda job, uuid, found: found or 0,
    is_server: Callable[[int], bool] = lambda pid: False,
) -> AuditResult:
    """Compare NVML's view of the cards with grants and registered processes.

    `slack` is bytes, `cost` those of a context of a job on a card, if so many were measured.
    `is_server` tells a server of MPS by its pid.
    """
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
    listed = _registered((before, after))
    names = {pid: job for pids in (listed or {}).values() for job, pid in pids}
    findings: set[Finding] = set()
    memory: dict[tuple[int, str], int] = {}
    overhead: dict[tuple[int, str], int] = {}
    members: dict[tuple[int, str], frozenset[int]] = {}
    contexts: dict[tuple[int, str], int] = {}
    complete = True
    for uuid, seen in usage.items():
        one = _Card(uuid, seen, owners.get(uuid, {}), slack)
        orphans = {(job, pid) for (card, pid), job in registered.orphans.items() if card == uuid}
        present = None if listed is None else listed.get(uuid, set()) | orphans
        one.sort(names | {pid: job for job, pid in orphans}, job_of, jobs, registered.dead)
        governed = sorted(active.get(uuid, ()))
        each = {
            job: measured(one.jobs.get(job, []), (after or {}).get((job, uuid), {}))
            for job in governed
        }
        costs = {job: cost(job, uuid, found) for job, found in each.items()}
        servers = {
            job: one.servers(job, (after or {}).get((job, uuid), {}), is_server) for job in governed
        }
        excuse = functools.partial(_excuse, after or {}, costs, uuid, servers)
        one.judge(governed, present, excuse, servers)
        findings.update(one.findings)
        memory |= {(job, uuid): _sum(found) for job, found in one.jobs.items()}
        members |= {(job, uuid): one.members(job, present) | servers[job] for job in governed}
        for job in governed:
            extra = _overhead(one.jobs.get(job, []), before, after, (job, uuid), costs[job])
            complete = complete and extra is not None
            if extra is not None:
                overhead[job, uuid] = extra
                found = each[job]
                contexts |= {} if found is None else {(job, uuid): found}
    return AuditResult(frozenset(findings), memory, overhead, complete, members, contexts)


def _excuse(
    held: Held,
    costs: Mapping[int, int],
    uuid: str,
    servers: Mapping[int, Collection[int]],
    job: int,
    cap: int,
) -> int:
    return excused(held.get((job, uuid), {}).values(), costs[job], cap, len(servers[job]))


Held = dict[tuple[int, str], dict[int, ProcessUse]]  # (job, card) -> pid -> its bytes


def _held(listed: Iterable[ProcessUse] | None) -> Held | None:
    if listed is None:
        return None
    held: Held = {}
    for use in listed:
        held.setdefault((use.job_id, use.uuid), {})[use.pid] = use
    return held


def _registered(lists: tuple[Held | None, Held | None]) -> dict[str, set[tuple[int, int]]] | None:
    """(job, pid) of each process in either list, by card."""
    registered: dict[str, set[tuple[int, int]]] = {}
    for held in lists:
        if held is None:
            return None
        for (job, uuid), pids in held.items():
            registered.setdefault(uuid, set()).update((job, pid) for pid in pids)
    return registered


def _overhead(
    found: list[GpuProcess],
    before: Held | None,
    after: Held | None,
    key: tuple[int, str],
    cost: int,
) -> int | None:
    """Bytes of a tenant that the driver counts and no shim does; None if not known at present.

    A process that allocates during the audit would be charged twice. So a sample counts only if the
    arbiter listed the same bytes before and after it. What a call that has not returned asks for
    may be on the card already, and is counted as pending. A process without the shim counts in
    full.
    """
    if before is None or after is None:
        return None
    first, last = before.get(key, {}), after.get(key, {})
    if _fixed(first) != _fixed(last):
        return None
    pending = {p: max(use.mem_pending, first[p].mem_pending) for p, use in last.items()}
    none = ProcessUse(*key, 0, 0)
    return sum(
        beyond(p, last.get(p.pid, none), pending.get(p.pid, 0), cost)
        for p in found
        if p.mem_used is not None
    )


def _fixed(uses: Mapping[int, ProcessUse]) -> dict[int, tuple[int, int, int]]:
    return {pid: (use.mem_used, use.mem_contexts, use.contexts) for pid, use in uses.items()}


def full_tenants(registered: Iterable[ProcessUse]) -> set[tuple[int, str]]:
    """Tenants with as many processes as the arbiter takes."""
    counts = Counter((process.job_id, process.uuid) for process in registered)
    return {tenant for tenant, count in counts.items() if count >= MAX_PROCS}
