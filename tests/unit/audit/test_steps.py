"""Which job a process belongs to, by the slurmstepds on record: the rule of identity.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from steps_support import SCOPE, V1, V1_TASK, process, step_record

from enforcer.daemon.audit.steps import Steps, depth_inside, job_dir, job_dirs

STEPD, TASK, OTHER = 1000, 1001, 1002


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    """A node without any record."""
    (tmp_path / "proc").mkdir()
    process(tmp_path / "proc", 1, "0::/init.scope\n", 0, 0, "init")
    return Steps(tmp_path / "steps", tmp_path / "proc")


@pytest.fixture
def stepd(tmp_path: Path, steps: Steps) -> Callable[..., Path]:
    """Start a slurmstepd in a cgroup, and record it."""

    def make(job: int, cgroup: str, pid: int = STEPD) -> Path:
        process(steps.proc, pid, cgroup, 1, 0, f"slurmstepd: [{job}.batch]")
        return step_record(tmp_path, job, pid, pid)

    return make


SLUID = "s2R6GPDHF8GRR0"
TREES = [
    # version 1, by Slurm 22.05 and 26.05
    (V1.format(job=77, step="batch"), V1_TASK.format(job=77, step="batch")),
    (V1.format(job=77, step="extern"), V1_TASK.format(job=77, step="7")),
    # version 2 with job_N
    (f"{SCOPE}/job_77/step_batch/slurm\n", f"{SCOPE}/job_77/step_batch/user/task_0\n"),
    # an ssh session that pam_slurm_adopt moved into the extern step, for a process of step 3
    (f"{SCOPE}/job_77/step_3/slurm\n", f"{SCOPE}/job_77/step_extern/user/task_special\n"),
    # version 2 with SLUIDs, and below a renamed slice
    (f"{SCOPE}/{SLUID}/step_0/slurm\n", f"{SCOPE}/{SLUID}/step_1/user/task_0\n"),
    ("0::/hpc.slice/x.scope/job_77/step_0/slurm\n", "0::/hpc.slice/x.scope/job_77/step_0/user/t\n"),
    # seen from a cgroup namespace
    ("0::/../../x.scope/job_77/step_0/slurm\n", "0::/../../x.scope/job_77/step_0/user/task_0\n"),
]


@pytest.mark.parametrize(("daemon", "task"), TREES)
def test_process_is_found_by_what_slurmstepd_is_in(steps, stepd, daemon, task):
    stepd(77, daemon)
    process(steps.proc, TASK, task)
    process(steps.proc, OTHER, "6:freezer:/\n0::/user.slice/user-58008.slice/session-3.scope\n")
    assert steps.job_of(TASK) == 77 and steps.job_of(STEPD) == 77
    assert steps.job_of(OTHER) is None and steps.job_of(4711) is None


def test_unified_directories_are_those_of_version_two(steps, stepd):
    stepd(77, f"6:freezer:/slurm/uid_1/job_77\n{SCOPE}/{SLUID}/step_0/slurm\n")
    stepd(78, V1.format(job=78, step=0), TASK)
    assert steps.unified([77, 78, 79]) == {77: (f"{SCOPE[3:]}/{SLUID}",), 78: (), 79: None}


LIES = [
    "0::/user.slice/user-58008.slice/user@58008.service/slurm/job_77/step_0/user/task_0\n",
    "0::/user.slice/user-58008.slice/user@58008.service/system.slice/n1_slurmstepd.scope/job_77\n",
    f"{SCOPE}/job_777/step_0/user/task_0\n",
    f"{SCOPE}\n",
    "0::/slurm_n1/uid_58008/job_77/step_batch\n",  # of freezer, but in another hierarchy
]


@pytest.mark.parametrize("cgroup", LIES)
def test_names_that_a_user_chose_prove_nothing(steps, stepd, cgroup):
    stepd(77, f"{SCOPE}/job_77/step_batch/slurm\n")
    stepd(78, V1.format(job=78, step="batch"), 900)
    process(steps.proc, TASK, cgroup, title="slurmstepd: [77.batch]")
    process(steps.proc, OTHER, "0::/\n", TASK)
    assert steps.job_of(TASK) is None and steps.job_of(OTHER) is None


def test_without_cgroups_descent_from_slurmstepd_counts(steps, stepd):
    stepd(77, "0::/system.slice/slurmd.service\n")
    process(steps.proc, TASK, "0::/system.slice/slurmd.service\n", STEPD)
    process(steps.proc, OTHER, "0::/system.slice/slurmd.service\n")
    assert steps.job_of(TASK) == 77 and steps.job_of(OTHER) is None


def test_set_user_id_program_that_calls_itself_slurmstepd_is_none(steps):
    """sudo has four ids of root while it waits, and its first word is the user's."""
    process(steps.proc, STEPD, "0::/x\n", 1, 0, "slurmstepd: [77.batch]")
    process(steps.proc, TASK, "0::/x\n", STEPD)
    assert steps.job_of(TASK) is None


