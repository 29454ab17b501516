"""Moves a running job to the other class, ordered by root (`qgpu job class`).

Slurm never changes the QOS of a running job (seen on 22.05, 24.11 and 26.05), so root orders it on
the node. Slurm's accounting and the ledger keep the class that was booked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import cast

from enforcer.daemon.granting.decide import reclaimable
from enforcer.daemon.log import emit
from enforcer.daemon.node import NodeService
from enforcer.daemon.reclaim.transfer import is_guest
from enforcer.daemon.requests.runs import is_run
from enforcer.ledger.store import read_usage
from enforcer.wire.abi import AbiError, pack_grant
from gres.config.schema import JobClass
from gres.grant.store import Grant, GrantError
from gres.request.reservation import shards
from gres.units import MIB


class ReclassError(RuntimeError):
    """The job's class did not change; the text is a sentence."""


@dataclass(frozen=True)
class Reclassed:
    """The result. An absent arbiter gets the change when it is back (`reached` is False)."""

    before: JobClass
    after: JobClass
    reached: bool


def change_class(service: NodeService, job_id: int, job_class: JobClass, force: bool) -> Reclassed:
    """Count a running job's share as `job_class` from now on. Raises ReclassError."""
    old = service.grants.get(job_id)
    if old is None or old.state != "active":
        what = (
            "has no share of a card" if old is None else "has no class: its grant is " + old.state
        )
        raise ReclassError(f"job {job_id} {what} on {service.node.name}")
    assert old.job_class is not None  # an active grant has one
    if not force:
        _check_booked(service, old, _booked_class(service, old), job_class)
    plans = {card.uuid: service.plan(card.index, card.uuid) for card in old.cards}
    cards = tuple(replace(c, governed=plans[c.uuid].governed(job_class)) for c in old.cards)
    # Host memory for it was booked at submission or never.
    taken = old.reclaimable and reclaimable(job_class, cards, service.config)
    new = replace(old, job_class=job_class, cards=cards, reclaimable=taken)
    if old.reclaimable and not taken:
        _check_at_home(service, old)
    try:
        blob = pack_grant(new, service.node.injection, service.node.managed, service.node.usable)
        service.store.rewrite(new, blob)
    except (AbiError, GrantError, OSError) as error:
        raise ReclassError(f"the grant of job {job_id} cannot be written: {error}") from None
    service.grants[job_id] = new
    service.reclaimer.moves.regrant(new)
    emit(
        logging.WARNING, "reclassed", job=job_id, before=old.job_class, after=job_class, force=force
    )
    answer = service.send_grant(new)
    return Reclassed(old.job_class, job_class, answer is not None and answer.status == 0)


def _check_at_home(service: NodeService, grant: Grant) -> None:
    """A job that reserves memory does so where Slurm booked its share."""
    away = service.reclaimer.moves.away.get(grant.job_id)
    ordered = service.reclaimer.ordered(grant.job_id) or (away is not None and away.wanted)
    if ordered or is_guest(grant):
        raise ReclassError(
            f"job {grant.job_id} is not on the card that Slurm booked, or about to leave it. Memory"
            " can be reserved there alone: move the job back first (qgpu job move)"
        )


def _booked_class(service: NodeService, grant: Grant) -> JobClass:
    """The class that the job was submitted with; the grant's may have been changed since."""
    rows = read_usage(service.ledger.path, [grant.job_id])
    granted = [row.job_class for row in rows if row.ended_at is None]
    return cast("JobClass", granted[-1] if granted else grant.job_class)


def _check_booked(service: NodeService, grant: Grant, old: JobClass, new: JobClass) -> None:
    """Check that Slurm booked what the class promises: its compute, and memory that is reserved."""
    if is_run(grant.job_id):
        return
    config = service.config
    stays = grant.reclaimable and config.reclaims(new)
    for card in grant.cards:
        usable = service.node.cards[card.index].usable
        mem = -(-card.mem_cap // MIB)
        needs, has = (
            shards(card.share, mem, usable, "compute" in config.classes[name].reserves, free)
            for name, free in ((new, stays), (old, grant.reclaimable))
        )
        if needs > has:
            raise ReclassError(
                f"job {grant.job_id} is booked with {has} % of its card and {new} needs {needs} %:"
                " Slurm may"
                " have promised the rest to others. Submit it again with that QOS, or use --force"
            )
