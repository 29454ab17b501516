"""What NVML sees against what is granted and registered. Pure: one look at the cards in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.daemon.arbiter import ProcessUse
from enforcer.nvml import CardUsage, GpuProcess
from gres.grants import Grant, GrantCard

# Looks in a row before a finding is said. A process registers a moment after its context appears, and memory
# may be freed between two of our own questions.
PATIENCE = {"stranger": 3, "unregistered": 3, "over": 2, "unaccounted": 2}
SUSPICIOUS = 30  # ten looks at processes without the shim, each for less than our patience


@dataclass(frozen=True)
class Finding:
    """One thing that is not as granted. `pids` are the processes that it is about; figures are not compared.

    stranger: a process of no job with a grant for this card. unregistered: of such a job, without the shim.
    over: the job holds more than its cap plus slack. unaccounted: the card holds more than its processes do.
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
    these that no shim counts. `complete`: of every tenant that part could be told.
    """

    findings: frozenset[Finding]
    memory: dict[tuple[int, str], int]
    overhead: dict[tuple[int, str], int]
    complete: bool = True


@dataclass(frozen=True)
class Registered:
    """The arbiter's list, before and after NVML was asked; `dead` are charged apart until NVML lets go.

    None where there is no list: then nobody counts as unregistered, and nothing as overhead.
    """

    before: Iterable[ProcessUse] | None
    after: Iterable[ProcessUse] | None
    dead: frozenset[tuple[str, int]] = frozenset()


class _Card:
    """The look at one card."""

    def __init__(self, uuid: str, usage: CardUsage, owners: dict[int, GrantCard], slack: int) -> None:
        self.uuid, self.usage, self.owners, self.slack = uuid, usage, owners, slack
        self.jobs: dict[int, list[GpuProcess]] = {}
        self.findings: list[Finding] = []

    def sort(
        self,
        known: set[tuple[int, int]],
        job_of: Callable[[int], int | None],
        dead: frozenset[tuple[str, int]],
    ) -> None:
        """Find the job of each process; the arbiter proved it for those that registered."""
        names = {pid: job for job, pid in known}
        for process in self.usage.processes:
            if (self.uuid, process.pid) in dead:
                continue
            job = names.get(process.pid) or job_of(process.pid)
            if job in self.owners:
                self.jobs.setdefault(job or 0, []).append(process)
            else:
                figures = self._figures([process])
                self.findings.append(
                    Finding("stranger", self.uuid, job, process.pid, (process.pid,), figures)
                )

    def judge(self, governed: Iterable[int], known: set[tuple[int, int]] | None) -> None:
        """Compare each governed job with its list and its cap; then the card with its processes."""
        for job in governed:
            found = self.jobs.get(job, [])
            unknown = [p for p in found if known is not None and (job, p.pid) not in known]
            for process in unknown:
                figures = self._figures([process])
                self.findings.append(
                    Finding("unregistered", self.uuid, job, process.pid, (process.pid,), figures)
                )
            held, cap = _sum(found), self.owners[job].mem_cap
            if held > cap + self.slack:
                pids = tuple(process.pid for process in found)
                self.findings.append(
                    Finding("over", self.uuid, job, None, pids, {"mem": held, "mem_cap": cap})
                )
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
    for grant in grants:
        for card in grant.cards:
            owners.setdefault(card.uuid, {})[grant.job_id] = card
            if grant.state == "active":
                active.setdefault(card.uuid, set()).add(grant.job_id)
    before, after = _held(registered.before), _held(registered.after)
    listed = _known((before, after))
    findings: set[Finding] = set()
    memory: dict[tuple[int, str], int] = {}
    overhead: dict[tuple[int, str], int] = {}
    complete = True
    for uuid, seen in usage.items():
        one = _Card(uuid, seen, owners.get(uuid, {}), slack)
        known = None if listed is None else listed.get(uuid, set())
        one.sort(known or set(), job_of, registered.dead)
        governed = sorted(active.get(uuid, ()))
        one.judge(governed, known)
        findings.update(one.findings)
        memory |= {(job, uuid): _sum(found) for job, found in one.jobs.items()}
        for job in governed:
            extra = _overhead(one.jobs.get(job, []), before, after, (job, uuid))
            complete = complete and extra is not None
            if extra is not None:
                overhead[job, uuid] = extra
    return Look(frozenset(findings), memory, overhead, complete)


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


class Patience:
    """Says each finding once, and only when it was there for some looks in a row.

    A job that changes its processes is not given patience anew each time: once it had one or another without the
    shim in ten looks or so, each further one is found at first sight.
    """

    def __init__(self) -> None:
        self._seen: dict[Finding, int] = {}
        self._said: set[Finding] = set()
        self._suspicion: dict[tuple[int | None, str], int] = {}

    def ripe(self, findings: Iterable[Finding], unable: Collection[Finding] = ()) -> list[Finding]:
        """Findings to act upon now. `unable`: those of them that cannot help it; their patience begins anew."""
        before = self._seen
        self._seen = {f: 0 if f in unable else before.get(f, 0) + 1 for f in findings}
        self._said &= self._seen.keys()
        self._suspect(
            {(f.job_id, f.uuid) for f in self._seen if f.kind == "unregistered" and f not in unable}
        )
        due = [finding for finding, looks in self._seen.items() if looks >= self._needed(finding)]
        fresh = [finding for finding in due if finding not in self._said]
        self._said.update(fresh)
        return fresh

    def _suspect(self, found: set[tuple[int | None, str]]) -> None:
        """A look with such a process counts three times as much as one without: pauses do not make up for it."""
        before = self._suspicion
        scores = {key: before.get(key, 0) + (3 if key in found else -1) for key in before.keys() | found}
        self._suspicion = {key: min(score, SUSPICIOUS + 9) for key, score in scores.items() if score > 0}

    def _needed(self, finding: Finding) -> int:
        suspicion = self._suspicion.get((finding.job_id, finding.uuid), 0)
        shifty = finding.kind == "unregistered" and suspicion >= SUSPICIOUS
        return 1 if shifty else PATIENCE[finding.kind]

    @property
    def pending(self) -> bool:
        """Whether something was seen that is not said yet."""
        return not self._said >= self._seen.keys()
