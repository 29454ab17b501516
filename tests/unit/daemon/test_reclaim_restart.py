"""A second daemon on the node of one that was killed: it finishes what jobs were at."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from reclaim_support import Lab, leave

from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.node import NodeService
from enforcer.daemon.reclaim.child import Done
from enforcer.daemon.reclaim.mover import LOCKS
from simulator.fakes import GIB, FakeNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's helper is run")


@pytest.fixture
def service(made: Lab) -> NodeService:
    """The daemon that is killed."""
    return made.start()


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> None:
    """All processes of the node are those that the test started."""

    def pids_of(uids: object, job_of: object) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for pid, job in node.jobs_of_pids.items():
            found.setdefault(job, []).append(pid)
        return found

    monkeypatch.setattr("enforcer.daemon.reclaim.moves.pids_of", pids_of)


def test_a_checkpointed_job_is_found_and_returns(made: Lab, service: NodeService) -> None:
    pid = leave(made, service)
    again = made.crash(service)
    assert made.node.arbiter.held == {1}, "before the arbiter has the list"
    again.reclaimer.tick()
    made.settle(again)
    away = again.reclaimer.moves.away[1]
    assert (away.state, away.taken(made.card)) == ("checkpointed", 60 * GIB)
    again.end(9, "epilog")
    for _ in range(2):
        made.node.clock.advance(11)
        again.reclaimer.tick()
    made.hold(pid, 60)
    made.settle(again)
    assert made.calls() == ["leave", "state", "return"] and made.rows(1)[0].result == "returned"


def kill_while_leaving(made: Lab, service: NodeService) -> None:
    """An online job comes, and the helper that takes the offline job's memory is killed at work."""
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    helper = made.helper_process(service)
    helper.kill()
    helper.wait()
    (made.directory / "hang").unlink()


@pytest.mark.parametrize("state", ["locked", "checkpointed"])
def test_a_job_that_was_leaving_is_finished(made: Lab, service: NodeService, state: str) -> None:
    one, two = made.offline(service, 1, 30), made.program(1, 30)
    kill_while_leaving(made, service)
    made.set(one, state)
    again = made.crash(service)
    again.reclaimer.tick()
    made.leaves(again, one, two)
    assert made.calls()[-2:] == ["state", "leave"]
    assert again.reclaimer.moves.away[1].state == "checkpointed"


def test_a_job_that_left_meanwhile_is_known_to_have_left(made: Lab, service: NodeService) -> None:
    pid = made.offline(service, 1, 60)
    kill_while_leaving(made, service)
    made.set(pid, "checkpointed")
    assert made.rows(1)[0].leave_ns is None
    again = made.crash(service)
    again.reclaimer.tick()
    made.settle(again)
    assert made.calls()[-1] == "state" and made.rows(1)[0].leave_ns is not None


def test_a_job_that_did_not_begin_to_leave_goes_on(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    kill_while_leaving(made, service)
    again = made.crash(service)
    again.reclaimer.tick()
    made.settle(again)
    assert made.rows(1)[0].result == "undone" and made.node.arbiter.held == set()


def test_a_helper_of_the_killed_daemon_is_waited_for(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    helper = made.helper_process(service)
    again = made.crash(service)
    again.reclaimer.tick()
    assert again.reclaimer.moves.operations() == [] and "state" not in made.calls()
    helper.kill()
    helper.wait()
    (made.directory / "hang").unlink()
    again.reclaimer.tick()
    made.settle(again)
    assert made.calls()[-1:] == ["state"]


def test_a_helper_of_the_killed_daemon_that_hangs_is_killed(
    made: Lab, service: NodeService
) -> None:
    made.offline(service, 1, 60)
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    helper = made.helper_process(service)
    again = made.crash(service)
    made.node.clock.advance(121)
    again.reclaimer.tick()
    assert helper.wait(30) == -signal.SIGKILL
    assert [asked.words for asked in made.queue.asked] == ["requeue 1"]


def test_jobs_that_were_never_moved_are_left_alone(made: Lab, service: NodeService) -> None:
    made.offline(service, 1, 60)
    again = made.crash(service)
    again.reclaimer.tick()
    made.settle(again)
    assert made.calls() == ["state"] and not again.reclaimer.moves.away
    assert made.rows(1) == [] and made.told == []


def test_a_restarted_qgpud_gives_a_prolog_no_new_deadline(made: Lab, service: NodeService) -> None:
    """The hook's own deadline is not much later, and would drain the node."""
    made.offline(service, 1, 60)
    (made.directory / "hang").touch()
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.helper_process(service).kill()
    made.node.clock.advance(50)
    again = made.crash(service)
    assert isinstance(made.prolog(again, 9, 50, "online"), Later) and made.queue.asked == []
    made.node.clock.advance(10)
    assert isinstance(made.prolog(again, 9, 50, "online"), Later)
    made.queue.asked[0].done = Done(0)
    assert made.prolog(again, 9, 50, "online") == Answer(0)
    assert again.grants[9].state == "refused"
    assert not (Path(again.node.run_dir) / LOCKS / "9.claim").exists()
    again.end(9, "epilog")
    made.node.clock.advance(100)
    assert isinstance(made.prolog(again, 9, 50, "online"), Later), "its next run has all its time"
