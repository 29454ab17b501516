"""The arbiter as the daemon sees it: a port, and its reports on tenants.

`enforcer.daemon.arbiter.client.SocketArbiter` is the adapter on arbiter.sock; `FakeArbiter` is for
tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from enforcer.daemon.arbiter.hardware import HardwareOrder, HardwareReport, HardwareUse
from enforcer.ledger.store import Sample
from enforcer.wire.messages import MemoryAction as MemoryAction
from enforcer.wire.messages import Want as Want
from gres.config.levels import CardPlan
from gres.grant.store import Grant


class ArbiterError(RuntimeError):
    """The arbiter does not answer, or failed; the text is a sentence. The connection is closed."""


class ArbiterRefusedError(RuntimeError):
    """The arbiter refused one grant; the text is a sentence.

    `of_job`: the job has no place, and the node serves others on; else the node is broken.
    """

    def __init__(self, message: str, of_job: bool = False) -> None:
        super().__init__(message)
        self.of_job = of_job


@dataclass(frozen=True)
class Synced:
    """The result of a full list: the arbiter's start, its cards, and refusals (job -> sentence;
    cards).
    """

    boot_id: int
    uuids: tuple[str, ...] = ()
    refused: Mapping[int, ArbiterRefusedError] = field(default_factory=dict)
    cards_refused: tuple[str, ...] = ()


class Tenant(NamedTuple):
    """One tenant's counters, its number of registered processes, and its present state."""

    sample: Sample
    procs: int
    gate: int = 0
    busy: bool = False
    suspended: bool = False
    hardware: HardwareUse | None = None
    # busy_ns is measured for it alone; False: without isolation the card divides its time itself,
    # and the arbiter splits it evenly
    measured: bool = True


@dataclass(frozen=True)
class ProcessUse:
    """One process of a tenant, and the bytes that it holds (or held) by the allocation table.

    `mem_pending` is bytes of calls of the driver that have not returned. `mem_contexts` is the part
    of `mem_used` that is reserved for its `contexts`.
    """

    job_id: int
    uuid: str
    pid: int
    mem_used: int
    mem_pending: int = 0
    mem_contexts: int = 0
    contexts: int = 0


class Arbiter(Protocol):
    """Each call raises ArbiterError when the arbiter is gone."""

    def connect(
        self, cards: Callable[[], Mapping[str, CardPlan]], grants: Sequence[Grant]
    ) -> Synced:
        """Connect and send the full list; `cards` (by UUID) is called once connected."""
        ...

    def grant(self, grant: Grant) -> None:
        """Add or update one grant on each of its cards; returns when the arbiter has it.

        Raises ArbiterRefusedError when it does not want it.
        """
        ...

    def card(self, uuid: str, plan: CardPlan) -> None:
        """Change the settings of a card. Raises ArbiterRefusedError when it does not want them."""
        ...

    def hardware(self, order: HardwareOrder) -> str:
        """Order hardware preemption of one card, or its end. Empty, or why this arbiter does not do
        it.
        """
        ...

    def hardware_uses(self) -> HardwareReport:
        """The report on hardware preemption, per tenant and per card."""
        ...

    def revoke(self, job_id: int, uuid: str = "") -> None:
        """The job ended. With `uuid` it left that card alone: its processes lose their connection
        at once, and register again where its grant has that card or names it as `home`.
        """
        ...

    def processes(self) -> list[ProcessUse]:
        """Registered processes and what they hold."""
        ...

    def overhead(self, job_id: int, uuid: str, size: int, context: int) -> None:
        """Charge a tenant `size` bytes beside its reservations for contexts, modules and processes
        without the shim. Each new context reserves `context` bytes.
        """
        ...

    def ask_contexts(self, cost: Callable[[int, str], int]) -> None:
        """Whom each grant asks what a new context of the job on the card reserves."""
        ...

    def gone(self, dead: ProcessUse) -> None:
        """The driver does not list a dead process any more: its bytes are free."""
        ...

    def listed(self, dead: ProcessUse) -> None:
        """The driver still lists a dead process: its bytes stay charged.
        Repeat it within a minute.
        """
        ...

    def hold(self, job_id: int, held: bool) -> None:
        """Close the gates of a job on all its cards for its memory, or end that.

        Remembered until `revoke`: each later grant of the job, also in the list of `connect`, has
        it. So it may come before `connect`.
        """
        ...

    def memory(self, job_id: int, uuid: str, action: MemoryAction) -> None:
        """Say what allocations of a job on the card do that the driver refused. Job 0: all jobs.

        WAIT and NOWAIT are remembered like `hold`; those of job 0 hold for later jobs, too.
        """
        ...

    def died(self) -> list[ProcessUse]:
        """Processes whose death was reported since the last call."""
        ...

    def wants(self) -> list[Want]:
        """Changes of what processes wait for since the last call, oldest first.

        After each `connect` all that is waited for comes anew; forget what was known before.
        """
        ...

    def watch_fileno(self) -> int | None:
        """Descriptor that becomes readable when `died` or `wants` has entries: ask both. None
        without a connection.
        """
        ...

    def tenants(self) -> list[Tenant]:
        """All tenants now."""
        ...

    @property
    def ended(self) -> bool:
        """Whether a call found that the connection ended since `connect`."""
        ...

    def fileno(self) -> int | None:
        """Descriptor that becomes readable when the connection ends, None while not connected."""
        ...

    def close(self) -> None:
        """End the connection; `connect` may be called again."""
        ...


