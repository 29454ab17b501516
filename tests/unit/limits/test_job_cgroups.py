"""Where the cgroups of jobs are: what is found, and how little is asked for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_support import hook_env as env
from memory_support import place, service_of, tree

from enforcer.daemon.limits import cgroups as job_cgroups
from enforcer.daemon.limits.cgroups import JobCgroups
from simulator.fakes import FakeNode

STEP = ("slurm", "user/task_0")
DIRECTORIES, FILES = 13, 60


class Counted:
    """The os module with its stats and listings counted, as far as the walk uses it."""

    def __init__(self) -> None:
        self.stats = self.lists = 0

    def stat(self, path: str, follow_symlinks: bool) -> os.stat_result:
        self.stats += 1
        return Path(path).stat(follow_symlinks=follow_symlinks)

    def scandir(self, path: str) -> Any:
        self.lists += 1
        return os.scandir(path)

    def taken(self) -> tuple[int, int]:
        found = (self.stats, self.lists)
        self.stats = self.lists = 0
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(job_cgroups, "os", counted)
    return counted


def at(*jobs: int) -> dict[int, tuple[str, ...]]:
    return {job: (place(job),) for job in jobs}


def slurms(root: Path, job: int) -> Path:
    """A job's tree as Slurm makes it, with its control files: 13 directories."""
    top = tree(
        root, job, *(f"step_{step}/{leaf}" for step in ("batch", "extern", "0") for leaf in STEP)
    )
    for directory in (top, *(path for path in top.rglob("*") if path.is_dir())):
        for number in range(FILES):
            (directory / f"memory.{number}").touch()
    return top


def test_cgroups_of_a_job_are_its_own_and_the_leaves(tmp_path: Path) -> None:
    top = tree(tmp_path, 9, "step_0/user/task_0", "step_0/user/task_1", "step_0/slurm")
    tree(tmp_path, 90)
    (top / "step_0/slurm/cgroup.procs").touch()
    (top / "link").symlink_to(tmp_path)
    leaves = ("step_0/slurm", "step_0/user/task_0", "step_0/user/task_1")
    assert JobCgroups(tmp_path).scan(at(9, 10)) == {9: (top, *(top / leaf for leaf in leaves))}
    assert JobCgroups(tmp_path).scan({}) == JobCgroups(tmp_path / "none").scan(at(9)) == {}
    assert JobCgroups(tmp_path).scan({9: ()}) == {}
    upwards = f"/{tmp_path.name}/.."
    assert JobCgroups(tmp_path).scan({9: (upwards,)}) == {}, "not in the tree that is seen here"


def test_a_job_costs_one_stat_of_each_directory_and_no_listing_while_nothing_changes(
    tmp_path: Path, counted: Counted
) -> None:
    jobs = range(1, 9)
    tops = [slurms(tmp_path, job) for job in jobs]
    scanner = JobCgroups(tmp_path)
    first = dict(scanner.scan(at(*jobs)))
    assert counted.taken() == (8 * DIRECTORIES, 8 * DIRECTORIES), "no control file is asked about"
    again = scanner.scan(at(*jobs))
    assert counted.taken() == (8 * DIRECTORIES, 0)
    assert all(again[job] is first[job] for job in jobs)
    (tops[0] / "step_0/user/task_1").mkdir()
    found = scanner.scan(at(*jobs))
    stats, lists = counted.taken()
    assert lists == 2 and stats <= 8 * DIRECTORIES + 2, "the changed directory and the new one"
    assert tops[0] / "step_0/user/task_1" in found[1] and found[2] is first[2]


def test_a_step_that_came_as_another_went_is_seen(tmp_path: Path) -> None:
    # The number of links is as before then, and cgroupfs does not touch a directory's times.
    top = tree(tmp_path, 9, "step_0/task_0", "step_1/task_0")
    scanner = JobCgroups(tmp_path)
    assert scanner.scan(at(9))[9] == (top, top / "step_0/task_0", top / "step_1/task_0")
    (top / "step_0/task_0").rmdir()
    (top / "step_0").rmdir()
    tree(tmp_path, 9, "step_2/task_0")
    assert scanner.scan(at(9))[9] == (top, top / "step_1/task_0", top / "step_2/task_0")
    (top / "step_1/task_0").rmdir()
    assert scanner.scan(at(9))[9] == (top, top / "step_1", top / "step_2/task_0")


def test_a_job_that_ended_is_forgotten(tmp_path: Path) -> None:
    top = tree(tmp_path, 9)
    scanner = JobCgroups(tmp_path)
    assert scanner.scan(at(9)) == {9: (top,)}
    top.rmdir()
    assert scanner.scan(at(9)) == {} and scanner._known == {}


def test_links_that_do_not_count_directories_cost_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    top = tree(tmp_path, 9, "step_0")
    monkeypatch.setattr(counted, "stat", lambda path, follow_symlinks: SimpleNamespace(st_nlink=1))
    scanner = JobCgroups(tmp_path)
    assert scanner.scan(at(9))[9] == (top, top / "step_0")
    later = tree(tmp_path, 9, "step_1") / "step_1"
    assert scanner.scan(at(9))[9] == (top, top / "step_0", later)


# ---- and the limits of those -----------------------------------------------------------------


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.nvml.version = "615.12.01"
    return node


def test_a_job_whose_limits_are_set_is_not_scanned_again(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(node, tmp_path)
    service.prolog(env())
    slurms(tmp_path, 9)
    service.limit_memory()
    assert len(node.nvml.limits) == 7
    looked: list[object] = []
    keep = service.memory._keep
    monkeypatch.setattr(service.memory, "_keep", lambda *one: looked.append(one) or keep(*one))
    service.limit_memory()
    assert len(looked) == 7, "all are taken"
    for _ in range(3):
        service.limit_memory()
    assert len(looked) == 7
    tree(tmp_path, 9, "step_1")
    service.limit_memory()
    assert len(looked) == 15 and len(node.nvml.limits) == 8