def test_directory_of_two_jobs_proves_nothing_and_the_deepest_counts(steps, stepd):
    stepd(77, "0::/a/step_0/slurm\n")
    stepd(78, "0::/a/step_0/b/job_78/step_0/slurm\n", 900)
    process(steps.proc, TASK, "0::/a/step_0/b/job_78/step_1\n")
    process(steps.proc, OTHER, "0::/a/step_9\n")
    assert steps.job_of(TASK) == 78 and steps.job_of(OTHER) == 77
    stepd(79, "0::/a/step_0/slurm\n", 901)
    assert steps.job_of(OTHER) is None


def test_record_of_a_slurmstepd_that_ended_does_not_count(tmp_path, steps, stepd):
    stepd(77, f"{SCOPE}/job_77/step_0/slurm\n")
    process(steps.proc, TASK, f"{SCOPE}/job_77/step_0/user/task_0\n")
    assert steps.job_of(TASK) == 77
    (steps.proc / f"{STEPD}/stat").rename(steps.proc / f"{STEPD}/gone")
    assert steps.job_of(TASK) is None and steps.unified([77]) == {77: None}
    steps.sweep()
    assert list((tmp_path / "steps").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"job": 77, "pid": 1000, "start": 999}',  # a later process with that number
        '{"job": 77, "pid": 999, "start": 1000}',
        '{"job": 77}',
        "[]",
        "",
        "{" * 100_000,
    ],
)
def test_record_that_is_none(steps, stepd, text):
    stepd(77, f"{SCOPE}/job_77/step_0/slurm\n").write_text(text)
    process(steps.proc, TASK, f"{SCOPE}/job_77/step_0/user/task_0\n")
    assert steps.job_of(TASK) is None


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_record_that_others_can_write_is_none(tmp_path, steps, stepd, mode):
    path = stepd(77, f"{SCOPE}/job_77/step_0/slurm\n")
    process(steps.proc, TASK, f"{SCOPE}/job_77/step_0/user/task_0\n")
    path.chmod(mode)
    assert steps.job_of(TASK) is None
    path.chmod(0o644)
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    assert steps.job_of(TASK) is None
    path.unlink()
    path.with_name("real").rename(path)
    path.parent.chmod(0o777)
    assert steps.job_of(TASK) is None
    path.parent.chmod(0o755)
    assert steps.job_of(TASK) == 77


def test_slurmstepd_that_moved_is_noted_anew(steps, stepd):
    stepd(77, "0::/system.slice/slurmd.service\n")
    process(steps.proc, TASK, f"{SCOPE}/job_77/step_0/user/task_0\n")
    assert steps.job_of(TASK) is None
    path = steps.directory / str(STEPD)
    (steps.proc / f"{STEPD}/cgroup").write_text(f"{SCOPE}/job_77/step_0/slurm\n")
    path.with_name(".tmp").write_bytes(path.read_bytes())
    path.with_name(".tmp").chmod(0o644)
    path.with_name(".tmp").rename(path)
    assert steps.job_of(TASK) == 77


# ---- jobs that began under a plugin without records ----------------------------------------------


def test_running_jobs_without_a_record_are_recorded_at_the_start(steps):
    process(steps.proc, STEPD, f"{SCOPE}/job_77/step_0/slurm\n", 1, 0, "slurmstepd: [77.0]")
    process(steps.proc, 900, f"{SCOPE}/job_78/step_0/slurm\n", 1, 0, "slurmstepd: [78.0]")
    process(steps.proc, TASK, f"{SCOPE}/job_77/step_0/user/task_0\n")
    assert steps.adopt([77]) == [77] and steps.job_of(TASK) == 77 and steps.of(78) == []
    assert steps.adopt([77]) == [], "it has one"


def test_what_only_looks_like_slurmstepd_is_not_recorded(steps):
    process(steps.proc, STEPD, "0::/x\n", 1, 0, "slurmstepd: [77.0]")
    (steps.proc / f"{STEPD}/exe").unlink()
    (steps.proc / f"{STEPD}/exe").symlink_to("/usr/bin/sudo")
    process(steps.proc, 900, "0::/x\n", 1, 58008, "slurmstepd: [77.0]")
    assert steps.adopt([77]) == [] and not steps.directory.exists()


def test_job_number_of_two_slurmds_is_not_recorded(steps):
    for pid, scope in ((STEPD, "a"), (900, "b")):
        process(steps.proc, pid, f"0::/{scope}/job_77/step_0/slurm\n", 1, 0, "slurmstepd: [77.0]")
    assert steps.adopt([77]) == []


# ---- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/slurm/uid_1/job_7", "/slurm/uid_1/job_7"),
        ("/slurm/uid_1/job_7/step_0", "/slurm/uid_1/job_7"),
        ("/a/step_1/b/step_2/slurm", "/a/step_1/b"),
        ("/step_1/slurm", ""),
        ("/", ""),
        ("", ""),
        ("/system.slice/slurmd.service", ""),
    ],
)
def test_directory_of_a_job(path, found):
    assert job_dir(path) == found
    assert job_dirs(f"4:a,b:{path}\n") == ((f"4:a,b:{found}",) if found else ())


def test_depth_is_of_whole_names():
    assert depth_inside("0::/a/b\n", ["0::/a"]) == 5
    assert depth_inside("0::/a\n", ["0::/a"]) == 5
    assert depth_inside("0::/ab\n1:x:/a\n", ["0::/a"]) == 0