class FakeArbiter:
    """An arbiter that records its calls; tests stop and restart it and set its counters."""

    def __init__(self) -> None:
        self.running = True
        self.boot_id = 1
        self.connected = False
        self.plans: dict[str, CardPlan] = {}
        self.orders: dict[str, HardwareOrder] = {}
        self.uses: list[HardwareUse] = []
        self.hung: dict[str, int] = {}
        self.hardware_refusal = ""
        self.procs: list[ProcessUse] = []
        self.deaths: list[ProcessUse] = []
        self.wanted: list[Want] = []
        self.held: set[int] = set()
        self.actions: list[tuple[int, str, MemoryAction]] = []
        self.overheads: dict[tuple[int, str], int] = {}
        self.contexts: dict[tuple[int, str], int] = {}
        self.grants: dict[int, Grant] = {}
        self.calls: list[str] = []
        self.refuses: dict[int, str] = {}
        self.full = False  # what it refuses has no place
        self._tenants: dict[tuple[int, str], Tenant] = {}

    def restart(self) -> None:
        """Forget everything, as the real one does."""
        self.boot_id += 1
        self.connected = False
        self.grants.clear()
        self._tenants.clear()

    def count(self, job_id: int, uuid: str, procs: int = 1, **counters: Any) -> None:
        """Set a tenant's counters."""
        sample = Sample(job_id, uuid, self.boot_id, tenant_since=self.boot_id)
        self._tenants[job_id, uuid] = Tenant(sample._replace(**counters), procs)

    @property
    def uuids(self) -> tuple[str, ...]:
        """Cards that it was sent."""
        return tuple(self.plans)

    def connect(
        self, cards: Callable[[], Mapping[str, CardPlan]], grants: Sequence[Grant]
    ) -> Synced:
        """Take the full list."""
        self._check(connected=False)
        self.connected = True
        self.plans = dict(cards())
        self.grants = {grant.job_id: grant for grant in grants if grant.job_id not in self.refuses}
        self.calls.append("connect")
        refused = {
            grant.job_id: ArbiterRefusedError(self.refuses[grant.job_id], self.full)
            for grant in grants
            if grant.job_id in self.refuses
        }
        return Synced(self.boot_id, self.uuids, refused)

    def grant(self, grant: Grant) -> None:
        """Take one grant."""
        self._check()
        if grant.job_id in self.refuses:
            raise ArbiterRefusedError(self.refuses[grant.job_id], self.full)
        self.grants[grant.job_id] = grant
        self.calls.append(f"grant {grant.job_id}")

    def card(self, uuid: str, plan: CardPlan) -> None:
        """Take the settings of one card."""
        self._check()
        self.plans[uuid] = plan
        self.calls.append(f"card {uuid}")

    def hardware(self, order: HardwareOrder) -> str:
        """Remember it."""
        self._check()
        if not self.hardware_refusal:
            self.orders[order.uuid] = order
        return self.hardware_refusal

    def hardware_uses(self) -> HardwareReport:
        """What the test put into `uses` and `hung`."""
        self._check()
        return HardwareReport(list(self.uses), dict(self.hung))

    def processes(self) -> list[ProcessUse]:
        """What the test put into `procs`."""
        self._check()
        return list(self.procs)

    def overhead(self, job_id: int, uuid: str, size: int, context: int) -> None:
        """Remember it."""
        self._check()
        self.overheads[job_id, uuid] = size
        self.contexts[job_id, uuid] = context

    def ask_contexts(self, cost: Callable[[int, str], int]) -> None:
        """Remember it."""
        self.cost = cost

    def gone(self, dead: ProcessUse) -> None:
        """Remember the call."""
        self._check()
        self.calls.append(f"gone {dead.job_id} {dead.pid}")

    def listed(self, dead: ProcessUse) -> None:
        """Remember the call."""
        self._check()
        self.calls.append(f"listed {dead.job_id} {dead.pid}")

    def hold(self, job_id: int, held: bool) -> None:
        """Note it in `held`, also before the first connection; a later one knows it."""
        (self.held.add if held else self.held.discard)(job_id)
        if job_id in self.grants:
            self._check()
            self.calls.append(f"{'hold' if held else 'release'} {job_id}")

    def memory(self, job_id: int, uuid: str, action: MemoryAction) -> None:
        """Remember the call in `actions`."""
        self._check()
        self.actions.append((job_id, uuid, action))

    def wants(self) -> list[Want]:
        """What the test put into `wanted`, once."""
        self._check()
        found, self.wanted = self.wanted, []
        return found

    def died(self) -> list[ProcessUse]:
        """What the test put into `deaths`, once."""
        self._check()
        found, self.deaths = self.deaths, []
        return found

    def watch_fileno(self) -> int | None:
        """No descriptor."""
        return None

    def revoke(self, job_id: int, uuid: str = "") -> None:
        """Forget one grant and its tenants, or only the tenant of one card."""
        self._check()
        if not uuid:
            self.grants.pop(job_id, None)
            self.held.discard(job_id)
        kept = {k: v for k, v in self._tenants.items() if k[0] != job_id or uuid not in ("", k[1])}
        self._tenants = kept
        self.calls.append(f"revoke {job_id} {uuid}".rstrip())

    def tenants(self) -> list[Tenant]:
        """The counters set by `count`."""
        self._check()
        self.calls.append("stats")
        return list(self._tenants.values())

    @property
    def ended(self) -> bool:
        """Whether a call found the connection ended."""
        return not self.connected

    def fileno(self) -> int | None:
        """No descriptor: the daemon notices the end by failing calls."""
        return None

    def close(self) -> None:
        """End the connection."""
        self.connected = False

    def _check(self, connected: bool = True) -> None:
        if not self.running or (connected and not self.connected):
            self.connected = False
            raise ArbiterError("the arbiter does not answer")
