"""The daemon's arbiter port on the real arbiter.sock, through enforcer.wire.link."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from enforcer.daemon.arbiter.hardware import HardwareOrder, HardwareReport, HardwareUse
from enforcer.daemon.arbiter.port import (
    ArbiterError,
    ArbiterRefusedError,
    ProcessUse,
    Synced,
    Tenant,
)
from enforcer.daemon.log import emit
from enforcer.ledger.store import Sample
from enforcer.wire import link
from enforcer.wire.abi import AbiError
from enforcer.wire.watch import DeathWatch
from gres.config.levels import CardPlan
from gres.config.site import Config
from gres.grant.store import Grant

T = TypeVar("T")
OF_JOB = (errno.ENOSPC, errno.EEXIST)  # refusals of a grant that say nothing about the node
TIMEOUT_S = 1.0  # seconds: the arbiter answers within microseconds, so a slower one is stuck


def _use(process: link.ProcessStats) -> ProcessUse:
    return ProcessUse(
        process.job_id,
        process.uuid,
        process.pid,
        process.mem_used,
        process.mem_pending,
        process.mem_contexts,
        process.contexts,
    )


def card_settings(config: Config, uuid: str, plan: CardPlan) -> link.CardSettings:
    """A card's settings as the arbiter's message has them."""
    settings = config.enforcer
    release, online_delay = plan.release()
    return link.CardSettings(
        uuid=uuid,
        idle_release_ms=release.ms,
        online_delay_us=online_delay.us,
        online_share=plan.share(),
        window_us=plan.window.us,
        slice_us=plan.slice.us,
        lease_ms=settings.lease.ms,
        grace_ms=settings.grace.ms,
        policy_online=plan.policy["online"],
        policy_offline=plan.policy["offline"],
        together=settings.suspend_together,
    )


def hardware_settings(order: HardwareOrder) -> link.HardwareSettings:
    """An order as the arbiter's message has it."""
    return link.HardwareSettings(
        uuid=order.uuid,
        enabled=order.enabled,
        method=order.method,
        actor=order.actor,
        weights=order.weights,
        driver_major=order.driver_major,
        ctl_dev=order.device.dev,
        ctl_ino=order.device.ino,
        ctl_rdev=order.device.rdev,
    )


def hardware_use(tenant: link.HardwareTenant) -> HardwareUse:
    """The arbiter's report on one tenant, as the daemon's type."""
    return HardwareUse(
        job_id=tenant.job_id,
        uuid=tenant.uuid,
        state=tenant.state,
        method=tenant.method,
        actor=tenant.actor,
        groups=tenant.ngroups,
        stops=tenant.stops,
        failures=tenant.failures,
        stopped_ns=tenant.stopped_ns,
        stop_max_ns=tenant.stop_max_ns,
        stop_hist=tenant.stop_hist,
        why=tenant.why,
    )


def sample_of(stats: link.TenantStats, boot_id: int) -> Sample:
    """A tenant's counters as the ledger's type."""
    return Sample(
        job_id=stats.job_id,
        uuid=stats.uuid,
        boot_id=boot_id,
        tenant_since=stats.granted_ns,
        busy_ns=stats.busy_ns,
        launches=stats.launches,
        denied=stats.mem_denied,
        preemptions=stats.preemptions,
        closed_preempted_ns=stats.closed_preempted_ns,
        closed_share_ns=stats.closed_share_ns,
        mem_peak=stats.mem_peak,
        gate_close_max_ns=stats.gate_close_max_ns,
        mem_used=stats.mem_used,
        closed_suspended_ns=stats.closed_suspended_ns,
        held_ns=stats.held_ns,
        closed_idle_ns=stats.closed_idle_ns,
        mem_refused=stats.mem_refused,
        close_hist=stats.close_hist,
    )


def tenant_of(stats: link.TenantStats, boot_id: int) -> Tenant:
    """One tenant as the daemon's type."""
    return Tenant(
        sample_of(stats, boot_id),
        stats.procs,
        stats.gate,
        stats.busy,
        stats.suspended,
        measured=not stats.ungoverned,
    )


