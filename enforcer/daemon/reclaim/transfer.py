"""Moves jobs to other cards of their node: where one may go, and the switch of its grant.

Slurm's booking stays with the card where the job began. A job that is moved has one card, and its
memory may be taken back: so it reserves nothing where it goes (docs/specs/reclaim.md).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from enforcer.daemon.arbiter.port import ArbiterError, ArbiterRefusedError
from enforcer.daemon.devices.port import Device, DevicesError
from enforcer.daemon.granting.reclaimable import too_many
from enforcer.daemon.log import emit
from enforcer.daemon.reclaim.away import Away
from enforcer.ledger import reclaims as rows
from enforcer.nvml.port import CardInfo, NvmlError
from enforcer.wire.abi import AbiError, pack_grant
from gres.grant.identity import IdentityError
from gres.grant.store import Grant, GrantError

if TYPE_CHECKING:
    from enforcer.daemon.node import NodeService

MAPS = 580  # first driver that restores a process on another card


@dataclass
class Transfers:
    """The moves of one node's jobs between its cards."""

    service: NodeService
    _driver: str = ""
    _failed: dict[int, str] = field(default_factory=dict)  # what confine_again said of jobs

    # ---- where a job may go ---------------------------------------------------------------------

    def offers(self) -> list[tuple[int, CardInfo]]:
        """The node's cards that answer, by Slurm's index; none while the driver fails."""
        try:
            return self.service.view.recent()
        except (NvmlError, IdentityError):
            return []

    def _offer(self, uuid: str) -> tuple[int, CardInfo] | None:
        """The card of this UUID; None if it does not answer."""
        return next(((i, info) for i, info in self.offers() if info.uuid == uuid), None)

    def elsewhere(self, away: Away) -> tuple[str, ...]:
        """The other cards where a job that is away may return by itself: where it began, if its
        card was given to another job as a whole; any with `reclaim.move`.
        """
        grant, card = away.grant, away.grant.cards[0]
        if away.stays or away.state != "checkpointed":
            return ()
        others = [(i, info) for i, info in self.offers() if info.uuid != card.uuid]
        if not self.service.config.reclaim.move:
            home = self._shut_out(away)
            others = [(i, info) for i, info in others if info.uuid == home]
        return tuple(info.uuid for index, info in others if not self.unfit(grant, index, info))

    def _shut_out(self, away: Away) -> str:
        """The card where Slurm booked the job, if the one where it is belongs to another as a
        whole; else empty.
        """
        card = away.grant.cards[0]
        return card.home if card.home and self._whole(card.uuid) else ""

    def wanted(self, away: Away) -> str:
        """The card where root wants it, for as long as it waits for that one alone."""
        if self.service.ports.clock.monotonic_ns() >= away.wanted_ns:
            away.wanted = ""
        return away.wanted

    def others(self, aways: Iterable[Away]) -> set[str]:
        """The cards to sample because one of these may return there."""
        wanted = {uuid for away in aways for uuid in (away.wanted, self._shut_out(away)) if uuid}
        move = self.service.config.reclaim.move
        return wanted | ({info.uuid for _, info in self.offers()} if move else set())

    def unfit(self, grant: Grant, index: int, info: CardInfo) -> str:
        """Why the job cannot be on this card, as a sentence; else empty."""
        node, plan = self.service.node, self.service.plan(index, info.uuid)
        name, job = f"card {index} of {node.name}", f"job {grant.job_id}"
        if not grant.reclaimable:
            return (
                f"{job} reserves its memory on card {grant.cards[0].index}, where Slurm booked it;"
                " only jobs of a class with memory: reclaimable are moved"
            )
        if len(grant.cards) > 1:
            return f"{job} has {len(grant.cards)} cards; only a job with one is moved"
        here = grant.cards[0]
        if info.instance is not None or not here.uuid.startswith("GPU-"):
            return f"{job} or {name} uses a MIG instance, which the driver does not move"
        if node.cards[index].model != node.cards[here.index].model or (
            info.mem_total != here.mem_total
        ):
            return f"{name} is not of the same kind as card {here.index}, where {job} is"
        if not plan.governed(grant.job_class):
            return f"{name} has isolation none, so {job} would have no gate there"
        if int("0" + self._version().split(".")[0]) < MAPS:
            return (
                f"the driver of {node.name} is {self._version() or 'unknown'}; moving a job to"
                f" another card takes {MAPS} or later"
            )
        whole = self._whole(info.uuid)
        if whole:
            return f"{name} belongs to job {whole} as a whole"
        standing = self.service.grants.values()
        return too_many(self._moved(grant, index, info), standing, node, self.service.config)

    def _whole(self, uuid: str) -> int:
        """The job that has this card as a whole; 0: none."""
        whole = (one for one in self.service.grants.values() if one.state == "whole")
        return next((g.job_id for g in whole if any(c.uuid == uuid for c in g.cards)), 0)

    def _version(self) -> str:
        """The driver's, asked for once it answers."""
        if not self._driver:
            try:
                self._driver = self.service.nvml.call(lambda nvml: nvml.driver_version())
            except NvmlError:
                return ""
        return self._driver

    # ---- the switch -----------------------------------------------------------------------------

    def obstacle(self, away: Away, uuid: str) -> str:
        """Why the job cannot go to this card now, as a sentence; else empty.

        Cards and grants may have changed since it was chosen. A job that goes by itself has its
        cgroups checked here.
        """
        found = self._offer(uuid)
        if found is None:
            return f"card {uuid} does not answer"
        grant = away.grant
        return self.unfit(grant, *found) or self.service.devices.refusal(grant.job_id, away.pids)

    def switch(self, away: Away, uuid: str) -> str:
        """Make another card the job's, while its memory is away; why not, as a sentence, or empty.

        First its cgroups open that card and no other one. The files of the grant are the truth
        from then on.
        """
        service, old = self.service, away.grant
        found = self._offer(uuid)
        if found is None:
            return f"card {uuid} does not answer"
        new = self._moved(old, *found)
        why = self.confine(new) or self._write(new)
        if why:
            return self._undo(old, why)
        service.grants[new.job_id] = new
        service.poll_arbiter()  # it drops the counters of the former card
        why = self._tell(new, old.cards[0].uuid)
        if why:
            return self._undo(old, why)
        service.memory.release(new.job_id)  # its limits are by card
        self._book(away, new)
        emit(logging.INFO, "moved", job=new.job_id, card=uuid, before=old.cards[0].uuid)
        return ""

    def _undo(self, old: Grant, why: str) -> str:
        """The job keeps its card; returns `why`."""
        self._write(old)
        self.service.grants[old.job_id] = old
        self.confine(old)
        return why

    def _moved(self, grant: Grant, index: int, info: CardInfo) -> Grant:
        card = grant.cards[0]
        home, minor = card.home or card.uuid, card.minor if not card.home else card.home_minor
        back = info.uuid == home
        new = replace(
            card,
            uuid=info.uuid,
            minor=info.minor,
            index=index,
            mem_total=info.mem_total,
            mem_cap=min(card.mem_cap, info.mem_total),
            home="" if back else home,
            home_minor=-1 if back else minor,
            moved_from=card.uuid,
            moved_ns=self.service.ports.clock.realtime_ns(),
        )
        return replace(grant, cards=(new,))

    def confine(self, grant: Grant) -> str:
        """Let the job open its present card and no other one of the node; why not, or empty. It may
        open none while its card belongs to another job as a whole.
        """
        service, card = self.service, grant.cards[0]
        try:
            allow = service.ports.devices_of(service.node.cards[card.index])
            if self._whole(card.uuid):
                allow = frozenset()
            service.devices.apply(grant.job_id, allow, self._all_devices())
        except DevicesError as error:
            return str(error)
        return ""

    def _all_devices(self) -> frozenset[Device]:
        """The devices of the node's cards; one whose file is gone has none."""
        found: set[Device] = set()
        for card in self.service.node.cards:
            with contextlib.suppress(DevicesError):
                found |= self.service.ports.devices_of(card)
        return frozenset(found)

    def _write(self, grant: Grant) -> str:
        node = self.service.node
        try:
            blob = pack_grant(grant, node.injection, node.managed, node.usable)
            self.service.store.rewrite(grant, blob)
        except (AbiError, GrantError, OSError) as error:
            return f"the grant of job {grant.job_id} cannot be written: {error}"
        return ""

    def _tell(self, new: Grant, old: str) -> str:
        """Tell the arbiter; one that is away gets the full list when it is back."""
        arbiter = self.service.ports.arbiter
        try:
            if self.service.connected:
                arbiter.grant(new)
                arbiter.revoke(new.job_id, old)
        except ArbiterRefusedError as error:
            return str(error)
        except ArbiterError as error:
            self.service.lose_arbiter(str(error))
        return ""

    def _book(self, away: Away, new: Grant) -> None:
        """The ledger's row of the former card ends, and what was away is away from the new one."""
        service, now, old = self.service, new.cards[0].moved_ns, away.grant.cards[0].uuid
        sizes = {new.cards[0].uuid: away.size}
        note = service.sampler.note
        note(rows.back, service.ledger, new.job_id, now, "moved")
        note(service.ledger.open_grant, new)
        note(rows.left, service.ledger, new, now, f"moved from {old}", sizes)
        note(rows.moved, service.ledger, new.job_id, 0)
        away.sizes = {pid: {new.cards[0].uuid: sum(h.values())} for pid, h in away.sizes.items()}
        away.grant, away.came_from, away.there = new, old, set()
        away.wanted = ""  # it is there; where the card is full, it waits like all others

    def resume(self, away: Away) -> None:
        """After a restart of qgpud: where the memory of a job that is away was taken from."""
        card = away.grant.cards[0]
        if len(away.grant.cards) == 1 and card.moved_ns >= away.left_at:
            away.came_from = card.moved_from
            away.sizes = {0: {card.uuid: away.size}}
        if len(away.grant.cards) == 1:  # its cgroups may be open for the card where it was to go
            self.confine(away.grant)

    def mend(self, grant: Grant) -> None:
        """Write the grant's files again where an earlier qgpud was killed between the two."""
        node = self.service.node
        with contextlib.suppress(AbiError):
            blob = pack_grant(grant, node.injection, node.managed, node.usable)
            if not self.service.store.holds(grant, blob):
                why = self._write(grant)
                emit(logging.WARNING, "grant-mended", job=grant.job_id, why=why or None)

    # ---- later steps ----------------------------------------------------------------------------

    def moved(self) -> list[Grant]:
        """The jobs that are not on the card that Slurm booked."""
        return [grant for grant in self.service.grants.values() if is_guest(grant)]

    def confine_again(self) -> None:
        """Slurm opens the booked card to each new step of a moved job: correct that."""
        failed = {}
        for grant in self.moved():
            why = self.confine(grant)
            if why:
                failed[grant.job_id] = why
            if why and self._failed.get(grant.job_id) != why:
                emit(logging.ERROR, "devices-failed", job=grant.job_id, why=why)
        self._failed = failed


def is_guest(grant: Grant) -> bool:
    """Whether the job is on a card that Slurm did not book for it."""
    return any(card.home for card in grant.cards)
