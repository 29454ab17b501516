"""Admits a new grant beside older ones: whether its card has room, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Collection

from enforcer.daemon.granting.decide import overbooked, refused, taken
from enforcer.daemon.log import emit
from enforcer.daemon.requests.runs import is_run
from gres.grant.store import Grant


def within_the_card(grant: Grant, standing: Collection[Grant]) -> Grant:
    """The grant, or its refusal if its card has too little left. `qgpu run` is not counted here."""
    if grant.state == "refused":
        return grant
    others = [other for other in standing if other.state != "refused" and not is_run(other.job_id)]
    why = taken(grant, others)
    if not why and grant.state == "active":
        why = overbooked(grant, [other for other in others if other.state == "active"])
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
    """Log a card on which `qgpu run` and jobs exceed the memory: Slurm
    does not count `qgpu run`.
    """
    for card in grant.cards:
        others = [(g.job_id, c.mem_cap) for g in standing for c in g.cards if c.uuid == card.uuid]
        runs = [job_id for job_id, _ in others if is_run(job_id)]
        if runs and sum(cap for _, cap in others) > card.mem_total:
            emit(logging.WARNING, "card-crowded", job=grant.job_id, card=card.uuid, runs=len(runs))
