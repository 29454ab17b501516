"""Jobs leave and return on a fake node: real processes, a script as the helper, a fake Slurm."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from reclaim_support import Lab, lab, leave

from enforcer.daemon.arbiter.port import MemoryAction, Want
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.node import NodeService
from enforcer.daemon.reclaim.child import Done
from enforcer.daemon.reclaim.mover import LOCKS, parse
from enforcer.ledger.store import read_usage
from simulator.fakes import GIB, FakeNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's helper is run")


@pytest.fixture
def service(made: Lab) -> NodeService:
    """Its daemon."""
    return made.start()


def test_a_prolog_waits_until_the_offline_job_has_left(made: Lab, service: NodeService) -> None:
    pid = made.offline(service, 1, 60)
    waits = made.prolog(service, 9, 50, "online")
    assert isinstance(waits, Later) and waits.patient and 9 not in service.grants
    assert made.node.arbiter.held == {1}, "the gate is closed before the helper moves anything"
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.leaves(service, pid)
    assert service.reclaimer.claims.news and made.calls() == ["leave"]
    assert made.prolog(service, 9, 50, "online") == Answer(0) and 9 in service.grants
    (row,) = made.rows(1)
    assert (row.bytes, row.why, row.back_at) == (60 * GIB, "job 9", None)
    assert row.leave_ns is not None
    ((job, text),) = made.told
    assert job == 1 and "job 9 needs" in text and "60G of card 0 of n1" in text


def test_a_job_returns_when_room_lasted(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    made.node.clock.advance(5)
    service.end(9, "epilog")
    made.node.clock.advance(9)
    service.reclaimer.tick()
    assert made.calls() == ["leave"]
    made.node.clock.advance(1)
    service.reclaimer.tick()
    made.hold(pid, 60)
    made.settle(service)
    assert made.calls() == ["leave", "return"] and made.node.arbiter.held == set()
    (row,) = made.rows(1)
    assert row.result == "returned" and row.back_at == row.left_at + 15 * 10**9
    (usage,) = read_usage(service.ledger.path, [1])
    assert usage.reclaimed_ns == 15 * 10**9
    assert "is back on card 0" in made.told[-1][1] and not service.reclaimer.moves.away


def test_the_ledger_counts_a_job_that_is_still_away(made: Lab, service: NodeService) -> None:
    leave(made, service)
    made.node.clock.advance(7)
    service.poll_arbiter()
    (usage,) = read_usage(service.ledger.path, [1])
    assert usage.reclaimed_ns == 7 * 10**9


def test_a_prolog_alone_on_its_card_does_not_wait(made: Lab, service: NodeService) -> None:
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    made.offline(service, 1, 20)
    assert made.prolog(service, 10, 5, "online") == Answer(0), "there is room beside it"
    assert made.calls() == []


@pytest.mark.parametrize("queued", [True, False])
def test_a_prolog_that_waited_too_long_starts_nothing(
    made: Lab, service: NodeService, queued: bool
) -> None:
    """Its job is requeued, and where Slurm does not do that the refusal says so."""
    made.offline(service, 1, 60)
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.node.clock.advance(59)
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.node.clock.advance(1)
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    (asked,) = made.queue.asked
    assert asked.words == "requeue 9"
    asked.done = Done(0) if queued else Done(1, why="Requested operation is presently disabled")
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    grant = service.grants[9]
    assert grant.state == "refused" and "did not give it back within 1min" in grant.message
    assert ("put back into the queue" in grant.message) is queued
    assert ("Submit it again" in grant.message) is not queued


def test_more_than_max_reclaimable_is_requeued_at_once(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 78)
    made.offline(service, 2, 78)
    assert isinstance(made.prolog(service, 3, 10, "offline"), Later)
    made.queue.asked[0].done = Done(0)
    assert made.prolog(service, 3, 10, "offline") == Answer(0)
    assert "max_reclaimable" in service.grants[3].message


def test_a_prolog_that_is_gone_is_not_waited_for(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    service.epilog({"SLURM_JOB_ID": "9"})
    made.node.clock.advance(100)
    made.settle(service)
    assert not service.reclaimer.claims.open and made.queue.asked == []


def test_a_process_that_cannot_move_is_requeued_and_killed(made: Lab, service: NodeService) -> None:
    pid = made.offline(service, 1, 60)
    made.refuse("leave", pid, "running 801 CUDA_ERROR_NOT_SUPPORTED")
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.settle(service)
    (asked,) = made.queue.asked
    assert asked.words == "requeue 1" and made.programs[0].poll() is None
    ((job, text),) = made.queue.said
    assert job == 1 and "cannot be moved" in text and "leave failed with" in text
    asked.done = Done(0)
    service.reclaimer.tick()
    assert made.programs[0].wait(30) == -signal.SIGKILL
    made.hold(pid, 0)
    service.reclaimer.tick()
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    (row,) = made.rows(1)
    assert row.result is not None and row.result.startswith("unable: ")


def test_a_job_that_slurm_does_not_requeue_is_cancelled(made: Lab, service: NodeService) -> None:
    pid = made.offline(service, 1, 60)
    made.refuse("leave", pid, "running 801 CUDA_ERROR_NOT_SUPPORTED")
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.settle(service)
    made.queue.asked[0].done = Done(1, why="disabled")
    service.reclaimer.tick()
    assert [asked.words for asked in made.queue.asked] == ["requeue 1", "cancel 1"]
    assert made.programs[0].poll() is None, "not before Slurm knows"
    made.queue.asked[1].done = Done(0)
    service.reclaimer.tick()
    assert made.programs[0].wait(30) == -signal.SIGKILL


def test_unable_stop_cancels(node: FakeNode) -> None:
    with lab(node, "stop") as made:
        service = made.start()
        pid = made.offline(service, 1, 60)
        made.refuse("leave", pid, "failed 999 CUDA_ERROR_UNKNOWN")
        assert isinstance(made.prolog(service, 9, 50, "online"), Later)
        made.settle(service)
        assert [asked.words for asked in made.queue.asked] == ["cancel 1"]
        assert "It is stopped." in made.queue.said[0][1]


def test_a_helper_that_hangs_is_killed_and_its_job_given_up(
    made: Lab, service: NodeService
) -> None:
    made.offline(service, 1, 60)
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.node.clock.advance(60)
    service.reclaimer.tick()
    assert [asked.words for asked in made.queue.asked] == ["requeue 1"]
    assert "did not end within 60 s" in made.queue.said[0][1]


def test_a_process_that_ends_in_the_midst_does_not_fail_its_job(
    made: Lab, service: NodeService
) -> None:
    one, two = made.offline(service, 1, 30), made.program(1, 30)
    made.refuse("leave", two, "none 1 CUDA_ERROR_INVALID_VALUE")
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.programs[1].kill()
    made.programs[1].wait()
    made.leaves(service, one, two)
    assert made.calls() == ["leave", "leave"] and made.queue.asked == []
    assert made.prolog(service, 9, 50, "online") == Answer(0)


def test_a_return_without_room_leaves_again(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    service.end(9, "epilog")
    made.refuse("return", pid, "checkpointed 2 CUDA_ERROR_OUT_OF_MEMORY")
    made.node.clock.advance(11)
    service.reclaimer.tick()
    made.node.clock.advance(11)
    service.reclaimer.tick()
    made.settle(service)
    assert made.calls() == ["leave", "return", "leave"] and made.queue.asked == []
    assert service.reclaimer.moves.away[1].state == "checkpointed"


def test_a_return_that_fails_for_good_ends_the_job(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    service.end(9, "epilog")
    made.refuse("return", pid, "failed 2 CUDA_ERROR_OUT_OF_MEMORY")
    for _ in range(2):
        made.node.clock.advance(11)
        service.reclaimer.tick()
    made.settle(service)
    assert [asked.words for asked in made.queue.asked] == ["requeue 1"]


def test_a_job_that_ends_while_it_is_away_leaves_nothing_open(
    made: Lab, service: NodeService
) -> None:
    leave(made, service)
    made.node.clock.advance(3)
    service.end(1, "epilog")
    (row,) = made.rows(1)
    assert row.result == "ended" and row.back_at == row.left_at + 3 * 10**9
    assert not service.reclaimer.wanted()
    assert not list((service_dir(service) / LOCKS).iterdir())
    (usage,) = read_usage(service.ledger.path, [1])
    assert usage.reclaimed_ns == 3 * 10**9


def service_dir(service: NodeService) -> Path:
    return Path(service.node.run_dir)


def test_a_job_whose_processes_all_ended_may_begin_new_ones(
    made: Lab, service: NodeService
) -> None:
    leave(made, service)
    made.programs[0].kill()
    made.programs[0].wait()
    service.reclaimer.tick()
    assert made.node.arbiter.held == set() and made.rows(1)[0].result == "ended"


# ---- allocations --------------------------------------------------------------------------------


def want(made: Lab, service: NodeService, job: int, gib: int) -> None:
    made.node.arbiter.wanted.append(Want(job, made.card, 77, gib * GIB))
    service.processes_died()


def test_a_refused_allocation_waits_for_a_job_that_leaves(made: Lab, service: NodeService) -> None:
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    pid = made.offline(service, 1, 60)
    want(made, service, 9, 40)
    assert made.node.arbiter.held == {1}
    made.leaves(service, pid)
    assert made.node.arbiter.actions[-1] == (9, made.card, MemoryAction.RETRY)
    want(made, service, 9, 0)
    assert not service.reclaimer.wants.cards()


def test_a_refusal_stands_where_nobody_can_leave(made: Lab, service: NodeService) -> None:
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    made.node.nvml.put(made.card, used=60 * GIB)
    want(made, service, 9, 40)
    assert made.node.arbiter.actions[-1] == (9, made.card, MemoryAction.FINAL)


def test_all_allocations_of_the_node_wait_once_the_arbiter_is_there(
    made: Lab, service: NodeService
) -> None:
    waits = [(0, card.uuid, MemoryAction.WAIT) for card in made.node.nvml.cards()]
    assert sorted(made.node.arbiter.actions) == sorted(waits)


def test_what_the_helper_says_is_read_strictly() -> None:
    text = "12 running - 0 CUDA_SUCCESS\nnoise\n13 flying - 0 X\n14 failed lock 600 A\x1bB\n"
    assert [(line.pid, line.state, line.failed) for line in parse(text)] == [
        (12, "running", False),
        (14, "failed", True),
    ]
    assert "\x1b" not in parse(text)[1].name


# ---- memory that is on the card although its job is away -----------------------------------------


def restore(made: Lab, service: NodeService, pid: int, state: str = "running") -> None:
    """A process of the job's user took its memory back, and qgpud looks at the card."""
    made.set(pid, state)
    made.hold(pid, 60)
    made.node.clock.advance(1)
    service.reclaimer.tick()


