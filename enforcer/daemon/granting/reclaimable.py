"""Bounds what of one card may be promised to jobs whose memory may be taken back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from enforcer.daemon.granting.decide import named_jobs
from gres.config.site import Config, Node
from gres.grant.store import Grant
from gres.units import MIB, format_mib


def too_many(grant: Grant, others: Iterable[Grant], node: Node, config: Config) -> str:
    """Why the grant exceeds `max_reclaimable` of a card, as a sentence for the user; else empty.

    The job is to be requeued: others end, or Slurm finds another card. A job that was moved to the
    card counts only for another one that is to move there: Slurm does not know of it.
    """
    if not grant.reclaimable:
        return ""
    found = [other for other in others if other.reclaimable and other.job_id != grant.job_id]
    for card in grant.cards:
        beside = {
            other.job_id: held.mem_cap
            for other in found
            for held in other.cards
            if held.uuid == card.uuid and (card.home or not held.home)
        }
        limit = node.cards[card.index].usable * MIB * config.max_reclaimable // 100
        held_by_all = sum(beside.values())
        if held_by_all + card.mem_cap > limit:
            own, all_, most = (format_mib(n // MIB) for n in (card.mem_cap, held_by_all, limit))
            whose = f"and {all_} belong to {named_jobs(beside)}" if beside else "which is more"
            return (
                f"job {grant.job_id} wants {own} of card {card.index} of {grant.node} that may be"
                f" taken back, {whose}. At most {most} may ({config.max_reclaimable} %,"
                " max_reclaimable)."
            )
    return ""
