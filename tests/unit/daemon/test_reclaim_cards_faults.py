"""Moves to another card of a fake node in which something fails or changes meanwhile."""

from __future__ import annotations

import os
from typing import Any

import pytest
from daemon_support import hook_env
from questions_support import ME, ask
from reclaim_support import Lab, leave

from enforcer.daemon.arbiter.port import ArbiterError, ArbiterRefusedError, ProcessUse
from enforcer.daemon.devices.port import Device
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from enforcer.nvml.port import NvmlError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's helper is run")


@pytest.fixture
def service(made: Lab) -> NodeService:
    """Its daemon."""
    return made.start()


def order(service: NodeService, job: int = 1, **more: Any) -> dict[str, Any]:
    return ask(Asks(service, ME), **{"op": "job-move", "job": job, "card": "1", **more})


def where(service: NodeService, job: int = 1) -> tuple[int, str, bool]:
    found = ask(Asks(service, ME), op="job-where", job=job)
    return found["card"], found["state"], found["wanted"]


def begin(made: Lab, service: NodeService) -> int:
    """Job 1 was moved to card 1; its process."""
    pid = made.offline(service, 1, 60)
    assert order(service)["ok"]
    made.leaves(service, pid)
    made.hold(pid, 60, made.other)
    assert where(service) == (1, "resident", False)
    return pid


def test_a_new_card_without_room_after_all_keeps_the_job(made: Lab, service: NodeService) -> None:
    """It waits there for room, and is not moved from that card to the same one."""
    pid = made.offline(service, 1, 60)
    order(service)
    made.refuse("return", pid, "checkpointed 2 CUDA_ERROR_OUT_OF_MEMORY")
    made.hold(pid, 0)
    for _ in range(3):
        made.step(service)
    assert made.calls() == ["leave", "return", "leave"]
    made.step(service)
    assert where(service) == (1, "checkpointed", False)
    (made.directory / f"refuse.return.{pid}").unlink()
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    made.settle(service)
    assert where(service) == (1, "resident", False)
    assert service.grants[1].cards[0].moved_from == made.card
    calls = made.node.arbiter.calls
    assert f"revoke 1 {made.card}" in calls and f"revoke 1 {made.other}" not in calls
    assert made.lines()[-1][2:4] == ["--map", f"{made.card}={made.other}"]


