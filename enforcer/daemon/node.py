"""What qgpud does, without sockets and signals: hooks, the arbiter's list, ledger and audit.

The grant files are the truth. `NodeService.grants` is their content; arbiter and ledger follow. A
Prolog that needs an absent arbiter gets None, and the server asks again. Calls do wait for NVML and
for an arbiter that is there, within bounds: README.md lists them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from enforcer.daemon import boot
from enforcer.daemon.arbiter.hardware import HardwareView
from enforcer.daemon.arbiter.port import ArbiterError, ArbiterRefusedError
from enforcer.daemon.arbiter.sampling import Sampler
from enforcer.daemon.audit.inspector import Inspector
from enforcer.daemon.audit.procs import ancestors
from enforcer.daemon.audit.steps import STEPS, Steps
from enforcer.daemon.devices.port import Devices
from enforcer.daemon.granting import ending, grantdir
from enforcer.daemon.granting.admission import (
    in_the_way,
    log_grant,
    log_job,
    no_arbiter,
    within_the_card,
    without_place,
)
from enforcer.daemon.granting.decide import Broken, Ignore, decide, same_promise
from enforcer.daemon.granting.driver import BrokenNodeError
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.granting.lost import Lost
from enforcer.daemon.limits.backend import MemoryBackend
from enforcer.daemon.limits.probe import cgroup2_root
from enforcer.daemon.log import emit
from enforcer.daemon.ports import Ports
from enforcer.daemon.reclaim.reclaimer import Reclaimer
from enforcer.daemon.requests.livecards import LiveCards
from enforcer.daemon.requests.runs import RETURN_NS, RunWatch, is_run
from enforcer.ledger.store import Ledger
from enforcer.nvml.cardview import CardView
from enforcer.nvml.port import NvmlError
from enforcer.nvml.worker import NvmlCaller, NvmlStuckError
from gres.config.levels import CardPlan
from gres.config.site import Config, Node
from gres.grant.hookenv import HookEnvError, parse_hook_env
from gres.grant.store import Grant, GrantStore
from gres.units import MIB


@dataclass
class NodeService:
    """The state of one node. Call `start` once, then the rest in any order, from one thread."""

    config: Config
    node: Node
    store: GrantStore
    ledger: Ledger
    ports: Ports
    grants: dict[int, Grant] = field(default_factory=dict)
    connected: bool = False
    config_digest: str = ""  # digest of the qgpu.yaml in use, for qgpu doctor
    _connected_ns: int = field(init=False, default=0)
    nvml: NvmlCaller = field(init=False)
    view: CardView = field(init=False)
    live: LiveCards = field(init=False)
    sampler: Sampler = field(init=False)
    inspector: Inspector = field(init=False)
    steps: Steps = field(init=False)
    devices: Devices = field(init=False)
    memory: MemoryBackend = field(init=False)
    hardware: HardwareView = field(init=False)
    runs: RunWatch = field(init=False)
    markers: grantdir.MarkerWatch = field(init=False)
    books: ending.Books = field(init=False)
    lost: Lost = field(init=False)
    reclaimer: Reclaimer = field(init=False)
    _refusals: dict[int, ArbiterRefusedError] = field(default_factory=dict)
    _cards_sent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        settings = self.config.enforcer
        self.nvml = self.ports.caller(self.ports.open_nvml)
        self.view = CardView(
            self.config, self.node, self.nvml, self.ports.identify, self.ports.clock
        )
        self.live = LiveCards(self.config, self.node)
        self.sampler = Sampler(self.ledger, self.ports.arbiter, self.ports.clock)
        self.runs = RunWatch(self.store.directory)
        self.markers = grantdir.MarkerWatch(self.store.directory)
        self.books = ending.Books(self.store, self.ledger, self.sampler, self.ports.clock)
        clock = self.ports.clock.monotonic_ns
        self.steps = self.ports.steps(self.store.directory.parent / STEPS)
        self.devices = self.ports.devices(self.steps)
        how = (settings.memory_backend, self.nvml, cgroup2_root(), self.steps, clock)
        patience = self.config.hook.deadline.ns // 2
        self.lost = Lost(self.ports.clock, self.steps, self.ports.controller, patience)
        self.memory = MemoryBackend(*how, functools.partial(ending.started, self.store))
        self.hardware = HardwareView(
            settings.hardware, lambda: self.nvml.call(lambda nvml: nvml.driver_version())
        )
        self.sampler.hardware = self.hardware.wanted
        self.sampler.hardware_off = self.hardware.note_off
        self.inspector = Inspector(
            settings,
            self.nvml,
            self.ports.arbiter,
            lambda: self.grants,
            self.job_of,
            lambda: self._cards_sent,
            lambda: self.connected,
            self.sampler,
            self.ports.alive,
            self.ports.clock,
            context=self.config.models[self.node.model].context * MIB,
        )
        self.reclaimer = Reclaimer(self)

    def job_of(self, pid: int) -> int | None:
        """The job of a process, by what root made; none for a set-user-id program of a job."""
        job = self.steps.job_of(pid) or self.runs.job_of(ancestors(pid))
        job = job or self.steps.job_anew(pid, self.grants)
        grant = None if job is None else self.grants.get(job)
        return job if grant is None or self.ports.owner_of_pid(pid) == grant.uid else None

    # ---- start ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the grant files, finish what ended meanwhile, and try to reach the arbiter."""
        grantdir.sweep_temporaries(self.store.directory)
        self.grants, damaged = grantdir.load(self.store)
        for bad in damaged:
            aside = f"{bad.job_id}.json.bad"
            emit(logging.ERROR, "grant-damaged", job=bad.job_id, why=bad.why, set_aside=aside)
        for grant in self.grants.values():
            self.sampler.note(self.ledger.open_grant, grant)
        self._end_before_boot()
        self.steps.begin(self.grants)
        self.reclaimer.moves.resume()  # before the arbiter learns whose gates stay closed
        self.reach_arbiter()  # before the markers: it may hold the last counters of those jobs
        self.take_markers()
        self.runs.resume(self.grants)
        self.memory.check()
        known = {"grants": len(self.grants), "damaged": len(damaged)}
        emit(logging.INFO, "started", node=self.node.name, **known)

    def _end_before_boot(self) -> None:
        """End grants that a boot survived in run_dir; their jobs did not."""
        run_dir = self.store.directory.parent
        for job_id in boot.left_over(run_dir, self.ports, self.grants.values()):
            self.end(job_id, "boot")
        boot.note(run_dir, self.ports)

    def take_markers(self) -> None:
        """End the jobs whose Epilog found no daemon and left a marker."""
        for job_id in self.markers.scan():
            self.end(job_id, "marker")

    # ---- hooks ----------------------------------------------------------------------------------

    def prolog(self, env: Mapping[str, str]) -> Answer | Later | None:
        """The answer to a Prolog.

        None: the grant is written, and counts once the arbiter has it. Later: the driver fails in a
        way that may pass.
        """
        try:
            job = parse_hook_env(env, self.config.tag_field, self.config.slurm.native_gres)
            log_job(job)
            decision = decide(
                job,
                self.node,
                self.config,
                self.view.cards,
                self.view.paths,
                self.ports.identify,
                self.ports.clock.realtime_ns(),
                self.plan,
            )
        except (HookEnvError, NvmlStuckError, BrokenNodeError) as error:
            decision = Broken(str(error))
        except NvmlError as error:
            return Later(str(error))
        if isinstance(decision, Ignore):
            return Answer(0)
        if isinstance(decision, Broken):
            return self.broken(env, decision.reason)
        cards = [card.uuid for card in decision.cards]
        unfit = self.memory.fault(cards) if decision.state == "active" else ""
        if unfit:
            emit(logging.ERROR, "node-broken", job=decision.job_id, why=unfit)
            return Answer(1, unfit)
        self.take_markers()  # ended jobs hold no card
        return self._admit_beside_others(decision)

    def _admit_beside_others(self, grant: Grant) -> Answer | Later | None:
        """Admit a grant, or its refusal; first ask about grants in its way that may be lost."""
        others = in_the_way(grant, self.grants.values())
        jobs = [other.job_id for other in others]
        fitted = within_the_card(grant, others, self.lost.doubtful(jobs))
        if fitted is not grant and self.lost.waits(grant.job_id, jobs, list(self.grants)):
            return Later("slurmctld was asked which jobs are here, and did not answer yet")
        found = self.reclaimer.admit(fitted)
        return Later(found, patient=True) if isinstance(found, str) else self.admit(found)

    def broken(self, env: Mapping[str, str], reason: str) -> Answer:
        """The node cannot serve: the Prolog fails, and Slurm drains it with this reason."""
        emit(logging.ERROR, "node-broken", job=env.get("SLURM_JOB_ID"), why=reason)
        return Answer(1, reason)

    def admit(self, grant: Grant) -> Answer | None:
        """Make a grant count: files, ledger, arbiter. None: the arbiter must come back first."""
        if grantdir.has_marker(self.store.directory, grant.job_id):
            # from the run before the requeue: it must not end this one
            self.end(grant.job_id, "marker")
        old = self.grants.get(grant.job_id)
        if old is not None and same_promise(old, grant):
            grant = old  # the same Prolog again: a lost answer, or a restart of slurmd
        elif old is not None:
            self.end(old.job_id, "replaced")
        fault = self.books.keep(grant, self.node, anew=grant is not old)
        if fault:
            return self.broken({"SLURM_JOB_ID": str(grant.job_id)}, fault)
        self.grants[grant.job_id] = grant
        self.lost.touched(grant.job_id)
        self.sampler.note(self.ledger.open_grant, grant)
        log_grant(grant, self.grants.values())
        return Answer(0) if grant.state != "active" else self.send_grant(grant)

    def send_grant(self, grant: Grant) -> Answer | None:
        """Answer once the arbiter has the grant, None while there is no arbiter."""
        if not self._cards_sent.issuperset(card.uuid for card in grant.cards):
            # the driver started after us: the arbiter needs the list with these cards
            self.connected = False
        if self.connected:
            try:
                self.ports.arbiter.grant(grant)
                return Answer(0)
            except ArbiterRefusedError as error:
                self._refusals[grant.job_id] = error
            except ArbiterError as error:
                self.lose_arbiter(str(error))
        if not self.reach_arbiter():  # it may have restarted; the full list includes this grant
            return None
        return self.arbiter_answer(grant.job_id)

    def arbiter_answer(self, job_id: int) -> Answer:
        """The answer to a Prolog whose grant was sent to the arbiter: its refusal, or success."""
        error, grant = self._refusals.pop(job_id, None), self.grants.get(job_id)
        if error is None:
            return Answer(0)
        self.end(job_id, "failed")
        if error.of_job and grant is not None:
            return Answer(1, str(error)) if is_run(job_id) else self.turn_down(grant, str(error))
        return self.broken({"SLURM_JOB_ID": str(job_id)}, str(error))

    def turn_down(self, grant: Grant, why: str) -> Answer:
        """A job without a place is refused; no user drains a node by filling it."""
        return self.admit(without_place(grant, why)) or Answer(0)

    def abandon(self, job_id: int, then: str = "") -> Answer:
        """Give up on a grant whose arbiter did not come back: the node is broken."""
        self.end(job_id, "failed")
        return self.broken({"SLURM_JOB_ID": str(job_id)}, no_arbiter(self.node, then))

    def epilog(self, env: Mapping[str, str]) -> Answer:
        """End the job's grant. Never fails a node."""
        text = env.get("SLURM_JOB_ID", "")
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            return Answer(0, f"SLURM_JOB_ID is '{text[:40]}', so no grant could be ended")
        self.end(int(text), "epilog")
        return Answer(0)

    def program_ended(self, job_id: int) -> None:
        """A `qgpu run` command ended; its grant holds while processes of it are on a card."""
        self.runs.leave(job_id)
        self.end_left()

    def processes_died(self) -> None:
        """The arbiter reports processes that ended, or wait for memory."""
        self.inspector.note_deaths()
        self.reclaimer.note_wants()
        self.end_left()

    def end_left(self) -> None:
        """End the grants of ended commands that have no process on a card."""
        # Processes need a moment to return to a new arbiter.
        connected_ns = self.ports.clock.monotonic_ns() - self._connected_ns if self.connected else 0
        if not self.runs.left or connected_ns < RETURN_NS:
            return
        try:
            live = {tenant.sample.job_id for tenant in self.ports.arbiter.tenants() if tenant.procs}
        except ArbiterError as error:
            self.lose_arbiter(str(error))
            return
        for job_id in self.runs.left - live:
            self.end(job_id, "exit")

    def end_lost(self) -> None:
        """End the grants whose jobs are gone by what slurmctld answered."""
        for job_id, ended_ns in self.lost.collect(list(self.grants)):
            self.end(job_id, "lost", ended_ns)

    def end(self, job_id: int, reason: str, ended_ns: int | None = None) -> None:
        """End a grant: poll the counters first, since the arbiter drops
        those of a revoked tenant.
        """
        grant = self.grants.pop(job_id, None)
        self.memory.release(job_id)
        self.inspector.ended(job_id)
        self.runs.drop(job_id)
        self.reclaimer.ended(job_id)
        self.devices.forget(job_id)
        if grant is not None and grant.state == "active" and self.connected:
            self.poll_arbiter()
        if grant is not None and grant.state == "active" and self.connected:
            try:
                self.ports.arbiter.revoke(job_id)
            except ArbiterError as error:
                self.lose_arbiter(str(error))
        self.books.close(job_id, grant, reason, ended_ns)

    # ---- the arbiter ----------------------------------------------------------------------------

    def reach_arbiter(self) -> bool:
        """Connect to the arbiter if necessary and send it all; whether it has all now."""
        if self.connected:
            return True
        active = [grant for grant in self.grants.values() if grant.state == "active"]
        self.inspector.forget()
        try:
            synced = self.ports.arbiter.connect(self.plans, active)
        except ArbiterError as error:
            emit(logging.DEBUG, "arbiter-absent", why=error)
            return False
        self.connected, self._connected_ns = True, self.ports.clock.monotonic_ns()
        self._refusals, self._cards_sent = dict(synced.refused), frozenset(synced.uuids)
        emit(logging.INFO, "arbiter-synced", boot=f"{synced.boot_id:016x}", grants=len(active))
        for why in (*synced.refused.values(), *synced.cards_refused):
            emit(logging.ERROR, "arbiter-refused", why=why)
        plans = {uuid: self.plan(self.view.index(uuid), uuid) for uuid in synced.uuids}
        return self.order_hardware(plans) and self.reclaimer.synced(synced.uuids)

    def lose_arbiter(self, why: str) -> None:
        """Note that the connection ended; gates keep their state meanwhile."""
        self.ports.arbiter.close()
        if self.connected:
            emit(logging.WARNING, "arbiter-lost", why=why)
        self.connected = False
        self.sampler.tenants = []

    def poll_arbiter(self) -> None:
        """Write the tenants' counters to the ledger."""
        if not self.connected:
            return
        try:
            self.sampler.poll()
            self.inspector.busy.note_poll(self.sampler.polled_ns)
            self.reclaimer.poll()
        except ArbiterError as error:
            self.lose_arbiter(str(error))

    def order_hardware(self, plans: Mapping[str, CardPlan]) -> bool:
        """Send the arbiter the orders for hardware preemption; whether it is still connected."""
        try:
            self.hardware.send_orders(plans, self.ports.arbiter.hardware)
        except ArbiterError as error:
            self.lose_arbiter(str(error))
        return self.connected

    # ---- cards ----------------------------------------------------------------------------------

    def plan(self, index: int, uuid: str) -> CardPlan:
        """The settings of a card at present."""
        return self.live.plan(uuid, index)

    def plans(self) -> dict[str, CardPlan]:
        """The settings of each card that the arbiter must know."""
        return {
            uuid: self.plan(self.view.index(uuid), uuid)
            for uuid in self.view.uuids(self.grants.values())
        }

    def sample_cards(self) -> None:
        """Begin an audit of the node's cards."""
        self.inspector.sample()

    def limit_memory(self) -> None:
        """Put the driver's memory limits on cgroups of jobs that appeared since the last call."""
        self.memory.apply(self.grants.values())
