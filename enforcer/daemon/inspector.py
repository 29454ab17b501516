"""The audit as it runs: NVML is asked in the worker thread, judged here, and acted upon by policy.

Also what the arbiter cannot see by itself: bytes that only the driver counts, and when it lets go of a dead
process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from enforcer.daemon.arbiter import Arbiter, ArbiterError, ProcessUse
from enforcer.daemon.audit import Finding, Patience, Registered, audit
from enforcer.daemon.log import emit
from enforcer.daemon.nvmlworker import NvmlCaller
from enforcer.daemon.procs import stopped
from enforcer.daemon.punish import punish
from enforcer.layout import MAX_PROCS
from enforcer.nvml import CardLostError, CardUsage, Nvml, NvmlError
from gres.grants import Grant
from gres.schema import AuditSettings
from gres.units import MIB

FULL_EACH = 10  # looks: so often everything is compared although the driver says what it said before
DEAD_GIVEN_UP = 120  # looks of 50 ms: the arbiter itself lets go after 5 s
PUNISHED = ("unregistered", "over")
Usage = dict[str, CardUsage]
T = TypeVar("T")


@dataclass
class Inspector:
    """One look per `look` call, at most one at a time. `grants` and `connected` are asked when needed.

    A look is a glance at the driver first. Only when that shows something new, or a finding or an overhead is not
    settled yet, is it compared with the arbiter's list: an idle node costs next to nothing.
    """

    settings: AuditSettings
    nvml: NvmlCaller
    arbiter: Arbiter
    grants: Callable[[], Mapping[int, Grant]]
    job_of: Callable[[int], int | None]
    connected: Callable[[], bool]
    memory: Callable[[dict[tuple[int, str], int]], object]
    alive: Callable[[int], bool]
    stopped: Callable[[int], bool] = stopped
    _patience: Patience = field(default_factory=Patience)
    _granted: tuple[tuple[Grant, ...], list[str]] = ((), [])
    _looking: bool = False
    _settled: object = None
    _glances: int = 0
    _asking: bool = False
    _failed: bool = False
    _dead: dict[tuple[str, int], tuple[ProcessUse, int]] = field(default_factory=dict)
    _told: dict[tuple[int, str], int] = field(default_factory=dict)

    # ---- the audit -------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin a look at all cards with a grant; the rest happens when NVML has answered."""
        uuids = self._granted_cards()
        stuck = self.nvml.stuck()
        if stuck is not None:
            self._failing(stuck)
        if self._looking or stuck is not None or not uuids:
            return
        self._looking = True
        self.nvml.start(lambda nvml: _usage(nvml, uuids, busy=False), self._glanced)

    def _granted_cards(self) -> list[str]:
        """Cards with a grant, found anew only after grants came or went."""
        grants = tuple(self.grants().values())
        if grants != self._granted[0]:
            self._granted = grants, sorted({card.uuid for grant in grants for card in grant.cards})
        return self._granted[1]

    def _basis(self, found: Usage) -> object:
        """All that the outcome hangs on, but for the arbiter's list."""
        return {uuid: (usage.processes, usage.used) for uuid, usage in found.items()}, tuple(self.grants())

    def _glanced(self, found: Usage | NvmlError) -> None:
        if isinstance(found, NvmlError):
            self._looked(found, None)
            return
        self._glances += 1
        if self._settled is not None and self._glances < FULL_EACH and self._basis(found) == self._settled:
            self._looking = self._failed = False
            return
        before, uuids = self._processes(), list(found)
        self.nvml.start(lambda nvml: _usage(nvml, uuids), lambda again: self._looked(again, before))

    def _processes(self) -> list[ProcessUse] | None:
        if not self.connected():
            return None
        try:
            return self.arbiter.processes()
        except ArbiterError:
            return None  # the loop notices the end of the connection

    def _looked(self, found: Usage | NvmlError, before: list[ProcessUse] | None) -> None:
        self._looking, self._settled, self._glances = False, None, 0
        if isinstance(found, NvmlError):
            self._failing(found)
            return
        self._failed = False
        registered = Registered(before, self._processes(), frozenset(self._dead))
        slack = self.settings.slack * MIB
        look = audit(found, self.grants().values(), registered, self.job_of, slack)
        self.memory(look.memory)
        self._charge(look.overhead)
        # A process that ended while we looked is nobody to be found.
        standing = [f for f in look.findings if not f.pids or any(self.alive(pid) for pid in f.pids)]
        crowded = _crowded(registered.after or ())
        for finding in self._patience.ripe(standing, {f for f in standing if self._unable(f, crowded)}):
            self._say(finding)
        if look.complete and not self._patience.pending and not self._dead:
            self._settled = self._basis(found)

    def _unable(self, finding: Finding, crowded: Container[tuple[int, str]]) -> bool:
        """Whether it cannot register at present: stopped since before the arbiter started anew, or one process more
        than its job may have on a card, which waits. Not if its kernels run, which would show as busy."""
        if finding.kind != "unregistered" or finding.figures.get("busy_percent"):
            return False
        waits = (finding.job_id or 0, finding.uuid) in crowded
        return waits or all(self.stopped(pid) for pid in finding.pids)

    def _failing(self, why: NvmlError) -> None:
        if not self._failed:
            emit(logging.ERROR, "nvml-failed", why=why)
        self._failed = True

    def _say(self, finding: Finding) -> None:
        done: list[int] = []
        action = self.settings.action
        grant = self.grants().get(finding.job_id or 0)
        if action != "log" and finding.kind in PUNISHED and grant is not None:
            done = punish(action, finding.pids, grant, self.job_of)
        emit(
            logging.WARNING,
            f"audit-{finding.kind}",
            job=finding.job_id,
            card=finding.uuid,
            pid=finding.pid,
            **finding.figures,
            action=action if done else None,
            signalled=",".join(map(str, done)) or None,
        )

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
        self._dead.clear()

    def ended(self, job_id: int) -> None:
        """A job's grant ended: should the job come again, its tenant begins anew."""
        self._settled = None
        self._told = {key: size for key, size in self._told.items() if key[0] != job_id}

    # ---- the dead --------------------------------------------------------------------------------

    def take_deaths(self) -> None:
        """Note whom the arbiter reports as dead, and ask the driver about them at once."""
        try:
            for dead in self.arbiter.died():
                self._dead[dead.uuid, dead.pid] = (dead, 0)
                self._settled = None
        except ArbiterError:
            return
        self.look_for_dead()

    @property
    def waiting(self) -> bool:
        """Whether dead processes are still on a card, so that `look_for_dead` must be called again soon."""
        return bool(self._dead)

    def look_for_dead(self) -> None:
        """Ask the driver whether it still lists them."""
        if self._asking or not self._dead:
            return
        uuids = sorted({uuid for uuid, _ in self._dead})
        self._asking = True
        self.nvml.start(lambda nvml: _pids(nvml, uuids), self._listed)

    def _listed(self, found: dict[str, set[int]] | NvmlError) -> None:
        self._asking = False
        for key, (dead, looks) in list(self._dead.items()):
            uuid, pid = key
            listed = None if isinstance(found, NvmlError) else found.get(uuid)
            if listed is not None and pid not in listed:
                self._let_go(dead)
            elif looks >= DEAD_GIVEN_UP:
                self._dead.pop(key)
                emit(logging.WARNING, "dead-on-card", job=dead.job_id, card=uuid, pid=pid, mem=dead.mem_used)
            else:
                self._dead[key] = (dead, looks + 1)

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


def _usage(nvml: Nvml, uuids: Iterable[str], busy: bool = True) -> Usage:
    """What lies on each card; one that fell off the bus is left out, the others are looked at."""
    seen = ((uuid, _of_card(lambda card: nvml.usage(card, busy), uuid)) for uuid in uuids)
    return {uuid: usage for uuid, usage in seen if usage is not None}


def _pids(nvml: Nvml, uuids: Iterable[str]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for uuid in uuids:
        processes = _of_card(nvml.processes, uuid)
        found[uuid] = set() if processes is None else {process.pid for process in processes}
    return found


def _of_card(ask: Callable[[str], T], uuid: str) -> T | None:
    try:
        return ask(uuid)
    except CardLostError as error:
        emit(logging.DEBUG, "card-lost", card=uuid, why=error)
        return None
