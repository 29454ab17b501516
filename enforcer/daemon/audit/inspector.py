"""The audit as it runs: NVML is asked in the worker thread, judged here, and acted upon by policy.

Also what the arbiter cannot see by itself: bytes that only the driver counts, and when it lets go of a dead
process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.arbiter.port import Arbiter, ArbiterError, ProcessUse
from enforcer.daemon.arbiter.sampling import Sampler
from enforcer.daemon.audit.busy import BusyWatch, Members
from enforcer.daemon.audit.findings import Finding, Look, Registered, audit
from enforcer.daemon.audit.patience import Excuses, Patience
from enforcer.daemon.audit.procs import ThreadBudget
from enforcer.daemon.audit.warden import Warden
from enforcer.daemon.log import emit
from enforcer.nvml.port import NvmlError
from enforcer.nvml.queries import Looked, UsageQuestion, pids_on
from enforcer.nvml.worker import NvmlCaller
from enforcer.wire.layout import MAX_PROCS
from gres.config.schema import AuditSettings
from gres.grant.store import Grant
from gres.units import MIB

FULL_EACH = 10  # looks: so often everything is compared although the driver says what it said before
DEAD_SOON = 40  # looks at a dead process, 50 ms apart; from then on one each second
DEAD_EACH = 20  # looks after which the arbiter is told that it is still there
DEAD_SAID = 44  # after so many it is worth a line in the log
REOPEN_EACH = 60  # full looks, after which a card that fails is asked through a library opened anew
Process = tuple[str, int]  # by card and number


@dataclass
class Inspector:
    """One look per `look` call, at most one at a time. `grants`, `cards` (all of the node) and `connected` are asked
    when needed.

    A look is a glance at the driver first. Only when that shows something new, or a finding or an overhead is not
    settled yet, is it compared with the arbiter's list: an idle node costs next to nothing.
    """

    settings: AuditSettings
    nvml: NvmlCaller
    arbiter: Arbiter
    grants: Callable[[], Mapping[int, Grant]]
    job_of: Callable[[int], int | None]
    cards: Callable[[], Collection[str]]
    connected: Callable[[], bool]
    sampler: Sampler
    alive: Callable[[int], bool]
    clock: Clock
    weights: bool = False  # shares by the card's own time slices: nobody knows who had it
    poll_ns: int = 2 * 10**9  # from one poll of the arbiter to the next
    threads: ThreadBudget = field(default_factory=ThreadBudget)
    stopped: Callable[[int], bool | None] = field(init=False)
    warden: Warden = field(init=False)
    busy: BusyWatch = field(init=False)
    _excuses: Excuses = field(init=False)
    _patience: Patience = field(default_factory=Patience)
    _members: Members = field(default_factory=dict)
    _granted: tuple[object, list[str], frozenset[str]] = (None, [], frozenset())
    _looking: bool = False
    _settled: object = None
    _seen: frozenset[Process] = frozenset()  # at the last full look
    _failing_cards: frozenset[str] = frozenset()
    _full_looks: int = 0
    _glances: int = 0
    _asking: bool = False
    _failed: bool = False
    _dead: dict[Process, tuple[ProcessUse, int]] = field(default_factory=dict)
    _orphans: dict[Process, int] = field(default_factory=dict)
    _former: dict[Process, int] = field(default_factory=dict)  # whom the arbiter before this one knew
    _dead_ticks: int = 0
    _told: dict[tuple[int, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        audit = self.settings
        self.stopped, waits = self.threads.stopped, self.threads.stop_waits
        self.warden = Warden(
            audit, self.clock, self.grants, self.job_of, lambda pid: self.stopped(pid), waits
        )
        self.busy = BusyWatch(audit.busy_window.ns, audit.busy_slack, self.poll_ns)
        self._excuses = Excuses(audit.excuse.ns)

    # ---- the audit -------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin a look at the node's cards, if one is granted; the rest happens when NVML has answered."""
        self.threads.renew()
        self.warden.hold()
        uuids, granted = self._cards()
        stuck = self.nvml.stuck()
        if stuck is not None:
            self._failing(stuck)
        if self._looking or stuck is not None or not uuids:
            return
        self._looking = True
        again = self._full_looks % REOPEN_EACH == REOPEN_EACH - 1
        failing = frozenset[str]() if again else self._failing_cards
        self.nvml.start(UsageQuestion(uuids, granted, True, failing), self._glanced)

    def _cards(self) -> tuple[list[str], frozenset[str]]:
        """Cards to look at, and those of them with a grant; found anew only after grants or cards came or went. Where
        nothing is granted, no job can be where it may not."""
        grants, cards = tuple(self.grants().values()), self.cards()
        if (grants, cards) != self._granted[0]:
            granted = frozenset(card.uuid for grant in grants for card in grant.cards)
            self._granted = (grants, cards), sorted(granted.union(cards if grants else ())), granted
        return self._granted[1], self._granted[2]

    def _basis(self, found: Looked) -> object:
        """All that the outcome hangs on, but for the arbiter's list."""
        seen = {uuid: (usage.processes, usage.used) for uuid, usage in found.usage.items()}
        return seen, tuple(self.grants())

    def _glanced(self, found: Looked | NvmlError) -> None:
        if isinstance(found, NvmlError):
            self._looked(found, None)
            return
        self._glances += 1
        if self._settled is not None and self._glances < FULL_EACH and self._basis(found) == self._settled:
            self._compare_busy(found)
            if not self.busy.over:
                self._looking = self._failed = False
                return
        before, (uuids, granted) = self._processes(), self._cards()
        # Asked again it would be of no time at all.
        busy = {uuid: usage.busy for uuid, usage in found.usage.items()}
        question = UsageQuestion([u for u in uuids if u in busy], granted, False, uuids)

        def done(again: Looked | NvmlError) -> None:
            if isinstance(again, Looked):
                again = Looked(again.with_busy(busy).usage, found.failed | again.failed)
            self._looked(again, before)

        self.nvml.start(question, done)

    def _compare_busy(self, found: Looked) -> None:
        """What the driver saw against what the arbiter counted, for the processes that the last full look found."""
        if self.weights:
            return
        busy = {uuid: usage.busy for uuid, usage in found.usage.items()}
        told = [uuid for uuid, rows in busy.items() if rows is not None]
        self.busy.book(self.sampler.polled_ns, self.sampler.tenants, told)
        self.busy.take(self.clock.monotonic_ns(), busy, self._members)

    def _processes(self) -> list[ProcessUse] | None:
        if not self.connected():
            return None
        try:
            return self.arbiter.processes()
        except ArbiterError:
            return None  # the loop notices the end of the connection

    def _looked(self, found: Looked | NvmlError, before: list[ProcessUse] | None) -> None:
        self._looking, self._settled, self._glances = False, None, 0
        self._full_looks += 1
        if isinstance(found, NvmlError):
            self._failing(found)
            return
        self._failed = False
        self._say_failing(found)
        listed = {(uuid, process.pid) for uuid, usage in found.usage.items() for process in usage.processes}
        # Of a card that fails nobody knows better than what was seen there last.
        self._seen = frozenset(listed).union(key for key in self._seen if key[0] in found.failed)
        after = self._processes()
        self._drop_reused(listed)
        self._adopt(self._seen, after)
        registered = Registered(before, after, frozenset(self._dead), self._orphans)
        slack = self.settings.slack * MIB
        look = audit(found.usage, self.grants().values(), registered, self.job_of, slack)
        self.sampler.memory(look.memory)
        self._charge(look.overhead)
        self._members = {k: pids for k, pids in self._members.items() if k[1] in found.failed} | look.members
        self._compare_busy(found)
        self._judge([*look.findings, *self._lied(look)], found, registered)
        if look.complete and not found.failed and not (self._patience.pending or self._dead or self._former):
            self._settled = self._basis(found)

    def _say_failing(self, found: Looked) -> None:
        """Cards that fail alone, each once."""
        for uuid in sorted(found.failed.keys() - self._failing_cards):
            emit(logging.ERROR, "card-failed", card=uuid, why=found.failed[uuid])
        for uuid in sorted(self._failing_cards & found.usage.keys()):
            emit(logging.INFO, "card-answers", card=uuid)
        self._failing_cards = frozenset(found.failed)

    def _drop_reused(self, listed: Collection[Process]) -> None:
        """A listed number that lives is another process's now: the dead one is let go, and this one looked at."""
        for key, (dead, _) in list(self._dead.items()):
            if key in listed and self.alive(key[1]):
                self._settled = None
                self._let_go(dead)

    def _adopt(self, listed: Collection[Process], after: Iterable[ProcessUse] | None) -> None:
        """Who was registered with an arbiter that is gone, is dead and still on a card, is charged by us alone: it
        could not tell of the death any more, and its successor never heard of the process."""
        known = {(use.uuid, use.pid) for use in after or ()} | self._dead.keys()
        former = {k: job for k, job in self._former.items() if k in listed and k not in known}
        died = {key: job for key, job in former.items() if not self.alive(key[1])}
        self._former = {key: job for key, job in former.items() if key not in died}
        orphans = (self._orphans | died).items()
        # Whose number lives is not one of them any more: it is another process's.
        self._orphans = {key: job for key, job in orphans if key in listed and not self.alive(key[1])}

    def _lied(self, look: Look) -> list[Finding]:
        """Jobs whose processes did more than was booked."""
        return [
            Finding("busy", uuid, job, None, tuple(sorted(look.members[job, uuid])), asdict(excess))
            for (job, uuid), excess in self.busy.over.items()
            if look.members.get((job, uuid))
        ]

    def _judge(self, findings: Iterable[Finding], found: Looked, registered: Registered) -> None:
        # A process that ended while we looked is nobody to be found.
        standing = [f for f in findings if not f.pids or any(self.alive(pid) for pid in f.pids)]
        crowded = _crowded(registered.after or ())
        why = {f: self._unable(f, crowded) for f in standing}
        unable = {f for f in standing if why[f] is not False}
        blind = {f for f in unable if why[f] is None or found.usage[f.uuid].busy is None}
        took = self._excuses.begin(self.clock.monotonic_ns())
        unable -= blind - self._excuses.spend(blind, took)
        for finding in self.warden.deal(self._patience.due(standing, unable), standing, found.failed):
            self._patience.again(finding)
            if finding.kind == "busy":
                self.busy.forget((finding.job_id or 0, finding.uuid))

    def _unable(self, finding: Finding, crowded: Collection[tuple[int, str]]) -> bool | None:
        """Whether it cannot register at present: stopped since before the arbiter started anew, or one process more
        than its job may have on a card, which waits. Not if its kernels run, which would show as busy. None: nobody can
        tell, as there are more threads than one look reads."""
        if finding.kind != "unregistered" or finding.pid is None or finding.figures.get("busy_percent"):
            return False
        return (finding.job_id or 0, finding.uuid) in crowded or self.stopped(finding.pid)

    def _failing(self, why: NvmlError) -> None:
        if not self._failed:
            emit(logging.ERROR, "nvml-failed", why=why)
        self._failed = True

    def _charge(self, overhead: Mapping[tuple[int, str], int]) -> None:
        """Tell the arbiter what changed. A restarted one is told everything: `forget` clears what was told."""
        for (job_id, uuid), size in overhead.items():
            if self._told.get((job_id, uuid), 0) == size:
                continue
            try:
                self.arbiter.overhead(job_id, uuid, size)
            except ArbiterError:
                return  # a new connection begins with `forget`
            self._told[job_id, uuid] = size

    def forget(self) -> None:
        """The arbiter started anew, or is another one: nothing was told to it yet."""
        self._settled = None
        self._told.clear()
        # Those that it still knows it tells again; the others nobody charges but we.
        self._orphans |= {key: dead.job_id for key, (dead, _) in self._dead.items()}
        self._dead.clear()
        self._former |= {(uuid, pid): job for (job, uuid), pids in self._members.items() for pid in pids}
        self._excuses.renew()
        self.busy.clear()

    def pardon(self, grant: Grant) -> list[int]:
        """Do nothing more to this job as long as its grant stands; who of it was stopped and goes on."""
        self.threads.renew()
        return self.warden.pardon(grant, {pid for _, pid in self._seen})

    def ended(self, job_id: int) -> None:
        """A job's grant ended: should the job come again, its tenant begins anew."""
        self._settled = None
        self.warden.ended(job_id)
        self._patience.ended(job_id)
        self._excuses.renew(job_id)
        self._told = {key: size for key, size in self._told.items() if key[0] != job_id}
        self._orphans = {key: job for key, job in self._orphans.items() if job != job_id}
        self._former = {key: job for key, job in self._former.items() if job != job_id}
        self._members = {key: pids for key, pids in self._members.items() if key[0] != job_id}

    # ---- the dead --------------------------------------------------------------------------------

    def take_deaths(self) -> None:
        """Note whom the arbiter reports as dead, and ask the driver about them at once."""
        try:
            for dead in self.arbiter.died():
                self._dead[dead.uuid, dead.pid] = (dead, 0)
                self._orphans.pop((dead.uuid, dead.pid), None)
                self._settled = None
        except ArbiterError:
            return
        self.look_for_dead()

    @property
    def waiting(self) -> bool:
        """Whether dead processes are still on a card, so that `look_for_dead` must be called again soon."""
        return bool(self._dead)

    def look_for_dead(self) -> None:
        """Ask the driver whether it still lists them; seldom once all of them have been there for long."""
        if self._asking or not self._dead:
            return
        self._dead_ticks += 1
        fresh = any(looks < DEAD_SOON for _, looks in self._dead.values())
        if not fresh and self._dead_ticks % DEAD_EACH:
            return
        uuids = {uuid for uuid, _ in self._dead}
        if self._dead_ticks % DEAD_EACH:
            uuids -= self._failing_cards  # as the audit saw them last: those are asked once a second
        if not uuids:
            return
        self._asking = True
        self.nvml.start(lambda nvml: pids_on(nvml, sorted(uuids)), self._listed)

    def _listed(self, found: dict[str, set[int]] | NvmlError) -> None:
        self._asking = False
        for key, (dead, looks) in list(self._dead.items()):
            uuid, pid = key
            listed = None if isinstance(found, NvmlError) else found.get(uuid)
            if listed is not None and (pid not in listed or self.alive(pid)):
                self._settled = None  # whose number lives is another process, which nobody has looked at
                self._let_go(dead)
                continue
            self._dead[key] = (dead, looks + 1)
            if listed is not None and (looks >= DEAD_SOON or looks % DEAD_EACH == 0):
                with suppress(ArbiterError):
                    self.arbiter.listed(dead)
            if looks == DEAD_SAID:
                emit(logging.WARNING, "dead-on-card", job=dead.job_id, card=uuid, pid=pid, mem=dead.mem_used)

    def _let_go(self, dead: ProcessUse) -> None:
        self._dead.pop((dead.uuid, dead.pid))
        try:
            self.arbiter.gone(dead)
        except ArbiterError:
            return
        emit(logging.DEBUG, "gone", job=dead.job_id, card=dead.uuid, pid=dead.pid, mem=dead.mem_used)


def _crowded(registered: Iterable[ProcessUse]) -> set[tuple[int, str]]:
    """Tenants with as many processes as the arbiter takes."""
    counts = Counter((process.job_id, process.uuid) for process in registered)
    return {tenant for tenant, count in counts.items() if count >= MAX_PROCS}
