"""The answer to `status` on a node with more jobs than it can list: bounded, cheap, with their
number.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from daemon_support import hook_env as env
from memory_support import service_of, tree

from cli.doctor.checks.node import memory as checks_memory
from cli.doctor.known import Known
from cli.live.card import hardware_words
from enforcer.daemon.arbiter.hardware import HardwareOrder, HardwareUse, HardwareView
from enforcer.daemon.limits.backend import MAX_ROWS
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.protocol import MAX_MESSAGE, encode
from enforcer.daemon.requests.reply import Peer, Reply
from enforcer.daemon.requests.server import AskServer, _Client
from gres.config.enforcer import HardwareSettings
from gres.grant.store import RUN_BASE, Grant, GrantCard
from simulator.fakes import GIB, FakeNode

PEER = Peer(os.getpid(), 0, 0, frozenset(), lambda: os.pidfd_open(os.getpid()))
JOBS = 400


@pytest.fixture
def service(node: FakeNode, tmp_path: Path) -> NodeService:
    node.nvml.version = "615.12.01"
    return service_of(node, tmp_path)


def grants(service: NodeService, first: int, cards: int = 1) -> dict[int, Grant]:
    known = service.nvml.call(lambda nvml: nvml.cards())[:cards]
    held = tuple(GrantCard(card.uuid, n, n, 1, GIB, 80 * GIB) for n, card in enumerate(known))
    return {
        job: Grant(job, 0, 0, "n1", "active", "offline", cards=held)
        for job in range(first, first + JOBS)
    }


def status(service: NodeService) -> dict[str, Any]:
    return Asks(service, 0).answer({"op": "status"}, PEER).body


@pytest.mark.parametrize("cards", [1, 2])
def test_jobs_that_differ_from_the_node_are_listed_up_to_a_number(
    service: NodeService, cards: int
) -> None:
    service.grants.update(grants(service, RUN_BASE, cards))
    answer = status(service)
    assert answer["memory"] == "hard" and len(answer["memory_jobs"]) == MAX_ROWS
    assert answer["memory_jobs_left"] == JOBS - MAX_ROWS // cards
    (why,) = answer["memory_reasons"]
    assert "qgpu run" in why and {row["why"] for row in answer["memory_jobs"]} == {0}
    assert len(encode(answer)) < MAX_MESSAGE // 3
    text = checks_memory(Known(shim=True, daemon=answer)).text
    assert f", {RUN_BASE + 9} and {JOBS - 10} more: {JOBS} with the shim alone now" in text


def test_jobs_that_are_as_the_node_are_not_listed(service: NodeService, tmp_path: Path) -> None:
    service.prolog(env())
    tree(tmp_path, 9)
    (row,) = status(service)["memory_jobs"]
    assert (row["job"], row["strength"]) == (9, "cooperative")
    service.limit_memory()
    answer = status(service)
    assert (answer["memory"], answer["memory_jobs"], answer["memory_reasons"]) == ("hard", [], [])


def test_limits_of_a_job_are_gone_through_once_per_answer(
    service: NodeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.grants.update(grants(service, 1, 2))
    for job in range(1, 21):
        tree(tmp_path, job, "step_0/a", "step_0/b")
    service.limit_memory()
    looked: list[int] = []
    by_card = service.memory._by_card
    monkeypatch.setattr(service.memory, "_by_card", lambda job: looked.append(job) or by_card(job))
    answer = status(service)
    assert sorted(looked) == list(range(1, JOBS + 1)), "not once per card, and no job for another"
    assert {row["job"] for row in answer["memory_jobs"]}.isdisjoint(range(1, 21))


def test_tenants_of_hardware_preemption_are_listed_up_to_a_number_failed_ones_first() -> None:
    view = HardwareView(HardwareSettings(), str)
    view.orders = {uuid: HardwareOrder(uuid, True) for uuid in ("GPU-a", "GPU-b", "GPU-c")}
    uses = [HardwareUse(job, "GPU-a", "ready") for job in range(300)]
    uses += [HardwareUse(1000 + job, "GPU-b", "ready") for job in range(5)]
    uses += [HardwareUse(2000, "GPU-a", "failed", why="x"), HardwareUse(1, "GPU-gone", "ready")]
    told: dict[str, Any] = view.describe(uses)
    assert list(told) == ["GPU-a", "GPU-b", "GPU-c"]
    assert [(len(one["tenants"]), one["tenants_left"]) for one in told.values()] == [
        (123, 178),
        (5, 0),
        (0, 0),
    ]
    assert told["GPU-a"]["tenants"][0]["job"] == 2000
    assert hardware_words(told["GPU-a"]).endswith("; 178 more tenant(s) are not listed")


def test_an_answer_that_is_no_message_is_a_sentence(service: NodeService) -> None:
    sent: list[bytes] = []

    class Sock:
        def sendmsg(self, parts: list[bytes], rights: object) -> None:
            sent.extend(parts)

    client = _Client(Sock(), PEER, 0, True)  # type: ignore[arg-type]
    AskServer._send(
        AskServer.__new__(AskServer), client, Reply({"ok": True, "x": "y" * MAX_MESSAGE})
    )
    (message,) = sent
    assert b'"ok": false' in message and b"more than the 65536 of a message" in message
