"""Runs the audit: asks NVML in its worker thread, compares, and acts as configured.

It also gives the arbiter what only NVML knows: bytes that no shim counts, and when the driver stops
listing a dead process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.arbiter.port import Arbiter, ArbiterError, ProcessUse
from enforcer.daemon.arbiter.sampling import Sampler
from enforcer.daemon.audit.busy import BusyWatch, Members
from enforcer.daemon.audit.confirmation import Confirmation, Exemptions
from enforcer.daemon.audit.contexts import Charges, ContextCosts
from enforcer.daemon.audit.enforcer import AuditEnforcer
from enforcer.daemon.audit.findings import AuditResult, Finding, Registered, audit, full_tenants
from enforcer.daemon.audit.mps import is_mps_server
from enforcer.daemon.audit.procs import ThreadBudget
from enforcer.daemon.log import emit
from enforcer.nvml.port import NvmlError
from enforcer.nvml.queries import UsageAnswer, UsageQuestion, pids_on
from enforcer.nvml.worker import NvmlCaller
from gres.config.enforcer import EnforcerSettings
from gres.grant.store import Grant
from gres.units import MIB

FULL_EACH = 10  # quick samples between full ones, in case something changed unseen
# polls for a dead process, 50 ms apart (2 s); then one per second, as the driver is slow
DEAD_SOON = 40
DEAD_EACH = 20  # polls between two reports to the arbiter, which must come within a minute
DEAD_SAID = 44  # polls after which a dead process is logged, since most vanish within seconds
# full samples after which NVML is opened anew for a failing card, as a reset may have cured it
REOPEN_EACH = 60
Process = tuple[str, int]  # card and pid


@dataclass
class Inspector:
    """Takes one sample per `sample` call, at most one at a time.

    `grants`, `cards` (all of the node) and `connected` are called when needed. A sample first asks
    the driver alone. Only a change, or an open finding or overhead, is compared with the arbiter's
    list: an idle node costs next to nothing.
    """

    settings: EnforcerSettings
    nvml: NvmlCaller
    arbiter: Arbiter
    grants: Callable[[], Mapping[int, Grant]]
    job_of: Callable[[int], int | None]
    cards: Callable[[], Collection[str]]
    connected: Callable[[], bool]
    sampler: Sampler
    alive: Callable[[int], bool]
    clock: Clock
    context: int = 0  # bytes of a context as configured
    threads: ThreadBudget = field(default_factory=ThreadBudget)
    charges: Charges = field(init=False)
    stopped: Callable[[int], bool | None] = field(init=False)
    enforcer: AuditEnforcer = field(init=False)
    busy: BusyWatch = field(init=False)
    _exemptions: Exemptions = field(init=False)
    _confirmation: Confirmation = field(init=False)
    _members: Members = field(default_factory=dict)
    _granted: tuple[object, list[str], frozenset[str]] = (None, [], frozenset())
    _sampling: bool = False
    _settled: object = None
    _seen: frozenset[Process] = frozenset()  # in the last full sample
    _failing_cards: frozenset[str] = frozenset()
    _full_samples: int = 0
    _quick_samples: int = 0
    _polling_dead: bool = False
    _failed: bool = False
    _dead: dict[Process, tuple[ProcessUse, int]] = field(default_factory=dict)
    _orphans: dict[Process, int] = field(default_factory=dict)
    _former: dict[Process, int] = field(default_factory=dict)  # registered with a former arbiter
    _dead_ticks: int = 0

    def __post_init__(self) -> None:
        audit = self.settings.audit
        self.charges = Charges(self.arbiter, ContextCosts(self.context))
        self.arbiter.ask_contexts(self.charges.costs.of)
        self.stopped, waits = self.threads.stopped, self.threads.stop_waits
        self.enforcer = AuditEnforcer(
            audit, self.clock, self.grants, self.job_of, lambda pid: self.stopped(pid), waits
        )
        self.busy = BusyWatch(
            audit.busy_window.ns, audit.busy_slack, self.settings.ledger_interval.ns
        )
        self._exemptions = Exemptions(audit.excuse.ns)
        self._confirmation = Confirmation(self.settings.nvml_interval.ns // 2)

    # ---- the audit ------------------------------------------------------------------------------

    def sample(self) -> None:
        """Start a sample of the node's cards if any is granted; the rest follows NVML's answer."""
        self.threads.renew()
        self.enforcer.keep_stopped()
        uuids, granted = self._cards()
        stuck = self.nvml.stuck()
        if stuck is not None:
            self._failing(stuck)
        if self._sampling or stuck is not None or not uuids:
            return
        self._sampling = True
        again = self._full_samples % REOPEN_EACH == REOPEN_EACH - 1
        failing = frozenset[str]() if again else self._failing_cards
        self.nvml.start(UsageQuestion(uuids, granted, True, failing), self._quick_sampled)

    def _cards(self) -> tuple[list[str], frozenset[str]]:
        """Cards to sample, and those of them with a grant; kept until grants or cards change.

        Without a grant no card is sampled: no job can be where it may not.
        """
        grants, cards = tuple(self.grants().values()), self.cards()
        if (grants, cards) != self._granted[0]:
            granted = frozenset(card.uuid for grant in grants for card in grant.cards)
            self._granted = (grants, cards), sorted(granted.union(cards if grants else ())), granted
        return self._granted[1], self._granted[2]

    def _basis(self, found: UsageAnswer) -> object:
        """What the result depends on, except for the arbiter's list."""
        seen = {uuid: (usage.processes, usage.used) for uuid, usage in found.usage.items()}
        return seen, tuple(self.grants())

    def _quick_sampled(self, found: UsageAnswer | NvmlError) -> None:
        if isinstance(found, NvmlError):
            self._full_sampled(found, None)
            return
        self._quick_samples += 1
        if (
            self._settled is not None
            and self._quick_samples < FULL_EACH
            and self._basis(found) == self._settled
        ):
            self._compare_busy(found)
            if not self.busy.over:
                self._sampling = self._failed = False
                return
        before, (uuids, granted) = self._processes(), self._cards()
        # A second utilisation would cover no time.
        busy = {uuid: usage.busy for uuid, usage in found.usage.items()}
        question = UsageQuestion([u for u in uuids if u in busy], granted, False, uuids)

        def done(again: UsageAnswer | NvmlError) -> None:
            if isinstance(again, UsageAnswer):
                again = UsageAnswer(again.with_busy(busy).usage, found.failed | again.failed)
            self._full_sampled(again, before)

        self.nvml.start(question, done)

    def _compare_busy(self, found: UsageAnswer) -> None:
        """Compare GPU time by NVML with the arbiter's, for the processes
        of the last full sample.
        """
        if self.settings.hardware.weights:  # the card divides itself: time per job is not known
            return
        busy = {uuid: usage.busy for uuid, usage in found.usage.items()}
        reporting = [uuid for uuid, rows in busy.items() if rows is not None]
        self.busy.add_poll(self.sampler.polled_ns, self.sampler.tenants, reporting)
        self.busy.add_sample(self.clock.monotonic_ns(), busy, self._members)

    def _processes(self) -> list[ProcessUse] | None:
        if not self.connected():
            return None
        try:
            return self.arbiter.processes()
        except ArbiterError:
            return None  # the loop notices the end of the connection

    def _full_sampled(
        self, found: UsageAnswer | NvmlError, before: list[ProcessUse] | None
    ) -> None:
        self._sampling, self._settled, self._quick_samples = False, None, 0
        self._full_samples += 1
        if isinstance(found, NvmlError):
            self._failing(found)
            return
        self._failed = False
        self._log_failing(found)
        listed = {
            (uuid, process.pid)
            for uuid, usage in found.usage.items()
            for process in usage.processes
        }
        # The last sample of a failing card stays valid.
        self._seen = frozenset(listed).union(key for key in self._seen if key[0] in found.failed)
        after = self._processes()
        self._drop_reused(listed)
        self._adopt(self._seen, after)
        registered = Registered(before, after, frozenset(self._dead), self._orphans)
        slack = self.settings.audit.slack * MIB
        cost = self.charges.costs.of
        result = audit(
            found.usage, self.grants().values(), registered, self.job_of, slack, cost, is_mps_server
        )
        self.sampler.memory(result.memory)
        self.charges.costs.learn(result.contexts)
        self.charges.send(result.overhead)
        self._members = {
            k: pids for k, pids in self._members.items() if k[1] in found.failed
        } | result.members
        self._compare_busy(found)
        self._judge([*result.findings, *self._underbooked(result)], found, registered)
        if (
            result.complete
            and not found.failed
            and not (self._confirmation.pending or self._dead or self._former)
        ):
            self._settled = self._basis(found)

    def _log_failing(self, found: UsageAnswer) -> None:
        """Log each failing card once, and each that answers again."""
        for uuid in sorted(found.failed.keys() - self._failing_cards):
            emit(logging.ERROR, "card-failed", card=uuid, why=found.failed[uuid])
        for uuid in sorted(self._failing_cards & found.usage.keys()):
            emit(logging.INFO, "card-answers", card=uuid)
        self._failing_cards = frozenset(found.failed)

    def _drop_reused(self, listed: Collection[Process]) -> None:
        """A listed pid that is alive is another process: release the dead
        one, sample the new one.
        """
        for key, (dead, _) in list(self._dead.items()):
            if key in listed and self.alive(key[1]):
                self._settled = None
                self._release(dead)

    def _adopt(self, listed: Collection[Process], after: Iterable[ProcessUse] | None) -> None:
        """Charge processes that died under a former arbiter and are still on a card.

        That arbiter could not report the death, and its successor does not know the process.
        """
        known = {(use.uuid, use.pid) for use in after or ()} | self._dead.keys()
        former = {k: job for k, job in self._former.items() if k in listed and k not in known}
        died = {key: job for key, job in former.items() if not self.alive(key[1])}
        self._former = {key: job for key, job in former.items() if key not in died}
        orphans = (self._orphans | died).items()
        # A pid that is alive belongs to another process.
        self._orphans = {
            key: job for key, job in orphans if key in listed and not self.alive(key[1])
        }

    def _underbooked(self, result: AuditResult) -> list[Finding]:
        """Findings for jobs that used more GPU time than was booked."""
        return [
            Finding(
                "busy", uuid, job, None, tuple(sorted(result.members[job, uuid])), asdict(excess)
            )
            for (job, uuid), excess in self.busy.over.items()
            if result.members.get((job, uuid))
        ]

    def _judge(
        self, findings: Iterable[Finding], found: UsageAnswer, registered: Registered
    ) -> None:
        # Processes that ended during the sample are no findings.
        standing = [f for f in findings if not f.pids or any(self.alive(pid) for pid in f.pids)]
        full = full_tenants(registered.after or ())
        why = {f: self._unable(f, full) for f in standing}
        unable = {f for f in standing if why[f] is not False}
        blind = {f for f in unable if why[f] is None or found.usage[f.uuid].busy is None}
        now_ns = self.clock.monotonic_ns()
        took = self._exemptions.begin(now_ns)
        unable -= blind - self._exemptions.spend(blind, took)
        for finding in self.enforcer.act(
            self._confirmation.due(standing, unable, now_ns), standing, found.failed
        ):
            self._confirmation.again(finding)
            if finding.kind == "busy":
                self.busy.forget((finding.job_id or 0, finding.uuid))

    def _unable(self, finding: Finding, full: Collection[tuple[int, str]]) -> bool | None:
        """Whether the process cannot register at present; None: not known within the thread budget.

        It cannot while it is stopped, or while its job has as many processes on the card as it may.
        A process whose kernels run (`busy_percent`) is not excepted.
        """
        if (
            finding.kind != "unregistered"
            or finding.pid is None
            or finding.figures.get("busy_percent")
        ):
            return False
        return (finding.job_id or 0, finding.uuid) in full or self.stopped(finding.pid)

    def _failing(self, why: NvmlError) -> None:
        if not self._failed:
            emit(logging.ERROR, "nvml-failed", why=why)
        self._failed = True

    def forget(self) -> None:
        """The arbiter restarted or is another one: it knows nothing yet."""
        self._settled = None
        self.charges.forget()
        # The arbiter reports the dead that it still knows again; only we charge the others.
        self._orphans |= {key: dead.job_id for key, (dead, _) in self._dead.items()}
        self._dead.clear()
        self._former |= {
            (uuid, pid): job for (job, uuid), pids in self._members.items() for pid in pids
        }
        self._exemptions.renew()
        self.busy.clear()

    def pardon(self, grant: Grant) -> list[int]:
        """Exempt this job until its grant ends; the processes that were continued."""
        self.threads.renew()
        return self.enforcer.pardon(grant, {pid for _, pid in self._seen})

    def ended(self, job_id: int) -> None:
        """A job's grant ended: a later run of the job starts with a new tenant."""
        self._settled = None
        self.enforcer.ended(job_id)
        self._confirmation.ended(job_id)
        self._exemptions.renew(job_id)
        self.charges.ended(job_id)
        self._orphans = {key: job for key, job in self._orphans.items() if job != job_id}
        self._former = {key: job for key, job in self._former.items() if job != job_id}
        self._members = {key: pids for key, pids in self._members.items() if key[0] != job_id}

    # ---- the dead -------------------------------------------------------------------------------

    def note_deaths(self) -> None:
        """Note the processes that the arbiter reports as dead, and ask the driver about them at
        once.
        """
        try:
            for dead in self.arbiter.died():
                self._dead[dead.uuid, dead.pid] = (dead, 0)
                self._orphans.pop((dead.uuid, dead.pid), None)
                self._settled = None
        except ArbiterError:
            return
        self.poll_dead()

    @property
    def waiting(self) -> bool:
        """Whether dead processes are still on a card, so that `poll_dead` must be called again
        soon.
        """
        return bool(self._dead)

    def poll_dead(self) -> None:
        """Ask the driver whether it still lists them: once a second if
        all have been dead for 2 s.
        """
        if self._polling_dead or not self._dead:
            return
        self._dead_ticks += 1
        fresh = any(polls < DEAD_SOON for _, polls in self._dead.values())
        if not fresh and self._dead_ticks % DEAD_EACH:
            return
        uuids = {uuid for uuid, _ in self._dead}
        if self._dead_ticks % DEAD_EACH:
            uuids -= self._failing_cards  # failing in the last audit: polled once a second
        if not uuids:
            return
        self._polling_dead = True
        self.nvml.start(lambda nvml: pids_on(nvml, sorted(uuids)), self._listed)

    def _listed(self, found: dict[str, set[int]] | NvmlError) -> None:
        self._polling_dead = False
        for key, (dead, polls) in list(self._dead.items()):
            uuid, pid = key
            listed = None if isinstance(found, NvmlError) else found.get(uuid)
            if listed is not None and (pid not in listed or self.alive(pid)):
                self._settled = None  # an alive pid is another process, which is not sampled yet
                self._release(dead)
                continue
            self._dead[key] = (dead, polls + 1)
            if listed is not None and (polls >= DEAD_SOON or polls % DEAD_EACH == 0):
                with suppress(ArbiterError):
                    self.arbiter.listed(dead)
            if polls == DEAD_SAID:
                emit(
                    logging.WARNING,
                    "dead-on-card",
                    job=dead.job_id,
                    card=uuid,
                    pid=pid,
                    mem=dead.mem_used,
                )

    def _release(self, dead: ProcessUse) -> None:
        self._dead.pop((dead.uuid, dead.pid))
        try:
            self.arbiter.gone(dead)
        except ArbiterError:
            return
        emit(
            logging.DEBUG, "gone", job=dead.job_id, card=dead.uuid, pid=dead.pid, mem=dead.mem_used
        )
