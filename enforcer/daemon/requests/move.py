"""Moves a running job to another card of its node, ordered by root (`qgpu job move`)."""

from __future__ import annotations

from dataclasses import dataclass

from enforcer.daemon.arbiter.port import ArbiterError
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import CardInfo
from gres.grant.store import Grant
from gres.units import MIB, format_mib


class MoveError(RuntimeError):
    """The job stays where it is; the text is a sentence."""


@dataclass(frozen=True)
class Where:
    """A job's card by Slurm's index, and what its memory does (enforcer.reclaim.model.State).

    `wanted`: it is still on its way to the card that root ordered.
    """

    index: int
    state: str
    wanted: bool


def order_move(service: NodeService, job_id: int, index: int, info: CardInfo) -> bool:
    """Begin the move; whether the job is there already. Raises MoveError, NvmlError."""
    grant = _movable(service, job_id)
    if grant.cards[0].uuid == info.uuid:
        service.reclaimer.recall(job_id)
        return True
    transfers = service.reclaimer.moves.transfers
    why = transfers.unfit(grant, index, info) or _on_its_way(service, job_id)
    if why:
        raise MoveError(why)
    pids = _processes(service, job_id)
    if not pids:
        raise MoveError(f"no process of job {job_id} uses its card, so there is nothing to move")
    why = service.devices.refusal(job_id, pids) or _full(service, grant, index, info)
    if why:
        raise MoveError(why)
    service.reclaimer.order(job_id, info.uuid)
    return False


def where(service: NodeService, job_id: int) -> Where:
    """Where the job is. Raises MoveError."""
    grant = _movable(service, job_id)
    away = service.reclaimer.moves.away.get(job_id)
    state = "resident" if away is None else away.state
    ordered = service.reclaimer.ordered(job_id)
    moving = away is not None and (away.wanted or state in ("leaving", "returning"))
    wanted = ordered or (bool(moving) and state != "unable")
    return Where(grant.cards[0].index, state, wanted)


def _movable(service: NodeService, job_id: int) -> Grant:
    grant = service.grants.get(job_id)
    if grant is None or grant.state != "active":
        raise MoveError(f"job {job_id} has no share of a card on {service.node.name}")
    return grant


def _on_its_way(service: NodeService, job_id: int) -> str:
    away = service.reclaimer.moves.away.get(job_id)
    if away is None and not service.reclaimer.ordered(job_id):
        return "" if service.connected else "qgpu-arbiter does not answer, and it closes the gates"
    if away is not None and away.state == "checkpointed" and away.operation is None:
        return ""
    return f"the memory of job {job_id} is on its way; try again in a few seconds"


def _processes(service: NodeService, job_id: int) -> list[int]:
    moves = service.reclaimer.moves
    if job_id in moves.away:
        return list(moves.away[job_id].pids)
    try:
        return moves.registered(job_id)
    except ArbiterError:
        return []


def _full(service: NodeService, grant: Grant, index: int, info: CardInfo) -> str:
    """Why the card cannot take what the job holds, by the driver's free bytes, less what jobs that
    reserve have not used of their caps.
    """
    used = {
        (t.sample.job_id, t.sample.uuid): t.sample.mem_used or 0 for t in service.sampler.tenants
    }
    away = service.reclaimer.moves.away.get(grant.job_id)
    needs = used.get((grant.job_id, grant.cards[0].uuid), 0) if away is None else away.size
    kept = sum(
        max(0, card.mem_cap - used.get((other.job_id, card.uuid), 0))
        for other in service.grants.values()
        if not other.reclaimable and other.state != "refused"
        for card in other.cards
        if card.uuid == info.uuid
    )
    free = service.nvml.call(lambda nvml: nvml.free(info.uuid))
    if needs <= free - kept:
        return ""
    has, wants = (format_mib(max(0, size) // MIB) for size in (free - kept, needs))
    return (
        f"job {grant.job_id} holds {wants}, and card {index} of {service.node.name} has {has} free"
        " beside what other jobs reserve there"
    )
