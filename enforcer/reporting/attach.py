"""Connects an Observer with a running NodeService: once a second the arbiter and the driver are asked, and shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.arbiter.port import Tenant
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import CardInfo, CardLoad, CardLostError, Nvml, NvmlError
from enforcer.nvml.worker import NvmlStuckError
from enforcer.reporting.observer import Observer
from enforcer.reporting.state import Card, Seen
from gres.config.mig import Place
from gres.grant.identity import IdentityError

LIST_NS = 60 * 10**9  # the list of cards is expensive to ask for, and hardly ever changes
SLACK_NS = 500 * 10**6

# Card and load, in the driver's order; a card that does not answer has no load.
LoadAnswer = list[tuple[CardInfo, CardLoad | None]]


def sample_cards(nvml: Nvml, known: Sequence[CardInfo], listed: bool) -> LoadAnswer:
    """All cards with what they do now; the list of them is asked for unless it was of late. In the driver's thread.

    One card that fails takes nothing from what is known of the others. Raises the first error where all fail.
    """
    found: LoadAnswer = []
    failed: NvmlError | None = None
    for info in known if listed else _list(nvml, known):
        try:
            found.append((info, nvml.load(info.uuid)))
        except NvmlStuckError:
            raise
        except NvmlError as error:
            failed = failed or (None if isinstance(error, CardLostError) else error)
            found.append((info, None))
    if failed is not None and all(load is None for _, load in found):
        raise failed
    return found


def _list(nvml: Nvml, known: Sequence[CardInfo]) -> Sequence[CardInfo]:
    try:
        return nvml.cards()
    except NvmlStuckError:
        raise
    except NvmlError:
        if not known:
            raise
        return known


def seen_of(tenant: Tenant) -> Seen:
    """A tenant of the daemon as the live state takes it."""
    use = tenant.hardware
    plain = (tenant.sample, tenant.procs, tenant.gate, tenant.busy, tenant.suspended)
    return Seen(*plain) if use is None else Seen(*plain, use.state, use.counters())


@dataclass
class NodeObserver:
    """`tick` once a second; `start` and `close` around it."""

    service: NodeService
    observer: Observer
    _known: list[CardInfo] = field(default_factory=list)
    _looked_ns: int = 0
    _listed_ns: int = 0
    _indexes: dict[Place, int] = field(default_factory=dict)  # -> Slurm's index
    _seen: dict[int, tuple[Tenant, Seen]] = field(
        default_factory=dict
    )  # of the last look, by the tenant's id()

    @classmethod
    def of(cls, service: NodeService, clock: Clock) -> NodeObserver:
        """Made from what the service is made of."""
        return cls(service, Observer(service.config, service.node, service.ledger, clock))

    def start(self) -> None:
        """Open what others read from."""
        self.observer.start()

    def close(self) -> None:
        """Stop answering."""
        self.observer.close()

    def tick(self, force: bool = False) -> None:
        """Called each second: looks when somebody watches (or `force`), else as often as the ledger is written.

        The driver answers when it can, and then the state is shown.
        """
        now = self.observer.clock.monotonic_ns()
        pace = 0 if self.observer.watched() else self.service.config.enforcer.ledger_interval.ns
        fresh = self._looked_ns < self.service.sampler.polled_ns  # counters that nobody has shown yet
        if not force and not fresh and now - self._looked_ns < pace - SLACK_NS:
            return
        self._looked_ns = now
        if force or now - self.service.sampler.polled_ns > SLACK_NS:
            self.service.poll_arbiter()
        known, listed = self._known, now - self._listed_ns <= LIST_NS
        if not listed:
            self._listed_ns = now
        self.service.nvml.start(lambda nvml: sample_cards(nvml, known, listed), self._show)

    def _show(self, found: LoadAnswer | NvmlError) -> None:
        pairs: LoadAnswer = [(info, None) for info in self._known] if isinstance(found, NvmlError) else found
        self._known = [info for info, _ in pairs]
        if any(load is None for _, load in pairs):
            self._listed_ns = 0  # a card is lost, or the driver failed: ask for the list again
        if any(info.place not in self._indexes for info in self._known):
            self._identify()
        tenants = None
        if self.service.connected:
            tenants = self._tenants()
        self.observer.sample(self.service.grants.values(), tenants, list(self._cards(pairs)))

    def _tenants(self) -> list[Seen]:
        """What the arbiter said last; a tenant that did nothing since is the same object, and so is its view."""
        before, kept = self._seen, {}
        for tenant in self.service.sampler.tenants:
            old = before.get(id(tenant))
            kept[id(tenant)] = old if old is not None and old[0] is tenant else (tenant, seen_of(tenant))
        self._seen = kept
        return [seen for _, seen in kept.values()]

    def _cards(self, pairs: LoadAnswer) -> Iterable[Card]:
        memory: dict[str, dict[int, int]] = {}
        for (job, uuid), used in self.service.sampler.driver_memory.items():
            memory.setdefault(uuid, {})[job] = used
        for number, (info, load) in enumerate(pairs):
            yield Card(
                uuid=info.uuid,
                index=self._indexes.get(info.place),
                name=info.name,
                mem_total=info.mem_total,
                mem_used=None if load is None else load.mem_used,
                util=None if load is None else load.util_percent,
                driver_index=number,
                jobs=memory.get(info.uuid, {}),
            )

    def _identify(self) -> None:
        node = self.service.node
        try:
            named = self.service.ports.identify(node, range(len(node.cards)))
        except IdentityError:
            return  # said by the service already
        self._indexes = {card.place: card.spec.index for card in named}
