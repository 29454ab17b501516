"""Caps as isolation lifts them and gives them back: for the driver's limits, for the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from daemon_support import hook_env as env

from enforcer.daemon.asks import Asks, Peer
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
    card = uuid(running)
    key, other = (9, card), (10, card)
    for _ in range(3):
        running.caps.seen({key: 30 * GIB, other: GIB}, running.grants, {card})
    assert caps(running, judged=True) == [CARD, CAP], "the second one was within its cap all the time"
    running.caps.seen({key: GIB, other: GIB}, running.grants, {card})
    assert caps(running, judged=True) == [CARD, CAP], "that look may have begun earlier"
    running.caps.seen({key: GIB, other: GIB}, running.grants, {card})
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
    running.caps.seen({}, running.grants, {uuid(running)})
    running.prolog(env(9))
    assert caps(running, judged=True) == [CAP, CARD]


# ---- over restarts of qgpud ----------------------------------------------------------------------


def written(node: FakeNode) -> object:
    path = node.directory / "run/grants/excused.json"
    return json.loads(path.read_text())["excused"] if path.exists() else None


def set_isolation(service: NodeService, word: str) -> bool:
    peer = Peer(1, 0, 0, frozenset(), lambda: -1)
    question = {"op": "card-set", "card": "0", "values": {"isolation": word}}
    return bool(Asks(service, 0).answer(question, peer).body["ok"])


def restarted(node: FakeNode) -> NodeService:
    """As after a crash: the daemon before wrote nothing more, and live settings are gone."""
    again = node.service()
    again.start()
    return again


def test_what_was_taken_without_a_cap_is_excused_by_the_next_daemon_too(node, running):
    node.arbiter.card = lambda *_: pytest.fail("told before it was written") if not written(node) else None
    assert set_isolation(running, "none")
    assert written(node) == {uuid(running): [9, 10]}, "already, and not with the next look"
    again = restarted(node)
    assert caps(again) == [CAP, CAP] and caps(again, judged=True) == [CARD, CARD]
    card = uuid(again)
    for _ in range(2):
        again.caps.seen({(9, card): 30 * GIB, (10, card): GIB}, again.grants, {card})
    assert caps(again, judged=True) == [CARD, CAP] and written(node) == {card: [9]}
    again.epilog(env(9))
    assert written(node) is None, "an ended job's excuse is gone, and the file with the last"


def test_isolation_that_the_configuration_or_a_class_lifted_is_written_before_the_arbiter_hears(
    node, running
):
    running.live.set(uuid(running), {"isolation.offline": "none"}, save=True)
    again = restarted(node)
    assert written(node) is None, "both jobs are online"
    peer = Peer(1, 0, 0, frozenset(), lambda: -1)
    question = {"op": "job-class", "job": 9, "job_class": "offline", "force": True}
    assert Asks(again, 0).answer(question, peer).body["ok"]
    assert written(node) == {uuid(running): [9]}


def test_excuse_of_a_job_that_ended_meanwhile_is_not_its_successors(node, running):
    set_isolation(running, "none")
    (node.directory / "run/grants/9.ended").touch()
    again = restarted(node)
    assert written(node) == {uuid(running): [10]}
    again.prolog(env(9))
    assert caps(again, judged=True) == [CAP, CARD]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"version": 2}', '{"version": 1, "excused": {"GPU-1": "9"}}', "x" * 70000, "symlink"],
)
def test_file_that_cannot_be_believed_excuses_nobody_and_is_said(node, running, lines, damage):
    set_isolation(running, "none")
    path = node.directory / "run/grants/excused.json"
    if damage == "symlink":
        path.rename(node.directory / "elsewhere")
        path.symlink_to(node.directory / "elsewhere")
    else:
        path.write_text(damage)
    again = restarted(node)
    assert caps(again, judged=True) == [CAP, CAP]
    assert len(lines("excuses-damaged")) == 1 and not path.is_symlink() and not path.exists()


def test_card_that_nobody_looked_at_is_not_one_where_nothing_is_held(running):
    lift(running, True)
    running.caps.judged(running.grants)
    lift(running, False)
    for _ in range(5):
        running.caps.seen({}, running.grants, frozenset())
    assert caps(running, judged=True) == [CARD, CARD]
