"""The driver's own memory limits per cgroup, on a faked driver of generation 615 and a faked
cgroup tree.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from daemon_support import hook_env as env
from memory_support import service_of, tree

from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.granting.hookproto import Answer
from enforcer.daemon.limits.backend import MemoryBackend
from enforcer.daemon.limits.probe import cgroup2_root, own_cgroup
from enforcer.nvml.worker import NvmlInline, NvmlStuckError
from simulator.fakes import GIB, UNLIMITED, FakeNode, FakeNvml

MOUNTS = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
OLD = (
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 "
    "rw 0 0\n"
)


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.nvml.version = "615.12.01"
    return node


def test_unified_hierarchy_is_found_only_when_it_is_alone(tmp_path):
    (tmp_path / "new").write_text(MOUNTS)
    (tmp_path / "old").write_text(OLD)
    assert cgroup2_root(tmp_path / "new") == Path("/sys/fs/cgroup")
    assert cgroup2_root(tmp_path / "old") is None
    assert cgroup2_root(tmp_path / "none") is None


def test_limits_are_set_when_the_cgroups_appear_and_taken_away_at_the_epilog(node, tmp_path):
    service = service_of(node, tmp_path)
    assert service.memory.strength == "hard"
    assert service.prolog(env()) == Answer(0)
    service.limit_memory()
    assert node.nvml.limits == {}, "slurmstepd has not made the cgroup yet"
    top = tree(tmp_path, 9, "step_0/user/task_0")
    service.limit_memory()
    card = node.nvml.cards()[0].uuid
    leaf = top / "step_0/user/task_0"
    assert node.nvml.limits == {(card, str(p)): (0, 12 * GIB) for p in (top, leaf)}, "soft stays 0"
    later = tree(tmp_path, 9, "step_1/user/task_0") / "step_1/user/task_0"
    service.limit_memory()
    assert (card, str(later)) in node.nvml.limits
    service.epilog(env())
    assert node.nvml.limits == {}


def test_limits_that_were_there_before_come_back(node, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    top, card = tree(tmp_path, 9), node.nvml.cards()[0].uuid
    node.nvml.limits[card, str(top)] = (0, 40 * GIB)
    service.limit_memory()
    assert node.nvml.limits[card, str(top)] == (0, 12 * GIB)
    service.epilog(env())
    assert node.nvml.limits[card, str(top)] == (0, 40 * GIB)


def test_cgroup_that_slurm_removed_is_left_in_peace(node, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    top = tree(tmp_path, 9)
    service.limit_memory()
    top.rmdir()
    asked: list[int] = []
    node.nvml.before = lambda: asked.append(1)
    service.epilog(env())
    assert asked == []


def test_each_cgroup_is_limited_once(node, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    tree(tmp_path, 9, "step_0/user/task_0")
    service.limit_memory()
    asked: list[int] = []
    node.nvml.before = lambda: asked.append(1)
    service.limit_memory()
    assert asked == []


def test_failure_is_said_once_and_the_shim_goes_on(node, tmp_path, caplog):
    logging.getLogger("qgpud").propagate = True
    service = service_of(node, tmp_path)
    service.prolog(env())
    tree(tmp_path, 9, "a", "b")
    node.nvml.failure = "No Permission"
    for _ in range(3):
        service.limit_memory()
    assert sum("event=memory-limit-failed" in r.getMessage() for r in caplog.records) == 1
    assert 9 in service.grants


def test_driver_that_hung_for_a_while_gets_the_limits_when_it_is_back(node, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    tree(tmp_path, 9)

    def hang() -> None:
        raise NvmlStuckError("no answer")

    node.nvml.before = hang
    service.limit_memory()
    node.nvml.before = lambda: None
    service.limit_memory()
    assert len(node.nvml.limits) == 1


@pytest.mark.parametrize(
    ("version", "root", "why"),
    [
        ("580.65.06", True, "driver 580.65.06 has no limits per cgroup; 615 is the first"),
        ("615.1", False, "need cgroup version 2 alone"),
        ("garbage", True, "driver garbage has no limits"),
    ],
)
def test_node_without_limits_says_why_and_relies_on_the_shim(node, tmp_path, version, root, why):
    node.nvml.version = version
    service = service_of(node, tmp_path if root else None)
    assert service.memory.strength == "cooperative" and why in service.memory.why
    assert service.prolog(env()) == Answer(0)
    tree(tmp_path, 9)
    service.limit_memory()
    assert node.nvml.limits == {}


def test_configuration_that_demands_limits_refuses_a_node_without(node, tmp_path):
    node.nvml.version = "580.65.06"
    service = service_of(node, tmp_path, "nvml")
    answer = service.prolog(env())
    assert answer is not None and answer.status == 1
    assert "enforcer.memory_backend is nvml, but driver 580.65.06 has no limits" in answer.message


def test_configuration_can_leave_the_drivers_limits_alone(node, tmp_path):
    service = service_of(node, tmp_path, "ledger")
    service.prolog(env())
    tree(tmp_path, 9)
    service.limit_memory()
    assert node.nvml.limits == {} and service.memory.strength == "cooperative"


def test_driver_that_comes_later_is_asked_again(tmp_path):
    nvml = FakeNvml.with_cards(1, GIB)
    nvml.version, nvml.failure = "615.12.01", "Driver Not Loaded"
    backend = MemoryBackend("auto", NvmlInline(lambda: nvml), tmp_path, Steps(tmp_path))
    assert not backend.check().anywhere and backend.why == "Driver Not Loaded"
    nvml.failure = None
    assert backend.check().anywhere and backend.strength == "hard"


def test_largest_number_is_what_the_fake_calls_no_limit(tmp_path):
    nvml = FakeNvml.with_cards(1, GIB)
    nvml.version = "615.12.01"
    assert nvml.memory_limits(nvml.cards()[0].uuid, str(tmp_path)).hard == UNLIMITED


def test_own_cgroup_is_what_the_kernel_tells(tmp_path):
    told = tmp_path / "told"
    told.write_text("12:memory:/old\n0::/qgpu.slice/qgpud.service\n")
    assert own_cgroup(tmp_path, told) == tmp_path, "is not there"
    own = tmp_path / "qgpu.slice/qgpud.service"
    own.mkdir(parents=True)
    assert own_cgroup(tmp_path, told) == own
    told.write_text("0::/../elsewhere\n")
    assert own_cgroup(own, told) == own_cgroup(own, tmp_path / "none") == own


def test_limit_left_by_the_daemon_before_is_not_taken_for_the_admins(node, tmp_path):
    service = service_of(node, tmp_path)
    service.prolog(env())
    top, card = tree(tmp_path, 9), node.nvml.cards()[0].uuid
    service.limit_memory()
    again = service_of(node, tmp_path)
    again.limit_memory()
    assert node.nvml.limits[card, str(top)] == (0, 12 * GIB)
    again.epilog(env())
    assert node.nvml.limits[card, str(top)] == (0, 80 * GIB), (
        "the whole card, not the cap of a job that ended"
    )
