"""Device cgroups of version 1, and the jobs of a node on either version: real cgroups."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from devices_support import (
    BATCH,
    FULL,
    NULL,
    PROGRAMS,
    TASK,
    ZERO,
    constrain,
    forbid,
    job,
    only,
    opened,
    process,
    slurms,
    usable,
)
from steps_support import step_record

from enforcer.daemon.audit.procs import start_ticks
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.devices.control import JobDevices, may_administer
from enforcer.daemon.devices.places import tree
from enforcer.daemon.devices.port import DevicesError, FakeDevices, Rules, devices_of
from enforcer.daemon.devices.single import Single
from gres.config.node import CardSpec

MOVED = Rules.of([ZERO], [NULL])
SLURMD = "step_0/slurm"  # where slurmstepd itself is
CARDS = frozenset([NULL, ZERO])


@pytest.fixture
def old() -> Iterator[Path]:
    """A job on version 1 that may open /dev/null alone."""
    with job(usable(1)) as top:
        forbid(top, ZERO, FULL)
        yield top


def test_rules_reach_all_of_a_job_and_leave_the_rest(old: Path) -> None:
    keeper, there = Single(), tree(str(old), {})
    assert keeper.refusal(there) == ""
    assert keeper.apply(there, MOVED)
    assert [opened(old / one) for one in (TASK, BATCH)] == [{ZERO}, {ZERO}]
    assert not keeper.apply(there, MOVED)
    assert keeper.apply(there, Rules.of([NULL], [ZERO]))
    assert [opened(old / one) for one in (TASK, BATCH)] == [{NULL}, {NULL}]


def test_what_a_new_step_makes_slurm_refuse_is_corrected(old: Path) -> None:
    keeper = Single()
    keeper.apply(tree(str(old), {}), MOVED)
    forbid(old, ZERO)  # as slurmstepd of a new step does at the job's directory
    (old / "step_1/task_0").mkdir(parents=True)
    assert opened(old / TASK) == set()
    assert keeper.apply(tree(str(old), {}), MOVED), "there is another cgroup"
    assert [opened(old / one) for one in (TASK, "step_1/task_0")] == [{ZERO}, {ZERO}]


def test_a_device_that_the_cgroup_above_lacks_is_told(old: Path) -> None:
    forbid(old.parent, ZERO)
    with pytest.raises(DevicesError, match=r"does not take device 1:5 .*the cgroup above"):
        Single().apply(tree(str(old), {}), MOVED)
    assert opened(old / TASK) == {NULL}, "and nothing was changed"


def test_a_cgroup_of_version_1_that_ends_meanwhile_is_no_fault(old: Path) -> None:
    there = tree(str(old), {})
    (old / TASK).rmdir()
    Single().apply(there, MOVED)
    assert opened(old / BATCH) == {ZERO}


class Node:
    """One version of cgroups, with job 7 in it and its slurmstepd on record."""

    def __init__(self, version: int, run_dir: Path, stack: ExitStack) -> None:
        root = usable(version)
        self.top = stack.enter_context(job(root))
        if version == 1:
            forbid(self.top, ZERO, FULL)
        else:
            for below, flags in PROGRAMS.items():
                constrain(self.top / below, slurms({NULL: 1, ZERO: 0, FULL: 0}), flags)
        self.stepd = stack.enter_context(process(self.top / SLURMD))
        self.task = stack.enter_context(process(self.top / TASK))
        start = start_ticks(self.stepd)
        assert start is not None
        step_record(run_dir, 7, self.stepd, start)
        self.devices = JobDevices(Steps(run_dir / "steps"), mounted=lambda: only(version))

    def can_open(self) -> list[set[object]]:
        """What a task and the batch script can open."""
        return [set(opened(self.top / one)) for one in (TASK, BATCH)]


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(request.param, tmp_path, stack)


def test_a_job_is_found_by_its_slurmstepd_and_moved(node: Node) -> None:
    assert node.devices.refusal(7, [node.task]) == ""
    assert node.devices.apply(7, frozenset([ZERO]), CARDS)
    assert node.can_open() == [{ZERO}, {ZERO}]
    assert not node.devices.apply(7, frozenset([ZERO]), CARDS)
    node.devices.forget(7)
    assert node.devices.apply(7, frozenset([NULL]), CARDS)
    assert node.can_open() == [{NULL}, {NULL}]


def test_processes_that_are_not_in_the_jobs_cgroup_are_told(node: Node) -> None:
    assert node.devices.refusal(7, [node.task, os.getpid()]) == (
        f"process {os.getpid()} is not in the device cgroup of job 7"
    )
    gone = 2**22 + 1  # above the largest pid
    assert node.devices.refusal(7, [gone]) == ""


def test_a_job_without_a_slurmstepd_is_told_and_left(node: Node) -> None:
    assert "no slurmstepd of job 8 is on record" in node.devices.refusal(8, [])
    assert not node.devices.apply(8, frozenset([ZERO]), CARDS)
    assert node.can_open() == [{NULL}, {NULL}]


def test_a_record_that_users_could_write_counts_for_nothing(node: Node, tmp_path: Path) -> None:
    record = tmp_path / "steps" / str(node.stepd)
    record.chmod(0o666)
    assert json.loads(record.read_text())["job"] == 7
    assert "no slurmstepd of job 7 is on record" in node.devices.refusal(7, [node.task])


def test_missing_rights_are_told(node: Node, tmp_path: Path) -> None:
    node.devices.administers = lambda: False
    assert "has no CAP_SYS_ADMIN" in node.devices.refusal(7, [node.task])
    status = tmp_path / "status"
    for bits, has in (("000001ffffdfffff", False), ("0000000000200000", True)):
        status.write_text(f"CapInh:\t{'f' * 16}\nCapEff:\t{bits}\n")
        assert may_administer(status) is has


def test_a_job_that_slurm_does_not_constrain_is_told(tmp_path: Path) -> None:
    with job(usable(2)) as top, process(top / SLURMD) as stepd:
        step_record(tmp_path, 7, stepd, start_ticks(stepd) or 0)
        devices = JobDevices(Steps(tmp_path / "steps"), mounted=lambda: only(2))
        assert "Slurm does not constrain devices" in devices.refusal(7, [])
        devices.mounted = lambda: only(1)
        assert "job 7 has no device cgroup" in devices.refusal(7, [])


def test_devices_are_those_of_the_cards_files() -> None:
    card = CardSpec(0, "/dev/null", "h200", 1, 1, ("/dev/zero", "/dev/full"))
    assert devices_of(card) == {NULL, ZERO, FULL}
    with pytest.raises(DevicesError, match="/proc is not a character device"):
        devices_of(CardSpec(0, "/proc", "h200", 1, 1))


def test_the_fake_keeps_what_was_applied() -> None:
    fake = FakeDevices()
    assert fake.apply(7, frozenset([ZERO]), CARDS) and not fake.apply(7, frozenset([ZERO]), CARDS)
    assert fake.rules == {7: MOVED} and fake.refusal(7, []) == ""
    fake.why = "no device cgroups"
    with pytest.raises(DevicesError, match="no device cgroups"):
        fake.apply(7, frozenset([NULL]), CARDS)
    fake.forget(7)
    assert fake.rules == {}
