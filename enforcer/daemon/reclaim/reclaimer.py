"""Takes memory of reclaimable jobs back and returns it, as enforcer/reclaim decides.

Nothing here waits: NVML answers through its thread, helpers are children, and the loop calls `tick`
when one ends or time passed. A decision is made after each change, on a fresh sample.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.daemon.arbiter.port import ArbiterError, MemoryAction
from enforcer.daemon.log import emit
from enforcer.daemon.reclaim.claims import Claims
from enforcer.daemon.reclaim.mover import LOCKS
from enforcer.daemon.reclaim.moves import Moves, taken_back
from enforcer.daemon.reclaim.seen import CardSeen, MemoryQuestion, Owners, on_card, uses_of
from enforcer.daemon.reclaim.wants import Wants
from enforcer.ledger import reclaims as rows
from enforcer.nvml.port import NvmlError
from enforcer.reclaim.decide import decide
from enforcer.reclaim.model import (
    Card,
    Final,
    Hold,
    Job,
    Leave,
    Order,
    Ready,
    Retry,
    Return,
    Room,
    Settings,
)
from gres.grant.store import Grant
from gres.units import MIB

if TYPE_CHECKING:
    from enforcer.daemon.node import NodeService

CALM_NS = 10**9  # period of samples while jobs or allocations wait, and nothing moves


@dataclass
class Reclaimer:
    """The jobs of one node that are away, and all that waits for memory."""

    service: NodeService
    claims: Claims = field(init=False)
    wants: Wants = field(init=False)
    moves: Moves = field(init=False)
    owners: Owners = field(init=False)
    _rooms: dict[int, Room] = field(default_factory=dict)
    _ordered: dict[int, tuple[str, int]] = field(default_factory=dict)  # by root
    _sampling: bool = False
    _again: bool = False
    _failed: bool = False
    _looked_ns: int = 0

    def __post_init__(self) -> None:
        service, clock = self.service, self.service.ports.clock
        hysteresis, slack = service.config.reclaim.hysteresis, service.config.enforcer.audit.slack
        self.settings = Settings(hysteresis.ns, slack * MIB)
        self.owners, self.wants = Owners(service.job_of, clock), Wants(clock)
        claims = Path(service.node.run_dir) / LOCKS
        self.claims = Claims(service.config, service.node, clock, service.ports.queue, claims)
        self.moves = Moves(service)

    @property
    def enabled(self) -> bool:
        """Whether memory of any job may be taken back."""
        return self.service.config.reclaiming or any(map(taken_back, self.service.grants.values()))

    def wanted(self) -> bool:
        """Whether `tick` has something to do."""
        waits = self.claims.open or self.wants.cards() or self.moves.away or self._ordered
        return bool(waits or self.moves.transfers.moved())

    # ---- what happens ---------------------------------------------------------------------------

    def admit(self, grant: Grant) -> Grant | str:
        """The grant, or its refusal, or why its Prolog waits."""
        if not self.service.connected and not self.claims.waits(grant.job_id):
            return grant  # no job can leave without the arbiter
        contested = {
            card.uuid
            for other in self.service.grants.values()
            if other.reclaimable and other.job_id != grant.job_id
            for card in other.cards
        }
        standing = list(self.service.grants.values())
        found = self.claims.admit(grant, standing, contested)
        if isinstance(found, Grant):
            return found
        self.look()
        return self.claims.admit(grant, standing, contested)

    def synced(self, uuids: Iterable[str]) -> bool:
        """The arbiter has the full list: allocations that its driver refuses wait from now on; not
        where no class is reclaimable any more. Whether it is still connected.
        """
        self.wants.clear()
        action = MemoryAction.WAIT if self.enabled else MemoryAction.NOWAIT
        try:
            for uuid in uuids:
                self.service.ports.arbiter.memory(0, uuid, action)
        except ArbiterError as error:
            self.service.lose_arbiter(str(error))
        return self.service.connected

    def note_wants(self) -> None:
        """Take what processes wait for."""
        try:
            news = self.wants.note(self.service.ports.arbiter.wants())
        except ArbiterError:
            return  # the loop notices the end of the connection
        if news:
            self.look()

    def order(self, job_id: int, uuid: str) -> None:
        """Root wants the job on another card: it leaves once it is known what it holds."""
        until = self.service.ports.clock.monotonic_ns() + self.service.config.reclaim.deadline.ns
        self._ordered[job_id] = (uuid, until)
        self.look()

    def recall(self, job_id: int) -> None:
        """Root wants the job where it is: an earlier order that was not carried out yet ends."""
        self._ordered.pop(job_id, None)
        away = self.moves.away.get(job_id)
        if away is not None:
            away.wanted = ""

    def ordered(self, job_id: int) -> bool:
        """Whether root's order for the job was not begun yet."""
        return job_id in self._ordered

    def ended(self, job_id: int) -> None:
        """The job's grant ended: its processes are gone, or go now."""
        self.claims.withdraw(job_id)
        self.wants.ended(job_id)
        self._ordered.pop(job_id, None)
        self.moves.ended(job_id)
        self.look()  # there may be room

    def tick(self) -> None:
        """Take the ends of operations, and decide anew. Without haste if all only wait for room.

        What is new (a want, the end of a grant or of a helper) is looked at when it comes.
        """
        busy = self.claims.open or self.moves.moving()
        self.moves.advance()
        self.moves.transfers.confine_again()
        if busy or self.service.ports.clock.monotonic_ns() - self._looked_ns >= CALM_NS:
            self.look()

    def poll(self) -> None:
        """Count the time of jobs that are away in the ledger."""
        if self.moves.away:
            service = self.service
            service.sampler.note(rows.tally, service.ledger, service.ports.clock.realtime_ns())

    def figures(self) -> dict[str, int]:
        """What was taken back since the start of qgpud, and how it stands now."""
        away = self.moves.away.values()
        return {
            **self.moves.totals.as_dict(),
            "away": sum(one.state == "checkpointed" for one in away),
            "away_bytes": sum(one.size for one in away if one.state == "checkpointed"),
            "moving": sum(one.operation is not None for one in away),
            "claims": len(self.claims.waiting()),
        }

    # ---- samples and decisions ------------------------------------------------------------------

    def look(self) -> None:
        """Ask the driver, then decide. What changes while it is asked needs one more sample."""
        if self._sampling:
            self._again = True
            return
        cards = self.wants.cards() | self.claims.cards()
        if cards or self.moves.away or self._ordered:
            # All cards of jobs that could leave or return: such a job moves as a whole.
            away = self.moves.away
            grants = [g for g in self.service.grants.values() if g.reclaimable or g.job_id in away]
            cards |= {card.uuid for grant in grants for card in grant.cards}
            cards |= self.moves.transfers.others(self.moves.away.values())
            self._sampling = True
            self._looked_ns = self.service.ports.clock.monotonic_ns()
            self.service.nvml.start(MemoryQuestion(sorted(cards)), self._sampled)

    def _sampled(self, found: dict[str, CardSeen] | NvmlError) -> None:
        again, self._sampling, self._again = self._again, False, False
        if isinstance(found, NvmlError):
            if not self._failed:
                emit(logging.ERROR, "reclaim", step="sample", why=found)
            self._failed = True
            self._take_orders(())
            return
        self._failed = False
        if again:
            self.look()
        else:
            self._decide(found)

    def _decide(self, cards: dict[str, CardSeen]) -> None:
        self.moves.uses = uses_of(cards, self.owners, self._counted)
        self.moves.doubt()
        self._take_orders(cards)
        clock = self.service.ports.clock
        decision = decide(
            [Card(uuid, card.free) for uuid, card in cards.items()],
            [self._job(g) for g in self.service.grants.values() if g.state != "refused"],
            self.claims.waiting(),
            clock.monotonic_ns(),
            self._rooms,
            self.settings,
        )
        self._rooms = dict(decision.rooms)
        for order in decision.orders:
            self._obey(order, cards)

    def _take_orders(self, seen: Collection[str]) -> None:
        """Begin what root ordered, for jobs on cards that answered: what they hold is known."""
        now = self.service.ports.clock.monotonic_ns()
        for job_id, (uuid, until_ns) in list(self._ordered.items()):
            grant = self.service.grants[job_id]  # else the order would have ended as well
            if now >= until_ns:
                why = f"card {grant.cards[0].index} did not answer within reclaim.deadline"
            elif grant.cards[0].uuid in seen:
                why = self._begin(grant, uuid, until_ns)
            else:
                continue
            del self._ordered[job_id]
            if why:
                emit(logging.WARNING, "not-moved", job=job_id, why=why)

    def _begin(self, grant: Grant, uuid: str, until_ns: int) -> str:
        """Why what root ordered cannot begin; else empty."""
        try:
            self.moves.want(grant, uuid, until_ns)
        except ArbiterError as error:
            self.service.lose_arbiter(str(error))
        away = self.moves.away.get(grant.job_id)
        if away is not None:
            return "" if away.wanted == uuid else "its memory is on its way already"
        if self.service.connected:
            return "all its processes on the card ended"
        return "qgpu-arbiter does not answer, and it closes the gates"

    def _counted(self, job_id: int, uuid: str) -> int | None:
        """What the arbiter counts, where the driver does not tell."""
        of_job = (t.sample for t in self.service.sampler.tenants if t.sample.job_id == job_id)
        return next((sample.mem_used for sample in of_job if sample.uuid == uuid), None)

    def _job(self, grant: Grant) -> Job:
        away = self.moves.away.get(grant.job_id)
        holds = {
            card.uuid: Hold(
                card.mem_cap,
                on_card(self.moves.uses, grant.job_id, card.uuid),
                0 if away is None else away.taken(card.uuid),
            )
            for card in grant.cards
        }
        return Job(
            grant.job_id,
            not grant.reclaimable and away is None,
            holds,
            grant.created_ns,
            "resident" if away is None else away.state,
            0 if away is None else away.left_at,
            self.wants.of(grant.job_id),
            () if away is None else self.moves.transfers.elsewhere(away),
            "" if away is None else self.moves.transfers.wanted(away),
        )

    def _obey(self, order: Order, cards: dict[str, CardSeen]) -> None:
        try:
            match order:
                case Leave(job_id, other):
                    self.moves.leave(self.service.grants[job_id], other)
                case Return(job_id, to):
                    self.moves.back(job_id, to)
                case Retry(job_id, uuid):
                    self._tell(job_id, uuid, MemoryAction.RETRY, cards[uuid].free)
                case Final(job_id, uuid):
                    self._tell(job_id, uuid, MemoryAction.FINAL, cards[uuid].free)
                    emit(logging.WARNING, "reclaim", step="final", job=job_id, card=uuid)
                case Ready(job_id):
                    self.claims.ready(job_id)
        except ArbiterError as error:
            self.service.lose_arbiter(str(error))

    def _tell(self, job_id: int, uuid: str, action: MemoryAction, free: int) -> None:
        if self.service.connected:
            self.service.ports.arbiter.memory(job_id, uuid, action)
            self.wants.asked(job_id, uuid, free)
