"""What root asks about running jobs: their class, the audit's pardon, their end, their card."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from enforcer.daemon.log import emit
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.move import order_move, where
from enforcer.daemon.requests.reclass import change_class
from enforcer.daemon.requests.reply import RefusedError
from enforcer.daemon.requests.runs import Offer, is_run
from gres.config.site import CLASSES, JobClass
from gres.grant.store import Grant

Question = dict[str, Any]
Find = Callable[[Question], Offer]  # the card that a question names; RefusedError


@dataclass(frozen=True)
class JobAsk:
    """A question, and what it does for the sentence that only root may: verb and object.

    `answer` gets the service, the question, the uid that asks, and how a card is found.
    """

    verb: str
    what: str
    answer: Callable[[NodeService, Question, int, Find], dict[str, Any]]


def _standing(service: NodeService, question: Question) -> Grant:
    job = question.get("job")
    grant = service.grants.get(job) if type(job) is int else None
    if grant is None:
        raise RefusedError(
            f"no grant of a job {job!r} stands on {service.node.name}; see qgpu jobs"
        )
    return grant


def _class(service: NodeService, question: Question, uid: int, find: Find) -> dict[str, Any]:
    job, job_class = question.get("job"), question.get("job_class")
    if type(job) is not int or job_class not in CLASSES:
        raise RefusedError("a job's number and a class are needed, online or offline")
    force = question.get("force") is True
    done = change_class(service, job, cast("JobClass", job_class), force)
    return {"before": done.before, "after": done.after, "reached": done.reached}


def _pardon(service: NodeService, question: Question, uid: int, find: Find) -> dict[str, Any]:
    grant = _standing(service, question)
    pids = service.inspector.pardon(grant)
    emit(logging.INFO, "job-pardon", job=grant.job_id, continued=pids or None, uid=uid)
    return {"continued": pids}


def _release(service: NodeService, question: Question, uid: int, find: Find) -> dict[str, Any]:
    """End the grant of a job that is gone: where qgpud cannot ask slurmctld itself."""
    job = _standing(service, question).job_id
    service.steps.adopt([job])
    if is_run(job) or service.steps.of(job):
        raise RefusedError(f"job {job} still runs on {service.node.name}; end it first")
    emit(logging.WARNING, "job-release", job=job, uid=uid)
    service.end(job, "released")
    return {}


def _move(service: NodeService, question: Question, uid: int, find: Find) -> dict[str, Any]:
    grant, offer = _standing(service, question), find(question)
    there = order_move(service, grant.job_id, offer.index, offer.info)
    emit(logging.INFO, "job-move", job=grant.job_id, card=offer.info.uuid, uid=uid)
    return {"there": there, "card": offer.index}


def _where(service: NodeService, question: Question, uid: int, find: Find) -> dict[str, Any]:
    found = where(service, _standing(service, question).job_id)
    return {"card": found.index, "state": found.state, "wanted": found.wanted}


JOB_ASKS = {
    "job-class": JobAsk("change", "the class of a job", _class),
    "job-pardon": JobAsk("pardon", "a job", _pardon),
    "job-release": JobAsk("release", "the grant of a job", _release),
    "job-move": JobAsk("move", "a job", _move),
    "job-where": JobAsk("ask", "where a job is", _where),
}