class SocketArbiter:
    """Implements enforcer.daemon.arbiter.port.Arbiter. One thread only."""

    def __init__(self, run_dir: str, config: Config) -> None:
        self._link = link.ArbiterLink(run_dir, TIMEOUT_S, again=False)
        self._watch: DeathWatch | None = None
        self._run_dir = run_dir
        self._config = config
        self._cost: Callable[[int, str], int] = lambda job_id, uuid: 0
        self._tenants: dict[int, tuple[link.TenantStats, int, Tenant]] = {}
        self._grants: dict[int, Grant] = {}  # as last sent, to send them again held or not
        self._held: set[int] = set()
        self._waits: dict[tuple[int, str], link.MemoryAction] = {}

    def connect(
        self, cards: Callable[[], Mapping[str, CardPlan]], grants: Sequence[Grant]
    ) -> Synced:
        """Connect and send the full list; a refusal does not stop the rest."""
        refused: dict[int, ArbiterRefusedError] = {}
        cards_refused: list[str] = []
        self.close()
        self._grants.clear()
        try:
            boot_id = self._link.hello()
            # before the first grant: memory of processes that die unwatched would be free at once
            self._watch = DeathWatch(self._run_dir, TIMEOUT_S)
            plans = cards()
            for uuid, plan in plans.items():
                try:
                    self.card(uuid, plan)
                except ArbiterRefusedError as error:
                    cards_refused.append(str(error))
            self._wait_again(0)  # before the grants: then no allocation finds a new page without
            for grant in grants:
                try:
                    self.grant(grant)
                    self._wait_again(grant.job_id)
                except ArbiterRefusedError as error:
                    refused[grant.job_id] = error
            self._link.synced()
        except (link.ArbiterGone, link.ArbiterError, AbiError) as error:
            self.close()
            raise ArbiterError(str(error)) from None
        return Synced(boot_id, tuple(plans), refused, tuple(cards_refused))

    @property
    def ended(self) -> bool:
        """Whether the connection is gone; it and the watch end together."""
        return not self._link.connected

    def card(self, uuid: str, plan: CardPlan) -> None:
        """Send the settings of a card."""
        try:
            self._link.card(card_settings(self._config, uuid, plan))
        except link.ArbiterGone as error:
            raise ArbiterError(str(error)) from None
        except (link.ArbiterError, AbiError) as error:
            raise ArbiterRefusedError(str(error)) from None

    def hardware(self, order: HardwareOrder) -> str:
        """Order hardware preemption of one card, or its end. Empty, or why this arbiter does not do
        it.
        """
        try:
            self._link.hardware(hardware_settings(order))
        except link.ArbiterGone as error:
            raise ArbiterError(str(error)) from None
        except (link.ArbiterError, AbiError) as error:
            return str(error)
        return ""

    def hardware_uses(self) -> HardwareReport:
        """The report on hardware preemption, per tenant and per card."""
        try:
            tenants, cards = self._link.hardware_use()
        except (link.ArbiterGone, AbiError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None
        off = {card.uuid: card.hung for card in cards if card.ordered and not card.on}
        return HardwareReport([hardware_use(tenant) for tenant in tenants], off)

    def grant(self, grant: Grant) -> None:
        """Add or update one grant."""
        try:
            costs = {card.uuid: self._cost(grant.job_id, card.uuid) for card in grant.cards}
            self._link.grant(grant, costs, grant.job_id in self._held)
            self._grants[grant.job_id] = grant
        except link.ArbiterGone as error:
            raise ArbiterError(str(error)) from None
        except link.ArbiterError as error:
            raise ArbiterRefusedError(str(error), error.errno in OF_JOB) from None
        except AbiError as error:
            raise ArbiterRefusedError(str(error)) from None

    def revoke(self, job_id: int, uuid: str = "") -> None:
        """The job ended, or left one card."""
        if not uuid:
            self._grants.pop(job_id, None)
            self._held.discard(job_id)
        waits = self._waits.items()
        self._waits = {k: a for k, a in waits if k[0] != job_id or uuid not in ("", k[1])}
        try:
            self._link.revoke(job_id, uuid)
        except (link.ArbiterGone, link.ArbiterError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None

    def tenants(self) -> list[Tenant]:
        """All tenants now."""
        try:
            found = self._link.stats()
        except (link.ArbiterGone, AbiError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None
        boot_id, before, kept = self._link.boot_id or 0, self._tenants, {}
        for stats in found:  # the link returns the same object for an idle tenant, and so does this
            old = before.get(id(stats))
            if old is None or old[0] is not stats or old[1] != boot_id:
                old = (stats, boot_id, tenant_of(stats, boot_id))
            kept[id(stats)] = old
        self._tenants = kept
        return [tenant for _, _, tenant in kept.values()]

    def processes(self) -> list[ProcessUse]:
        """Registered processes."""
        try:
            found = self._link.processes()
        except (link.ArbiterGone, AbiError) as error:
            self._link.close()
            raise ArbiterError(str(error)) from None
        return [_use(process) for process in found]

    def overhead(self, job_id: int, uuid: str, size: int, context: int) -> None:
        """Charge a tenant for bytes that no shim counts."""
        self._tell(lambda: self._link.overhead(job_id, uuid, size, context))

    def ask_contexts(self, cost: Callable[[int, str], int]) -> None:
        """Whom each grant asks what a context costs."""
        self._cost = cost

    def gone(self, dead: ProcessUse) -> None:
        """The driver no longer lists a dead process."""
        self._tell(lambda: self._link.gone(dead.job_id, dead.uuid, dead.pid))

    def listed(self, dead: ProcessUse) -> None:
        """The driver still lists a dead process."""
        self._tell(lambda: self._link.listed(dead.job_id, dead.uuid, dead.pid))

    def hold(self, job_id: int, held: bool) -> None:
        """Close the gates of a job for its memory, or end that, by its grant."""
        (self._held.add if held else self._held.discard)(job_id)
        if job_id in self._grants:
            self.grant(self._grants[job_id])

    def memory(self, job_id: int, uuid: str, action: link.MemoryAction) -> None:
        """Say what allocations do that the driver refused."""
        if action in (link.MemoryAction.WAIT, link.MemoryAction.NOWAIT):
            self._waits[job_id, uuid] = action
        self._tell(lambda: self._link.memory(job_id, uuid, action))

    def _wait_again(self, job_id: int) -> None:
        for (job, uuid), action in self._waits.items():
            if job == job_id:
                self._tell(partial(self._link.memory, job, uuid, action))

    def _tell(self, action: Callable[[], None]) -> None:
        try:
            action()
        except link.ArbiterGone as error:
            raise ArbiterError(str(error)) from None
        except (link.ArbiterError, AbiError) as error:
            emit(logging.DEBUG, "arbiter-refused", why=error)  # the job ended meanwhile

    def died(self) -> list[ProcessUse]:
        """Deaths since the last call."""
        return [_use(process) for process in self._watched(DeathWatch.died)]

    def wants(self) -> list[link.Want]:
        """Changes of what processes wait for since the last call."""
        return self._watched(DeathWatch.wants)

    def _watched(self, ask: Callable[[DeathWatch], list[T]]) -> list[T]:
        if self._watch is None:
            return []
        try:
            return ask(self._watch)
        except (link.ArbiterGone, AbiError) as error:
            self.close()
            raise ArbiterError(str(error)) from None

    def watch_fileno(self) -> int | None:
        """Descriptor of the watch."""
        return None if self._watch is None else self._watch.fileno()

    def fileno(self) -> int | None:
        """Descriptor of the connection."""
        return self._link.fileno()

    def close(self) -> None:
        """End both connections."""
        self._link.close()
        if self._watch is not None:
            self._watch.close()
        self._watch = None
