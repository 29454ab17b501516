"""Caps as isolation lifts them and gives them back: for the driver's limits, for the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daemon_support import hook_env as env

from enforcer.daemon.fakes import GIB, FakeNode
from enforcer.daemon.node import NodeService

CAP, CARD = 12 * GIB, 80 * GIB


@pytest.fixture
def running(node: FakeNode) -> Iterator[NodeService]:
    service = node.service()
    service.start()
    for job in (9, 10):
        service.prolog(env(job))
    yield service


def lift(service: NodeService, lifted: bool) -> None:
    service.live.set(uuid(service), {"isolation": "none" if lifted else "governed"}, save=False)


def uuid(service: NodeService) -> str:
    return service.view.cards()[0].uuid


def caps(service: NodeService, judged: bool = False) -> list[int]:
    found = service.caps.judged(service.grants) if judged else service.caps.now(service.grants)
    return [found[job].cards[0].mem_cap for job in (9, 10)]


def test_cap_is_the_card_while_isolation_is_none(running):
    assert caps(running) == [CAP, CAP]
    assert running.caps.now(running.grants)[9] is running.grants[9], (
        "nothing is copied where nothing is lifted"
    )
    lift(running, True)
    assert caps(running) == [CARD, CARD] and running.grants[9].cards[0].mem_cap == CAP, "the promise stands"
    lift(running, False)
    assert caps(running) == [CAP, CAP]


def test_audit_excuses_what_was_taken_without_a_cap_until_it_is_given_back(running):
    lift(running, True)
    assert caps(running, judged=True) == [CARD, CARD]
    lift(running, False)
    assert caps(running, judged=True) == [CARD, CARD]
    key, other = (9, uuid(running)), (10, uuid(running))
    for _ in range(3):
        running.caps.seen({key: 30 * GIB, other: GIB}, running.grants)
    assert caps(running, judged=True) == [CARD, CAP], "the second one was within its cap all the time"
    running.caps.seen({key: GIB, other: GIB}, running.grants)
    assert caps(running, judged=True) == [CARD, CAP], "that look may have begun earlier"
    running.caps.seen({key: GIB, other: GIB}, running.grants)
    assert caps(running, judged=True) == [CAP, CAP]


def test_what_isolation_lifted_counts_from_the_change_and_not_from_the_next_audit(running):
    lift(running, True)
    running.caps.judged(running.grants)  # as `qgpu card set` does before it changes anything
    lift(running, False)
    assert caps(running, judged=True) == [CARD, CARD]


def test_excuse_ends_with_its_job(running):
    lift(running, True)
    running.caps.judged(running.grants)
    running.epilog(env(9))
    lift(running, False)
    running.caps.seen({}, running.grants)
    running.prolog(env(9))
    assert caps(running, judged=True) == [CAP, CARD]
