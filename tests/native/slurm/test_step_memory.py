"""A step of a job whose GPU memory may be taken back has its job's limit of host memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.native
PROGRAM = Path(__file__).resolve().parents[3] / "build/test/step-memory"
V2 = "system.slice/slurmstepd.scope/job_7"
V1 = "memory/slurm/uid_1000/job_7"


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def raise_limits(root: Path, groups: str) -> str:
    """What the program says; "" where all is done."""
    done = subprocess.run(
        [PROGRAM, root], input=groups, capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if done.stdout else 0), done
    return done.stdout


def read(root: Path, *names: str) -> list[str]:
    return [(root / name).read_text().strip() for name in names]


def test_a_step_of_version_2_gets_the_limits_of_its_job(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            f"{V2}/memory.max": "28672\n",
            f"{V2}/memory.high": "28000\n",
            f"{V2}/memory.swap.max": "max\n",
            f"{V2}/step_0/memory.max": "max\n",
            f"{V2}/step_0/memory.high": "2048\n",
            f"{V2}/step_0/user/memory.max": "4096\n",
            f"{V2}/step_0/user/memory.high": "4096\n",
            f"{V2}/step_0/user/memory.swap.max": "0\n",
            f"{V2}/step_0/user/task_0/memory.max": "max\n",
            f"{V2}/step_1/user/memory.max": "4096\n",
        },
    )
    assert raise_limits(tmp_path, f"0::/{V2}/step_0/user/task_0\n") == ""
    step = f"{V2}/step_0"
    assert read(tmp_path, f"{step}/memory.max", f"{step}/memory.high") == ["max", "28000"]
    user = [f"{step}/user/memory.{name}" for name in ("max", "high", "swap.max")]
    assert read(tmp_path, *user) == ["28672", "28000", "max"]
    assert read(tmp_path, f"{V2}/step_1/user/memory.max") == ["4096"], "another step's stays"
    assert read(tmp_path, f"{V2}/memory.max") == ["28672"]


def test_a_step_of_version_1_gets_them_in_its_memory_hierarchy(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            f"{V1}/memory.limit_in_bytes": "28672",
            f"{V1}/memory.soft_limit_in_bytes": "28000",
            f"{V1}/step_batch/memory.limit_in_bytes": "4096",
            f"{V1}/step_batch/memory.soft_limit_in_bytes": "9223372036854771712",
            "freezer/slurm/uid_1000/job_7/memory.limit_in_bytes": "5",
        },
    )
    groups = (
        "9:memory:/slurm/uid_1000/job_7/step_batch\n"
        "8:devices:/slurm/uid_1000/job_7/step_batch/task_0\n"
        "0::/\n"
    )
    assert raise_limits(tmp_path, groups) == ""
    names = [f"{V1}/step_batch/memory.{name}_in_bytes" for name in ("limit", "soft_limit")]
    assert read(tmp_path, *names) == ["28672", "9223372036854771712"]


@pytest.mark.parametrize(
    "groups",
    ["", "0::/\n", "0::/user.slice/x\n", "no line at all", ":::\n", f"0::/{V2}\n", "0::/step_0\n"],
)
def test_who_is_in_no_step_changes_nothing(tmp_path: Path, groups: str) -> None:
    tree(tmp_path, {"memory.max": "5\n", "step_0/memory.max": "3\n", f"{V2}/memory.max": "4\n"})
    assert raise_limits(tmp_path, groups) == ""
    assert read(tmp_path, "memory.max", f"{V2}/memory.max") == ["5", "4"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    tree(tmp_path, {f"{V2}/memory.max": "28672\n", "elsewhere": "4096\n"})
    (tmp_path / f"{V2}/step_0").mkdir()
    (tmp_path / f"{V2}/step_0/memory.max").symlink_to(tmp_path / "elsewhere")
    assert raise_limits(tmp_path, f"0::/{V2}/step_0\n") == ""
    assert read(tmp_path, "elsewhere") == ["4096"]
