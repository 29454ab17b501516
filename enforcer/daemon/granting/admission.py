"""Admits a new grant beside older ones: whether its card has room, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Collection

from enforcer.daemon.granting.decide import overbooked, refused, taken
from enforcer.daemon.log import emit
from enforcer.daemon.requests.runs import is_run
from gres.config.site import Node
from gres.grant.hookenv import HookJob
from gres.grant.store import Grant


def in_the_way(grant: Grant, standing: Collection[Grant]) -> list[Grant]:
    """The grants of other jobs on its cards. `qgpu run` is not counted, nor a job that was moved
    there: it makes room.
    """
    cards = {card.uuid for card in grant.cards}
    return [
        other
        for other in standing
        if other.state != "refused"
        and not is_run(other.job_id)
        and other.job_id != grant.job_id
        and not cards.isdisjoint(card.uuid for card in other.cards if not card.home)
    ]


def within_the_card(
    grant: Grant, others: Collection[Grant], doubtful: Collection[int] = ()
) -> Grant:
    """The grant, or its refusal if `others` leave too little of its card.

    `doubtful`: jobs among them of which it is not known whether they still run.
    """
    if grant.state == "refused":
        return grant
    why = taken(grant, others, doubtful)
    if not why and grant.state == "active":
        why = overbooked(grant, [other for other in others if other.state == "active"], doubtful)
    return refused(grant, why, grant.created_ns) if why else grant


def without_place(grant: Grant, why: str) -> Grant:
    """The refusal of a job for which the arbiter has no place."""
    sentence = f"job {grant.job_id} has no place on {grant.node}: {why}. Submit it again."
    return refused(grant, sentence, grant.created_ns)


def log_grant(grant: Grant, standing: Collection[Grant]) -> None:
    """Log the grant; `standing` includes it."""
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
    _warn_if_overcommitted(grant, standing)


def _warn_if_overcommitted(grant: Grant, standing: Collection[Grant]) -> None:
    """Log a card on which `qgpu run` and jobs that reserve exceed the memory: Slurm does not count
    `qgpu run`.
    """
    reserving = [other for other in standing if not other.reclaimable]
    for card in () if grant.reclaimable else grant.cards:
        others = [(g.job_id, c.mem_cap) for g in reserving for c in g.cards if c.uuid == card.uuid]
        runs = [job_id for job_id, _ in others if is_run(job_id)]
        if runs and sum(cap for _, cap in others) > card.mem_total:
            emit(logging.WARNING, "card-crowded", job=grant.job_id, card=card.uuid, runs=len(runs))


def log_job(job: HookJob) -> None:
    """Log what is odd about a job that asks."""
    if job.overruled:
        said, counts = job.overruled, str(job.tag)
        emit(logging.WARNING, "tag-overruled", job=job.job_id, said=said, counts=counts)
    if job.untagged:
        emit(logging.INFO, "untagged-whole", job=job.job_id, uid=job.uid, cards=len(job.gpus))


def no_arbiter(node: Node, then: str = "") -> str:
    """The sentence about an arbiter that is not there.

    `then`: what to do when it is back; by default what a node needs after a failed Prolog.
    """
    return (
        f"qgpu-arbiter on this node does not answer at {node.run_dir}/arbiter.sock: start it"
        " (systemctl start qgpu-arbiter), then"
        f" {then or f'scontrol update nodename={node.name} state=resume'}"
    )
