"""Jobs move to another card of a fake node: by root's order, or since their own has no room."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from daemon_support import hook_env
from questions_support import ME, ask, peer
from reclaim_support import Lab, leave

from enforcer.daemon.devices.port import Device
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.ledger.store import read_usage
from simulator.fakes import GIB

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's helper is run")


@pytest.fixture
def service(made: Lab) -> NodeService:
    """Its daemon."""
    return made.start()


def move(service: NodeService, job: int, card: str = "1") -> dict[str, Any]:
    return ask(Asks(service, ME), op="job-move", job=job, card=card)


def where(service: NodeService, job: int = 1) -> tuple[int, str, bool]:
    found = ask(Asks(service, ME), op="job-where", job=job)
    return found["card"], found["state"], found["wanted"]


def begin(made: Lab, service: NodeService, gib: int = 60) -> int:
    """Job 1 was moved to card 1; its process."""
    pid = made.offline(service, 1, gib)
    assert move(service, 1) == {"ok": True, "there": False, "card": 1}
    made.leaves(service, pid)
    return pid


def test_root_moves_a_job(made: Lab, service: NodeService) -> None:
    pid = made.offline(service, 1, 60)
    assert move(service, 1)["there"] is False
    assert where(service) == (0, "leaving", True) and made.node.arbiter.held == {1}
    made.leaves(service, pid)
    assert [line[2:] for line in made.lines()] == [
        ["leave", str(pid)],
        ["--map", f"{made.card}={made.other}", "return", str(pid)],
    ]
    assert where(service) == (1, "resident", False) and made.node.arbiter.held == set()
    assert "moves to another card" in made.told[0][1] and "is back on card 1" in made.told[1][1]


def test_what_a_move_changes(made: Lab, service: NodeService) -> None:
    """The grant's files, the arbiter, the job's devices and the ledger's rows."""
    pid = begin(made, service)
    made.hold(pid, 60, made.other)
    grant = service.grants[1]
    (card,) = grant.cards
    assert (card.uuid, card.index, card.minor) == (made.other, 1, 1)
    assert (card.home, card.home_minor, card.moved_from) == (made.card, 0, made.card)
    assert service.store.read(1) == grant
    assert made.node.arbiter.grants[1] == grant
    calls = made.node.arbiter.calls
    assert calls.index(f"revoke 1 {made.card}") < calls.index("release 1")
    rules = made.node.devices.rules[1]
    assert rules.allow == {Device(195, 1)} and rules.deny == {Device(195, 0)}
    first, second = sorted(read_usage(service.ledger.path, [1]), key=lambda row: row.granted_at)
    assert (first.uuid, first.end_reason, first.ended_at) == (made.card, "moved", card.moved_ns)
    assert (second.uuid, second.granted_at) == (made.other, card.moved_ns)
    assert second.ended_at is None and second.card_index == 1
    assert [row.result for row in made.rows(1)] == ["moved", "returned"]


def test_the_same_prolog_again_leaves_a_moved_job_where_it_is(
    made: Lab, service: NodeService
) -> None:
    pid = begin(made, service)
    made.hold(pid, 60, made.other)
    grant = service.grants[1]
    assert made.prolog(service, 1, 60, "offline") == Answer(0)
    assert service.grants[1] == grant


def test_there_and_back(made: Lab, service: NodeService) -> None:
    pid = begin(made, service)
    made.hold(pid, 60, made.other)
    assert move(service, 1, "0")["there"] is False
    made.leaves(service, pid)
    made.hold(pid, 60)
    made.settle(service)
    (card,) = service.grants[1].cards
    assert (card.uuid, card.home, card.home_minor) == (made.card, "", -1)
    assert made.lines()[-1][2:4] == ["--map", f"{made.other}={made.card}"]
    assert made.node.devices.rules[1].allow == {Device(195, 0)}
    assert move(service, 1, "0")["there"] is True


def test_a_job_without_room_returns_to_another_card_by_itself(moving: Lab) -> None:
    service = moving.start()
    pid = leave(moving, service)
    moving.node.clock.advance(1)
    service.reclaimer.tick()
    moving.node.clock.advance(11)
    service.reclaimer.tick()
    moving.hold(pid, 60, moving.other)
    moving.settle(service)
    assert where(service) == (1, "resident", False)


def test_without_the_setting_it_waits_for_its_own_card(made: Lab, service: NodeService) -> None:
    leave(made, service)
    for _ in range(3):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    assert made.calls() == ["leave"] and where(service) == (0, "checkpointed", False)


def test_a_card_that_does_not_take_it_is_left_alone(made: Lab, service: NodeService) -> None:
    """The process stays away, so the job returns to its own card."""
    pid = made.offline(service, 1, 60)
    move(service, 1)
    made.refuse("return", pid, "checkpointed 101 CUDA_ERROR_INVALID_DEVICE")
    made.leaves(service, pid)
    assert where(service) == (0, "checkpointed", False)
    assert service.grants[1].cards[0].home == ""
    assert made.node.devices.rules[1].allow == {Device(195, 0)}
    (made.directory / f"refuse.return.{pid}").unlink()
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    made.hold(pid, 60)
    made.settle(service)
    assert where(service) == (0, "resident", False)