@pytest.mark.parametrize("state", ["running", "locked"])
def test_a_job_that_restores_itself_leaves_again(
    made: Lab, service: NodeService, state: str
) -> None:
    pid = leave(made, service)
    restore(made, service, pid, state)
    made.leaves(service, pid)
    assert made.calls() == ["leave", "state", "leave"]
    assert service.reclaimer.moves.away[1].state == "checkpointed" and 1 in made.node.arbiter.held
    assert made.queue.asked == []
    (row,) = made.rows(1)
    assert row.back_at is None


def test_a_job_that_restores_itself_again_and_again_ends(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    for _ in range(3):
        restore(made, service, pid)
        made.leaves(service, pid)
    assert made.queue.asked == []
    restore(made, service, pid)
    made.settle(service)
    assert [asked.words for asked in made.queue.asked] == ["requeue 1"]
    ((job, text),) = made.queue.said
    assert job == 1 and "took the memory back again and again" in text


def wait(made: Lab, service: NodeService, seconds: int) -> None:
    """So long, with a look at the card each second."""
    for _ in range(seconds):
        made.node.clock.advance(1)
        service.reclaimer.tick()
        made.settle(service)


def test_a_rest_that_the_driver_counts_is_asked_about_for_a_while(
    made: Lab, service: NodeService
) -> None:
    pid = leave(made, service)
    made.hold(pid, 1)
    wait(made, service, 4)
    assert made.calls() == ["leave", "state", "state", "state"]
    assert service.reclaimer.moves.away[1].state == "leaving", "no other job is made to leave"
    wait(made, service, 100)
    assert made.calls() == ["leave", *["state"] * 7]
    assert service.reclaimer.moves.away[1].state == "checkpointed"
    restore(made, service, pid)
    made.leaves(service, pid)
    assert made.calls()[8:] == ["state", "leave"]


def test_a_return_that_the_user_began_is_met_when_it_is_over(
    made: Lab, service: NodeService
) -> None:
    pid = leave(made, service)
    made.hold(pid, 60)
    wait(made, service, 2)
    made.set(pid, "running")
    for _ in range(2):
        made.node.clock.advance(1)
        service.reclaimer.tick()
    made.leaves(service, pid)
    assert made.calls() == ["leave", "state", "state", "state", "leave"]
    assert service.reclaimer.moves.away[1].state == "checkpointed"


def test_bytes_that_vanish_are_doubted_no_more(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    made.hold(pid, 1)
    wait(made, service, 1)
    assert service.reclaimer.moves.away[1].state == "leaving"
    made.hold(pid, 0)
    wait(made, service, 1)
    assert service.reclaimer.moves.away[1].state == "checkpointed"
