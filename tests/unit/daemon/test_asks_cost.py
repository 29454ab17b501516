"""The cost of a question for other users, and changes that can be neither made nor undone."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from memory_support import service_of

from enforcer.daemon.arbiter.port import ArbiterRefusedError
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer, Reply
from enforcer.daemon.requests.server import PER_SECOND, UNKNOWN_PER_SECOND, AskServer, _Client
from simulator.fakes import FakeNode

ROOT, USER = 0, 1000


def peer(uid: int) -> Peer:
    return Peer(os.getpid(), uid, uid, frozenset(), lambda: -1)


def ask(service: NodeService, op: str, uid: int, **question: Any) -> dict[str, Any]:
    return Asks(service, ROOT).answer({"op": op, **question}, peer(uid)).body


@pytest.fixture
def asked(node: FakeNode) -> list[int]:
    """An entry for each call of the driver."""
    calls: list[int] = []
    node.nvml.before = lambda: calls.append(1)
    return calls


# ---- the driver ----------------------------------------------------------------------------------


def test_users_are_answered_without_the_driver_for_a_second_and_root_never(node, service, asked):
    asked.clear()
    for _ in range(100):
        assert ask(service, "cards", USER)["ok"]
    assert len(asked) == 1
    node.clock.advance(1)
    ask(service, "cards", USER)
    assert len(asked) == 2
    for _ in range(3):
        ask(service, "cards", ROOT)
    assert len(asked) == 5


def test_grants_are_those_of_now_whatever_the_age_of_the_cards(service):
    from daemon_support import hook_env

    assert ask(service, "cards", USER)["cards"][0]["grants"] == 0
    service.prolog(hook_env())
    assert ask(service, "cards", USER)["cards"][0]["grants"] == 1


def test_failure_of_the_driver_is_an_answer_for_a_second_too(node, service, asked):
    node.nvml.fault = "Driver Not Loaded"
    asked.clear()
    for _ in range(10):
        assert "Driver Not Loaded" in ask(service, "cards", USER)["error"]
    assert len(asked) <= 2, "tried once more with the library opened anew"
    node.nvml.fault = None
    node.clock.advance(1)
    assert ask(service, "cards", USER)["ok"]


def test_status_probes_a_driver_that_is_not_there_for_root_only(node, tmp_path, asked):
    node.nvml.failure, node.nvml.version = "Driver Not Loaded", "615.12.01"
    service = service_of(node, tmp_path)
    assert service.memory.strength == "cooperative"
    asked.clear()
    for _ in range(100):
        assert ask(service, "status", USER)["ok"]
    assert asked == []
    node.nvml.failure = None
    assert ask(service, "status", USER)["memory"] == "cooperative"
    node.clock.advance(61)
    assert ask(service, "status", USER)["memory"] == "hard"


def test_root_sees_at_once_that_the_driver_came(node, tmp_path):
    node.nvml.failure, node.nvml.version = "Driver Not Loaded", "615.12.01"
    service = service_of(node, tmp_path)
    node.nvml.failure = None
    assert ask(service, "status", ROOT)["memory"] == "hard"


# ---- the loop ------------------------------------------------------------------------------------


class Slow:
    """Answers that take a while."""

    owner = ROOT

    def answer(self, question: dict[str, Any], who: Peer) -> Reply:
        time.sleep(0.05)
        return Reply({"ok": True})


@pytest.fixture
def server(node: FakeNode) -> AskServer:
    return AskServer(Slow(), node.clock, None, lambda: None)  # type: ignore[arg-type]


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    one, other = socket.socketpair()
    with one, other:
        yield one


def answers(server: AskServer, sock: socket.socket, uids: list[int], known: bool) -> int:
    question = json.dumps({"protocol": "qgpud/1", "op": "cards"}).encode()
    clients = [_Client(sock, peer(uid), 0, known) for uid in uids]
    return sum(server._reply(client, question).body["ok"] is True for client in clients)


def test_time_that_a_user_took_counts_as_questions(server, sock):
    assert 1 <= answers(server, sock, [USER] * PER_SECOND, True) < PER_SECOND // 2
    assert answers(server, sock, [USER + 1], True) == 1, "another user does not pay"
    assert answers(server, sock, [ROOT] * PER_SECOND, True) == PER_SECOND


def test_unknown_uids_pay_together_for_their_time(server, sock):
    uids = list(range(10**6, 10**6 + UNKNOWN_PER_SECOND // 2))
    assert 1 <= answers(server, sock, uids, False) < len(uids) // 2
    assert answers(server, sock, [USER], True) == 1, "nor do those who may run programs"


# ---- a change that is refused, and a disk that is full -------------------------------------------


def test_change_that_cannot_be_undone_on_disk_does_not_hold_and_says_where_it_is_left(
    node, service, monkeypatch
):
    card, live = node.nvml.cards()[0].uuid, service.live
    ask(service, "card-set", ROOT, card="0", values={"window": "300us"})

    def no(*_: object) -> None:
        raise ArbiterRefusedError("the arbiter refused it")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = live._store
    monkeypatch.setattr(node.arbiter, "card", no)
    monkeypatch.setattr(
        live, "_store", lambda cards: (store(cards), monkeypatch.setattr(live, "_store", full))
    )
    error = ask(
        service, "card-set", ROOT, card="0", values={"slice": "1ms", "window": "1ms"}, save=True
    )["error"]
    assert error.startswith("the arbiter refused it; what held before holds again, but")
    assert str(live.path) in error and "No space left" in error and "qgpu card reset 0" in error
    plan = service.plan(0, card)
    assert (str(plan.slice), str(plan.window)) == ("2ms", "300us") and live.saved[card] == {}
    monkeypatch.undo()
    assert ask(service, "card-reset", ROOT, card="0")["ok"]
    again = node.service()
    assert str(again.plan(0, card).slice) == "2ms"