def test_a_process_that_is_there_already_is_not_mapped(made: Lab, service: NodeService) -> None:
    """Of two processes one returned, and left again as the other found no room."""
    first = made.offline(service, 1, 30)
    second = made.program(1, 30)
    move(service, 1)
    made.refuse("return", first, "checkpointed 1 CUDA_ERROR_INVALID_VALUE")
    made.leaves(service, first, second)
    made.hold(first, 30, made.other)
    made.hold(second, 30, made.other)
    made.settle(service)
    assert where(service) == (1, "resident", False)
    assert made.lines()[-1][2:6] == [
        "--map",
        f"{made.card}={made.other}",
        "--there",
        str(first),
    ]


def test_a_process_that_began_on_the_old_card_meanwhile_moves_too(
    made: Lab, service: NodeService
) -> None:
    first = made.offline(service, 1, 60)
    move(service, 1)
    second = made.program(1, 1)
    made.leaves(service, first, second)
    calls = [line[2:] for line in made.lines()]
    both = sorted([str(first), str(second)], key=int)
    assert calls[:2] == [["leave", str(first)], ["leave", *both]]
    assert calls[2:] == [["--map", f"{made.card}={made.other}", "return", *both]]
    assert where(service) == (1, "resident", False)


@pytest.mark.parametrize("state", ["checkpointed", "running"])
def test_a_move_goes_on_after_a_restart(made: Lab, service: NodeService, state: str) -> None:
    """qgpud and its helper are killed before the memory returned, or after it."""
    pid = made.offline(service, 1, 60)
    (made.directory / "hang.return").touch()
    move(service, 1)
    made.hold(pid, 0)
    made.step(service)
    helper = made.helper_process(service)
    helper.kill()
    helper.wait()
    (made.directory / "hang.return").unlink()
    made.set(pid, state)
    again = made.crash(service)
    made.node.devices.rules.clear()
    for _ in range(3):
        again.reclaimer.tick()
        made.settle(again)
        made.node.clock.advance(11)
    assert where(again) == (1, "resident", False) and made.node.arbiter.held == set()
    assert made.node.devices.rules[1].allow == {Device(195, 1)}
    mapped = ["--map", f"{made.card}={made.other}", "return", str(pid)]
    assert (made.lines()[-1][2:] == mapped) is (state == "checkpointed")


def test_a_whole_card_waits_for_a_job_that_was_moved_there(made: Lab, service: NodeService) -> None:
    pid = begin(made, service)
    made.hold(pid, 60, made.other)
    whole = hook_env(7, "qgpu/1 whole", gpus="1")
    assert isinstance(service.prolog(whole), Later)
    made.leaves(service, pid)
    assert service.prolog(whole) == Answer(0) and service.grants[7].state == "whole"
    full = made.offline(service, 2, 70)  # on the card where job 1 began
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    assert where(service) == (1, "checkpointed", False), "nobody returns to a whole card"
    made.hold(full, 0)
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    made.settle(service)
    assert where(service) == (0, "resident", False), "its own card does, without `move`"


def _reserving(made: Lab, service: NodeService) -> None:
    assert made.prolog(service, 1, 20, "online") == Answer(0)


def _full(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    made.node.arbiter.count(1, made.card, mem_used=60 * GIB)
    service.poll_arbiter()
    assert service.prolog(hook_env(2, "qgpu/1 class=online share=10 mem=30720", "1")) == Answer(0)


def _old(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    made.node.nvml.version = "570.10"


def _unconfined(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    made.node.devices.why = "job 1 has no device cgroup"


def _idle(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    made.node.arbiter.procs.clear()


def _whole(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    assert service.prolog(hook_env(7, "qgpu/1 whole", gpus="1")) == Answer(0)


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (_reserving, "job 1 reserves its memory on card 0, where Slurm booked it"),
        (_full, "job 1 holds 60G, and card 1 of n1 has 50G free beside"),
        (_old, "the driver of n1 is 570.10; moving a job to another card takes 580"),
        (_unconfined, "job 1 has no device cgroup"),
        (_idle, "no process of job 1 uses its card, so there is nothing to move"),
        (_whole, "card 1 of n1 belongs to job 7 as a whole"),
    ],
)
def test_what_cannot_be_moved(made: Lab, service: NodeService, prepare: Any, why: str) -> None:
    prepare(made, service)
    answer = move(service, 1)
    assert not answer["ok"] and why in answer["error"]
    assert made.calls() == [] and made.node.arbiter.held == set()


def test_only_root_moves_a_job_and_the_card_must_be_there(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    error = ask(Asks(service, ME), who=peer(4711), op="job-move", job=1, card="1")["error"]
    assert error.startswith("only root may move a job")
    assert "'7' is no card of n1" in move(service, 1, "7")["error"]
    assert "no grant of a job 5" in move(service, 5)["error"]


def test_slurm_opens_the_booked_card_again_and_that_is_corrected(
    made: Lab, service: NodeService
) -> None:
    pid = begin(made, service)
    made.hold(pid, 60, made.other)
    rules = made.node.devices.rules[1]
    made.node.devices.rules[1] = replace(rules, allow=rules.deny, deny=rules.allow)
    assert service.reclaimer.wanted()
    service.reclaimer.tick()
    assert made.node.devices.rules[1] == rules
    service.end(1, "epilog")
    assert not service.reclaimer.wanted() and not made.node.devices.rules
