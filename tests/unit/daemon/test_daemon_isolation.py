"""Isolation that is changed on a live card: it holds for jobs that start afterwards, also over
restarts.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from daemon_support import hook_env as env

from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer
from simulator.fakes import GIB, FakeNode

BEFORE, AFTER = (12, True), (80, False)  # GiB that the job may hold, and whether it is governed


def ask(service: NodeService, op: str, **question: Any) -> dict[str, Any]:
    me = Peer(os.getpid(), os.getuid(), os.getgid(), frozenset(), lambda: -1)
    body = Asks(service, os.getuid()).answer({"op": op, **question}, me).body
    assert body["ok"], body
    return body


def told(node: FakeNode, *jobs: int) -> list[tuple[int, bool]]:
    """What the arbiter heard of these jobs last."""
    cards = [node.arbiter.grants[job].cards[0] for job in jobs]
    return [(card.mem_cap // GIB, card.governed) for card in cards]


@pytest.fixture
def changed(node: FakeNode, service: NodeService) -> NodeService:
    """Job 9 started before the change, job 10 after it."""
    service.prolog(env(9))
    ask(service, "card-set", card="0", values={"isolation": "none"})
    service.prolog(env(10))
    return service


def test_a_running_job_keeps_its_gate_and_its_cap(node: FakeNode, changed: NodeService) -> None:
    assert told(node, 9, 10) == [BEFORE, AFTER]
    ask(changed, "card-reset", card="0")
    assert told(node, 9, 10) == [BEFORE, AFTER]


def test_what_was_promised_stays_booked(changed: NodeService) -> None:
    assert ask(changed, "cards")["cards"][0]["mem_left"] == (78 - 12) * 1024
    ask(changed, "card-reset", card="0")
    assert ask(changed, "cards")["cards"][0]["mem_left"] == (78 - 12) * 1024, "job 10 books nothing"


def test_a_new_arbiter_and_a_new_daemon_hear_the_same(node: FakeNode, changed: NodeService) -> None:
    node.arbiter.restart()
    node.arbiter.grants.clear()
    changed.lose_arbiter("it restarted")
    assert changed.reach_arbiter() and told(node, 9, 10) == [BEFORE, AFTER]
    node.arbiter.grants.clear()
    again = node.service()
    again.start()
    assert told(node, 9, 10) == [BEFORE, AFTER], "although what was set live is gone"


@pytest.mark.parametrize(("value", "governed"), [("none", False), ("governed", True)])
def test_a_job_that_changes_its_class_gets_the_isolation_of_the_new_one(
    node: FakeNode, service: NodeService, value: str, governed: bool
) -> None:
    service.prolog(env(9))
    ask(service, "card-set", card="0", values={"isolation.offline": value})
    ask(service, "job-class", job=9, job_class="offline", force=True)
    assert told(node, 9) == [(12, governed)], "its cap stays as granted"