def test_an_arbiter_that_fails_at_an_order_is_lost(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.offline(service, 1, 60)
    answers = [made.node.arbiter.processes()]

    def processes() -> list[ProcessUse]:
        if not answers:
            raise ArbiterError("the connection ended")
        return answers.pop()

    monkeypatch.setattr(made.node.arbiter, "processes", processes)
    assert order(service)["ok"]
    assert not service.connected and where(service) == (0, "resident", False)


def test_an_order_waits_for_a_driver_that_fails(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.offline(service, 1, 60)
    with monkeypatch.context() as patch:
        patch.setattr(service.nvml, "start", lambda _, done: done(NvmlError("it does not answer")))
        assert order(service)["ok"]
        assert where(service) == (0, "resident", True) and service.reclaimer.wanted()
    made.node.clock.advance(1)
    service.reclaimer.tick()
    assert where(service) == (0, "leaving", True)


def test_an_order_ends_if_the_driver_never_answers(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.offline(service, 1, 60)
    monkeypatch.setattr(service.nvml, "start", lambda _, done: done(NvmlError("no answer")))
    assert order(service)["ok"]
    made.node.clock.advance(60)
    service.reclaimer.tick()
    assert where(service) == (0, "resident", False) and not service.reclaimer.wanted()


def test_a_full_disk_leaves_the_job_on_its_card(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = made.offline(service, 1, 60)
    blob = (service.store.directory / "1.grant").read_bytes()
    stage = service.store._stage

    def full(directory: int, name: str, data: bytes, mode: int) -> str:
        if name.endswith(".grant"):
            raise OSError(28, "No space left on device")
        return stage(directory, name, data, mode)

    monkeypatch.setattr(service.store, "_stage", full)
    order(service)
    made.leaves(service, pid)
    assert where(service) == (0, "checkpointed", False)
    assert service.store.read(1) == service.grants[1]
    assert (service.store.directory / "1.grant").read_bytes() == blob
    assert not list(service.store.directory.glob(".*.tmp"))
    assert made.node.devices.rules[1].allow == {Device(195, 0)}


def test_a_job_whose_cgroups_are_not_known_does_not_go_by_itself(moving: Lab) -> None:
    service = moving.start()
    moving.node.devices.refusal = lambda job, pids: "no slurmstepd"  # type: ignore[method-assign]
    leave(moving, service)
    for _ in range(3):
        moving.node.clock.advance(11)
        service.reclaimer.tick()
    assert where(service) == (0, "checkpointed", False) and moving.calls() == ["leave"]


def test_a_job_does_not_go_to_a_card_that_does_not_suit_any_more(
    made: Lab, service: NodeService
) -> None:
    pid = made.offline(service, 1, 60)
    order(service)
    made.node.nvml.version = "570.10"
    service.reclaimer.moves.transfers._driver = ""
    made.leaves(service, pid)
    assert where(service) == (0, "checkpointed", False) and made.calls() == ["leave"]


def test_a_moved_job_may_not_open_a_card_that_another_has_as_a_whole(
    made: Lab, service: NodeService
) -> None:
    pid = begin(made, service)
    whole = hook_env(7, "qgpu/1 whole", gpus="1")
    assert isinstance(service.prolog(whole), Later)
    made.leaves(service, pid)
    assert service.prolog(whole) == Answer(0)
    service.reclaimer.tick()
    rules = made.node.devices.rules[1]
    assert rules.allow == set() and rules.deny == {Device(195, 0), Device(195, 1)}
    service.end(7, "epilog")
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    assert made.node.devices.rules[1].allow == {Device(195, 1)}
    made.settle(service)
    assert where(service) == (1, "resident", False)


def test_a_moved_job_gets_no_class_that_reserves_memory(made: Lab, service: NodeService) -> None:
    pid = begin(made, service)
    answer = order(service, op="job-class", job_class="online", force=True)
    assert "job 1 is not on the card that Slurm booked" in answer["error"]
    assert order(service, card="0")["ok"]
    assert not order(service, op="job-class", job_class="online", force=True)["ok"]
    made.leaves(service, pid)
    assert where(service)[0] == 0
    assert order(service, op="job-class", job_class="online", force=True)["ok"]


def test_a_class_that_changes_while_the_memory_is_away_stays(
    made: Lab, service: NodeService
) -> None:
    leave(made, service)
    assert order(service, op="job-class", job_class="online", force=True)["ok"]
    assert service.reclaimer.moves.away[1].grant == service.grants[1]
    assert "reserves its memory on card 0" in order(service)["error"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_that_got_another_class_while_it_was_away_returns(
    made: Lab, service: NodeService, restart: bool
) -> None:
    pid = leave(made, service)
    assert order(service, op="job-class", job_class="online", force=True)["ok"]
    if restart:
        service = made.crash(service)
        made.settle(service)
    service.end(9, "epilog")
    for _ in range(3):
        made.node.clock.advance(11)
        service.reclaimer.tick()
        made.settle(service)
    assert made.calls()[-1] == "return" and made.node.arbiter.held == set()
    assert (made.directory / f"state.{pid}").read_text() == "running\n"


def test_a_job_that_is_unable_on_the_new_card_is_not_on_its_way(
    made: Lab, service: NodeService
) -> None:
    pid = made.offline(service, 1, 60)
    order(service)
    made.refuse("return", pid, "failed 999 CUDA_ERROR_UNKNOWN")
    made.leaves(service, pid)
    assert where(service) == (1, "unable", False)


def _killed_at(
    service: NodeService, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """qgpud is killed there, at the next call."""

    def killed(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(owner, name, killed)


def test_a_kill_before_the_grant_is_written_leaves_the_old_card_open(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = made.offline(service, 1, 60)
    order(service)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        _killed_at(service, patch, service.reclaimer.moves.transfers, "_write")
        made.leaves(service, pid)
    assert made.node.devices.rules[1].allow == {Device(195, 1)}
    again = made.crash(service)
    assert made.node.devices.rules[1].allow == {Device(195, 0)}
    for _ in range(3):
        again.reclaimer.tick()
        made.settle(again)
        made.node.clock.advance(11)
    assert where(again) == (0, "resident", False) and made.node.arbiter.held == set()


def test_a_kill_between_the_files_of_the_grant_is_mended(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = made.offline(service, 1, 60)
    blob = (service.store.directory / "1.grant").read_bytes()
    order(service)
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        _killed_at(service, patch, service, "poll_arbiter")
        made.leaves(service, pid)
    moved = (service.store.directory / "1.grant").read_bytes()
    (service.store.directory / "1.grant").write_bytes(blob)
    again = made.crash(service)
    assert moved != blob and (service.store.directory / "1.grant").read_bytes() == moved
    assert made.node.devices.rules[1].allow == {Device(195, 1)}
    for _ in range(3):
        again.reclaimer.tick()
        made.settle(again)
        made.node.clock.advance(11)
    assert where(again) == (1, "resident", False)


def test_a_restart_leaves_both_cards_of_a_job_open(moving: Lab) -> None:
    """A job with two cards never moves, so Slurm's rules stay."""
    service = moving.start()
    tag = "qgpu/1 class=offline share=10 mem=20480 cards=2 host=0"
    assert service.prolog(hook_env(1, tag, "0,1")) == Answer(0)
    pid = moving.program(1, 20)
    assert isinstance(moving.prolog(service, 9, 70, "online"), Later)
    moving.leaves(service, pid)
    assert service.reclaimer.moves.away[1].state == "checkpointed"
    moving.crash(service)
    assert 1 not in moving.node.devices.rules


def test_an_order_to_the_card_of_the_job_ends_an_earlier_one(
    made: Lab, service: NodeService
) -> None:
    pid = made.offline(service, 1, 60)
    order(service)
    assert order(service, card="0")["there"] is True
    made.leaves(service, pid)
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    made.settle(service)
    assert where(service) == (0, "resident", False) and made.calls() == ["leave", "return"]


def test_an_arbiter_that_refuses_to_close_the_gates_does_not_stop_the_move(
    made: Lab, service: NodeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the full list again, with the job held. The driver's lock holds the job meanwhile."""
    pid = made.offline(service, 1, 60)
    hold = made.node.arbiter.hold

    def refused(job_id: int, held: bool) -> None:
        hold(job_id, held)
        if held:
            raise ArbiterRefusedError("no such card")

    monkeypatch.setattr(made.node.arbiter, "hold", refused)
    order(service)
    assert not service.connected and where(service)[1] == "leaving"
    assert service.reach_arbiter()
    made.leaves(service, pid)
    assert where(service) == (1, "resident", False)


def test_a_guest_is_not_in_the_way_of_jobs_that_slurm_put_there(
    made: Lab, service: NodeService
) -> None:
    """Slurm would put such a job there again and again."""
    begin(made, service)
    most = service.node.cards[1].usable * service.config.max_reclaimable // 100
    tag = f"qgpu/1 class=offline share=10 mem={min(most - 50 * 1024, 70 * 1024)} host=0"
    jobs = range(2, 2 + most // (70 * 1024))
    assert [service.prolog(hook_env(job, tag, "1")) for job in jobs] == [Answer(0) for _ in jobs]
    assert all(service.grants[job].state == "active" for job in jobs)
