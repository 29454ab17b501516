"""Feeds an Observer from a running NodeService once a second: asks arbiter and driver, shows the
state.
"""

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

LIST_NS = 60 * 10**9  # the list of cards costs much and hardly ever changes
SLACK_NS = 500 * 10**6  # tolerance of the pace, since ticks are not exact

# Card and load, in the driver's order; a card that does not answer has no load.
LoadAnswer = list[tuple[CardInfo, CardLoad | None]]


def sample_cards(nvml: Nvml, known: Sequence[CardInfo], listed: bool) -> LoadAnswer:
    """All cards with their load; the list of cards is read anew unless `listed`. In NVML's thread.

    A card that fails does not hide the others. Raises the first error if all fail.
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
    """The daemon's tenant as the live state's type."""
    use = tenant.hardware
    plain = (tenant.sample, tenant.procs, tenant.gate, tenant.busy, tenant.suspended)
    return Seen(*plain) if use is None else Seen(*plain, use.state, use.counters())


@dataclass
class NodeObserver:
    """`tick` once a second; `start` and `close` around it."""

    service: NodeService
    observer: Observer
    _known: list[CardInfo] = field(default_factory=list)
    _sampled_ns: int = 0
    _listed_ns: int = 0
    _indexes: dict[Place, int] = field(default_factory=dict)  # -> Slurm's index
    _seen: dict[int, tuple[Tenant, Seen]] = field(
        default_factory=dict
    )  # of the last sample, by the tenant's id()

    @classmethod
    def of(cls, service: NodeService, clock: Clock) -> NodeObserver:
        """An observer with the service's parts."""
        return cls(service, Observer(service.config, service.node, service.ledger, clock))

    def start(self) -> None:
        """Open the sockets and files of reports."""
        self.observer.start()

    def close(self) -> None:
        """Stop answering."""
        self.observer.close()

    def tick(self, force: bool = False) -> None:
        """Sample each second while the state is watched (or `force`), else per ledger interval.

        The state is shown once the driver answers.
        """
        now = self.observer.clock.monotonic_ns()
        pace = 0 if self.observer.watched() else self.service.config.enforcer.ledger_interval.ns
        fresh = self._sampled_ns < self.service.sampler.polled_ns  # counters not shown yet
        if not force and not fresh and now - self._sampled_ns < pace - SLACK_NS:
            return
        self._sampled_ns = now
        if force or now - self.service.sampler.polled_ns > SLACK_NS:
            self.service.poll_arbiter()
        known, listed = self._known, now - self._listed_ns <= LIST_NS
        if not listed:
            self._listed_ns = now
        self.service.nvml.start(lambda nvml: sample_cards(nvml, known, listed), self._show)

    def _show(self, found: LoadAnswer | NvmlError) -> None:
        pairs: LoadAnswer = (
            [(info, None) for info in self._known] if isinstance(found, NvmlError) else found
        )
        self._known = [info for info, _ in pairs]
        if any(load is None for _, load in pairs):
            self._listed_ns = 0  # a card is lost, or the driver failed: ask for the list again
        if any(info.place not in self._indexes for info in self._known):
            self._identify()
        tenants = None
        if self.service.connected:
            tenants = self._tenants()
        reclaimer = self.service.reclaimer
        reclaims = reclaimer.figures() if reclaimer.enabled else None
        cards = list(self._cards(pairs))
        self.observer.sample(self.service.grants.values(), tenants, cards, reclaims)

    def _tenants(self) -> list[Seen]:
        """The arbiter's last counters; an unchanged tenant is the same
        object, and so is its view.
        """
        before, kept = self._seen, {}
        for tenant in self.service.sampler.tenants:
            old = before.get(id(tenant))
            kept[id(tenant)] = (
                old if old is not None and old[0] is tenant else (tenant, seen_of(tenant))
            )
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
            return  # logged by the service
        self._indexes = {card.place: card.spec.index for card in named}
