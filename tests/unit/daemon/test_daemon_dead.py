"""Dead processes that the driver still lists: the report, and the
charge when an arbiter dies too.
"""

from __future__ import annotations

import pytest
from daemon_support import hook_env as env
from daemon_support import new_arbiter, sampled

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.audit.inspector import FULL_EACH
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import GpuProcess
from simulator.fakes import GIB, FakeNode


@pytest.fixture
def service(node: FakeNode, service: NodeService) -> NodeService:
    """Job 9 has a grant; process 50 is dead unless a test says otherwise."""
    node.dead_pids.add(50)
    service.prolog(env())
    return service


def uuid(node: FakeNode) -> str:
    return node.nvml.cards()[0].uuid


def test_dead_process_is_released_when_the_driver_does_not_list_it(node, service):
    dead = ProcessUse(9, uuid(node), 50, GIB)
    node.nvml.put(uuid(node), GpuProcess(50, GIB))
    node.arbiter.deaths = [dead]
    service.inspector.note_deaths()
    assert service.inspector.waiting and "gone 9 50" not in node.arbiter.calls
    node.nvml.put(uuid(node))
    service.inspector.poll_dead()
    assert "gone 9 50" in node.arbiter.calls and not service.inspector.waiting


def test_arbiter_hears_of_a_dead_process_as_long_as_the_driver_lists_it(node, service, lines):
    node.nvml.put(uuid(node), GpuProcess(50, GIB))
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    assert node.arbiter.calls.count("listed 9 50") == 1
    for _ in range(20 * 600):  # ten minutes
        service.inspector.poll_dead()
    told = node.arbiter.calls.count("listed 9 50")
    assert 590 <= told <= 610 and service.inspector.waiting, (
        "once a second, and it is never given up"
    )
    assert len(lines("dead-on-card")) == 1
    node.nvml.failure = "gone"
    for _ in range(60):
        service.inspector.poll_dead()
    assert node.arbiter.calls.count("listed 9 50") == told, (
        "a driver that fails does not say that it is there"
    )
    node.nvml.failure = None
    node.nvml.put(uuid(node))
    for _ in range(20):
        service.inspector.poll_dead()
    assert "gone 9 50" in node.arbiter.calls and not service.inspector.waiting


def test_dead_process_that_a_new_arbiter_does_not_know_counts_as_overhead_of_its_job(
    node, service, lines
):
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    sampled(service)
    assert not any(node.arbiter.overheads.values()), "the arbiter charges it itself"
    new_arbiter(node, service)
    for _ in range(4):
        sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 2 * GIB}
    node.nvml.put(uuid(node))
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 0}
    assert not [
        line for line in lines("audit-stranger") + lines("audit-unregistered") if "pid=50" in line
    ]


def known_to_an_arbiter_that_is_gone(node, service, living: list[int]) -> None:
    """Process 50 was seen registered; then that arbiter was killed, and its successor knows
    nobody.
    """
    service.inspector.alive = lambda pid: pid in living
    node.arbiter.procs = [ProcessUse(9, uuid(node), 50, GIB)]
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): GIB}
    new_arbiter(node, service)


@pytest.mark.parametrize("later", [False, True])
def test_process_that_died_with_its_arbiter_is_charged_to_its_job(
    node, service, lines, later: bool
):
    """That one could not tell of the death, and its successor never heard of the process."""
    living = [50]
    known_to_an_arbiter_that_is_gone(node, service, living)
    if later:
        sampled(service)
    living.clear()
    for _ in range(4):
        sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 2 * GIB}
    node.nvml.put(uuid(node))
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 0}
    assert not [
        line for line in lines("audit-stranger") + lines("audit-unregistered") if "pid=50" in line
    ]


def test_process_that_found_the_new_arbiter_is_that_ones_to_charge(node, service):
    living = [50]
    known_to_an_arbiter_that_is_gone(node, service, living)
    node.arbiter.procs = [ProcessUse(9, uuid(node), 50, GIB)]
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): GIB}
    living.clear()
    node.arbiter.procs, node.arbiter.deaths = [], [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 0} and service.inspector.waiting, (
        "not by us as well"
    )


def test_process_of_a_job_that_ended_is_not_charged_to_one_that_came_again(node, service):
    service.inspector.alive = lambda pid: False
    node.arbiter.procs = [ProcessUse(9, uuid(node), 50, GIB)]
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    sampled(service)
    service.epilog(env())
    new_arbiter(node, service)
    service.prolog(env())
    for _ in range(4):
        sampled(service)
    assert not any(node.arbiter.overheads.values())


def test_number_of_a_process_that_a_former_arbiter_knew_is_not_its_job_for_ever(
    node, service, lines
):
    """It left the card, and the number was given to somebody else."""
    living = [50]
    known_to_an_arbiter_that_is_gone(node, service, living)
    node.nvml.put(uuid(node))
    sampled(service)
    living.clear()
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    for _ in range(4):
        sampled(service)
    assert (9, uuid(node)) not in node.arbiter.overheads or not node.arbiter.overheads[
        9, uuid(node)
    ]


def test_dead_process_is_not_released_while_the_driver_fails(node, service):
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    node.nvml.failure = "gone"
    service.inspector.note_deaths()
    assert "gone 9 50" not in node.arbiter.calls and service.inspector.waiting
    node.nvml.failure = None
    service.inspector.poll_dead()
    assert "gone 9 50" in node.arbiter.calls


# ---- a number that is another process's by now ---------------------------------------------------


def test_process_with_the_number_of_a_dead_one_is_seen(node, service, lines):
    node.jobs_of_pids[50] = 9
    node.nvml.put(uuid(node), GpuProcess(50, GIB))
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    sampled(service)
    assert service.inspector.waiting and "gone 9 50" not in node.arbiter.calls
    node.dead_pids.clear()
    for _ in range(3):
        sampled(service)
    assert "gone 9 50" in node.arbiter.calls and not service.inspector.waiting
    assert len(lines("audit-unregistered")) == 1 and node.arbiter.overheads == {
        (9, uuid(node)): GIB
    }


def test_dead_process_whose_pid_is_in_use_is_released_between_samples_too(node, service):
    node.nvml.put(uuid(node), GpuProcess(50, GIB))
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    node.dead_pids.clear()
    service.inspector.poll_dead()
    assert "gone 9 50" in node.arbiter.calls and not service.inspector.waiting


def test_process_with_the_number_of_one_that_died_under_a_former_arbiter_is_not_its_jobs(
    node, service, lines
):
    node.nvml.put(uuid(node), GpuProcess(50, 2 * GIB))
    node.arbiter.deaths = [ProcessUse(9, uuid(node), 50, GIB)]
    service.inspector.note_deaths()
    new_arbiter(node, service)
    sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 2 * GIB}
    node.dead_pids.clear()  # a process of nobody's; the driver says the same as before
    for _ in range(FULL_EACH + 3):
        sampled(service)
    assert node.arbiter.overheads == {(9, uuid(node)): 0} and len(lines("audit-stranger")) == 1
