"""What qgpud does, without sockets and signals: hooks, the arbiter's list, ledger and audit.

The grant files are the truth; `NodeService.grants` is their content, the arbiter and the ledger follow
them. Nothing here waits: a Prolog that needs an absent arbiter is answered with None, and asked for again
by the server.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enforcer.abi import AbiError, pack_grant
from enforcer.clock import Clock
from enforcer.daemon import grantdir
from enforcer.daemon.arbiter import Arbiter, ArbiterError, ArbiterRefusedError, Tenant, registered
from enforcer.daemon.audit import Patience, audit
from enforcer.daemon.decide import Broken, Identify, Ignore, Paths, decide, same_promise
from enforcer.daemon.driver import BrokenNodeError, find_driver
from enforcer.daemon.hookproto import Answer
from enforcer.daemon.log import emit
from enforcer.daemon.procs import boot_time_ns, job_of_pid
from enforcer.ledger import Ledger
from enforcer.nvml import CardInfo, GpuProcess, Nvml, NvmlError
from gres.config import Config, Node
from gres.grants import Grant, GrantError, GrantStore
from gres.hookenv import HookEnvError, parse_hook_env
from gres.identity import IdentityError, identify

# slurmd forgets a job within minutes; until then a requeued one may come without a Prolog.
OVER_KEPT_S = 6 * 3600


@dataclass
class Ports:
    """Everything outside that the service touches; tests put fakes here."""

    open_nvml: Callable[[], Nvml]
    arbiter: Arbiter
    clock: Clock
    identify: Identify = identify
    job_of_pid: Callable[[int], int | None] = job_of_pid
    boot_time_ns: Callable[[], int | None] = boot_time_ns


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
    _nvml: Nvml | None = None
    _nvml_failed: bool = False
    _tenants: list[Tenant] = field(default_factory=list)
    _refusals: dict[int, str] = field(default_factory=dict)
    _cards_told: frozenset[str] = frozenset()
    _cards_unknown: str = ""
    _patience: Patience = field(default_factory=Patience)

    # ---- start -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the grant files, finish what ended meanwhile, and try to reach the arbiter."""
        grantdir.sweep_temporaries(self.store.directory)
        self.grants, damaged = grantdir.load(self.store)
        for bad in damaged:
            emit(
                logging.ERROR,
                "grant-damaged",
                job=bad.job_id,
                why=bad.why,
                set_aside=f"{bad.job_id}.json.bad",
            )
        for grant in self.grants.values():
            self._in_ledger(self.ledger.open_grant, grant)
        self._end_before_boot()
        self.reach_arbiter()  # before the markers: it may still hold the last counters of those jobs
        self.take_markers()
        emit(logging.INFO, "started", node=self.node.name, grants=len(self.grants), damaged=len(damaged))

    def _end_before_boot(self) -> None:
        """No job survives a boot; on a run_dir that does, its grants are left over."""
        booted = self.ports.boot_time_ns()
        for grant in list(self.grants.values()):
            if booted is not None and grant.created_ns < booted:
                self.end(grant.job_id, "boot")

    def take_markers(self) -> None:
        """End the jobs whose Epilog could not tell us."""
        for job_id in grantdir.ended_markers(self.store.directory):
            self.end(job_id, "marker")

    # ---- hooks -----------------------------------------------------------------------------------

    def prolog(self, env: Mapping[str, str]) -> Answer | None:
        """Answer of a Prolog; None: the grant is written, but the arbiter must come back before it counts."""
        try:
            job = parse_hook_env(env, self.config.tag_field)
            decision = decide(
                job,
                self.node,
                self.config,
                self.cards,
                self.paths,
                self.ports.identify,
                self.ports.clock.realtime_ns(),
            )
        except (HookEnvError, NvmlError, BrokenNodeError) as error:
            decision = Broken(str(error))
        if isinstance(decision, Ignore):
            return Answer(0)
        if isinstance(decision, Broken):
            emit(logging.ERROR, "node-broken", job=env.get("SLURM_JOB_ID"), why=decision.reason)
            return Answer(1, decision.reason)
        return self._admit(decision)

    def _admit(self, grant: Grant) -> Answer | None:
        if grantdir.has_marker(self.store.directory, grant.job_id):
            self.end(grant.job_id, "marker")  # of its run before the requeue: it must not end this one
        old = self.grants.get(grant.job_id)
        if old is not None and same_promise(old, grant):
            grant = old  # the same Prolog again: a lost answer, or a restart of slurmd
        elif old is not None:
            self.end(old.job_id, "replaced")
        try:
            blob = pack_grant(grant)
            self.store.write(grant)
            self.store.write_blob(grant.job_id, blob)
        except (AbiError, GrantError, OSError) as error:
            reason = f"the grant of job {grant.job_id} cannot be written to {self.store.directory}: {error}"
            emit(logging.ERROR, "node-broken", job=grant.job_id, why=reason)
            self.store_remove(grant.job_id, mark=False)
            return Answer(1, reason)
        self.grants[grant.job_id] = grant
        self._in_ledger(self.ledger.open_grant, grant)
        self._log_grant(grant)
        return Answer(0) if grant.state != "active" else self._tell_arbiter(grant)

    def _log_grant(self, grant: Grant) -> None:
        if grant.state == "refused":
            emit(logging.WARNING, "refused", job=grant.job_id, uid=grant.uid, why=grant.message)
        for card in grant.cards:
            emit(
                logging.INFO,
                "grant",
                job=grant.job_id,
                uid=grant.uid,
                state=grant.state,
                job_class=grant.job_class,
                card=card.uuid,
                share=card.share,
                mem_cap=card.mem_cap,
            )

    def _tell_arbiter(self, grant: Grant) -> Answer | None:
        """Answer once the arbiter has the grant, None while there is no arbiter."""
        if not self._cards_told.issuperset(card.uuid for card in grant.cards):
            self.connected = False  # the driver came after us: the arbiter needs the list with these cards
        if self.connected:
            try:
                self.ports.arbiter.grant(grant)
                return Answer(0)
            except ArbiterRefusedError as error:
                self._refusals[grant.job_id] = str(error)
            except ArbiterError as error:
                self.lose_arbiter(str(error))
        if not self.reach_arbiter():  # it may just have restarted; the full list includes this grant
            return None
        return self.settled(grant.job_id)

    def settled(self, job_id: int) -> Answer:
        """Answer of a Prolog whose grant was handed to the arbiter: yes, unless the arbiter said no."""
        why = self._refusals.pop(job_id, None)
        if why is None:
            return Answer(0)
        emit(logging.ERROR, "node-broken", job=job_id, why=why)
        self.end(job_id, "failed")
        return Answer(1, why)

    def abandon(self, job_id: int) -> Answer:
        """Give up on a Prolog whose arbiter did not come back: the node is broken."""
        self.end(job_id, "failed")
        reason = (
            f"qgpu-arbiter on this node does not answer at {self.node.run_dir}/arbiter.sock: start it"
            " (systemctl start qgpu-arbiter), then scontrol update"
            f" nodename={self.node.name} state=resume"
        )
        emit(logging.ERROR, "node-broken", job=job_id, why=reason)
        return Answer(1, reason)

    def epilog(self, env: Mapping[str, str]) -> Answer:
        """End the job's grant. Never fails a node."""
        text = env.get("SLURM_JOB_ID", "")
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            return Answer(0, f"SLURM_JOB_ID is '{text[:40]}', so no grant could be ended")
        self.end(int(text), "epilog")
        return Answer(0)

    def end(self, job_id: int, reason: str) -> None:
        """End a grant: last counters first, since the arbiter forgets a tenant that is revoked."""
        grant = self.grants.pop(job_id, None)
        if grant is not None and grant.state == "active" and self.connected:
            self.poll_arbiter()
        if grant is not None and grant.state == "active" and self.connected:
            try:
                self.ports.arbiter.revoke(job_id)
            except ArbiterError as error:
                self.lose_arbiter(str(error))
        ended = grantdir.marker_time_ns(self.store.directory, job_id) if reason == "marker" else None
        now = self.ports.clock.realtime_ns()
        self._in_ledger(self.ledger.end, job_id, reason, now if ended is None else min(ended, now))
        over = reason in ("epilog", "marker") and (grant is None or grant.state != "whole")
        removed = self.store_remove(job_id, mark=over)
        grantdir.drop_marker(self.store.directory, job_id)
        if grant is not None or removed:
            emit(logging.INFO, "end", job=job_id, reason=reason)

    def store_remove(self, job_id: int, mark: bool) -> bool:
        """Remove the job's files; a directory that cannot be written is logged, not raised."""
        try:
            self.store.forget_over(self.ports.clock.realtime_ns() / 1e9 - OVER_KEPT_S)
            return self.store.remove(job_id, mark)
        except (GrantError, OSError) as error:
            emit(logging.ERROR, "grant-not-removed", job=job_id, why=error)
            return False

    # ---- the driver ------------------------------------------------------------------------------

    def nvml(self) -> Nvml:
        """NVML, opened when first needed and again after it failed. Raises NvmlError."""
        if self._nvml is None:
            self._nvml = self.ports.open_nvml()
        return self._nvml

    def cards(self) -> tuple[CardInfo, ...]:
        """Cards that answer now. A driver that was reloaded gets a second try. Raises NvmlError."""
        try:
            return self.nvml().cards()
        except NvmlError:
            self._nvml = None
            return self.nvml().cards()

    def paths(self) -> Paths:
        """What grants say about this node. Raises BrokenNodeError."""
        shim = self.config.shim.replace("%n", self.node.name)
        configured = self.config.driver.libcuda.replace("%n", self.node.name)
        return Paths(self.node.run_dir, find_driver(configured, shim), shim)

    def card_uuids(self) -> list[str]:
        """Cards of this node: those that qgpu.yaml names and NVML sees, and those of standing grants."""
        found = [card.uuid for grant in self.grants.values() for card in grant.cards]
        why = ""
        try:
            by_minor = {info.minor: info.uuid for info in self.cards()}
            named = self.ports.identify(self.node, range(len(self.node.cards)))
            found = [by_minor[card.minor] for card in named if card.minor in by_minor] + found
        except (NvmlError, IdentityError) as error:
            why = str(error)
        if why and why != self._cards_unknown:
            emit(logging.WARNING, "cards-unknown", why=why)
        self._cards_unknown = why
        return list(dict.fromkeys(found))

    # ---- the arbiter -----------------------------------------------------------------------------

    def reach_arbiter(self) -> bool:
        """Connect to the arbiter if need be, and hand over everything; whether it has it now."""
        if self.connected:
            return True
        active = [grant for grant in self.grants.values() if grant.state == "active"]
        try:
            synced = self.ports.arbiter.connect(self.card_uuids, active)
        except ArbiterError as error:
            emit(logging.DEBUG, "arbiter-absent", why=error)
            return False
        self.connected = True
        self._refusals, self._cards_told = dict(synced.refused), frozenset(synced.uuids)
        emit(logging.INFO, "arbiter-synced", boot=f"{synced.boot_id:016x}", grants=len(active))
        for why in (*synced.refused.values(), *synced.cards_refused):
            emit(logging.ERROR, "arbiter-refused", why=why)
        return True

    def lose_arbiter(self, why: str) -> None:
        """Note that the connection ended; gates keep their state until it is back."""
        self.ports.arbiter.close()
        if self.connected:
            emit(logging.WARNING, "arbiter-lost", why=why)
        self.connected = False
        self._tenants = []

    def poll_arbiter(self) -> None:
        """Take the tenants' counters into the ledger."""
        if not self.connected:
            return
        try:
            self._tenants = self.ports.arbiter.tenants()
        except ArbiterError as error:
            self.lose_arbiter(str(error))
            return
        samples = [tenant.sample for tenant in self._tenants]
        self._in_ledger(self.ledger.record, samples, self.ports.clock.realtime_ns())

    # ---- audit and ledger ------------------------------------------------------------------------

    def look_at_cards(self) -> None:
        """Compare NVML's processes with the grants; note memory; say what is wrong once."""
        processes = self._processes()
        if processes is None:
            return
        look = audit(processes, self.grants.values(), registered(self._tenants), self.ports.job_of_pid)
        for (job_id, uuid), used in look.memory.items():
            self._in_ledger(self.ledger.record_memory, job_id, uuid, used)
        findings = look.findings if self.connected else ()  # without the arbiter nobody counts as registered
        for found in self._patience.ripe(findings):
            emit(logging.WARNING, f"audit-{found.kind}", job=found.job_id, card=found.uuid, pid=found.pid)

    def _processes(self) -> dict[str, tuple[GpuProcess, ...]] | None:
        uuids = {card.uuid for grant in self.grants.values() for card in grant.cards}
        if not uuids:
            return None
        try:
            found = {uuid: self.nvml().processes(uuid) for uuid in sorted(uuids)}
        except NvmlError as error:
            if not self._nvml_failed:
                emit(logging.ERROR, "nvml-failed", why=error)
            self._nvml_failed, self._nvml = True, None
            return None
        self._nvml_failed = False
        return found

    def _in_ledger(self, action: Callable[..., object], *arguments: object) -> None:
        """The ledger is for people to read: a full disk must not stop a job."""
        try:
            action(*arguments)
        except sqlite3.Error as error:
            emit(logging.ERROR, "ledger-failed", ledger=self.ledger.path, why=error)
