"""Slurmstepds of a made-up /proc, and their records.

The cgroup texts of version 1 and those of version 2 with `job_N` are as Slurm 22.05 and 26.05 made
them. Hierarchies in which a process is at the root are left out.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

V1 = (
    "6:freezer:/slurm_n1/uid_58008/job_{job}\n5:devices:/slurm_n1/uid_58008/job_{job}/step_{step}\n"
)
V1_TASK = (
    "6:freezer:/slurm_n1/uid_58008/job_{job}/step_{step}\n"
    "5:devices:/slurm_n1/uid_58008/job_{job}/step_{step}/task_0\n"
)
SCOPE = "0::/system.slice/n1_slurmstepd.scope"


def step_record(run_dir: Path, job: int, pid: int, start: int) -> Path:
    """As slurm_plugin/spank/step.c leaves it."""
    directory = run_dir / "steps"
    directory.mkdir(mode=0o755, exist_ok=True)
    path = directory / str(pid)
    path.write_text(json.dumps({"job": job, "pid": pid, "start": start}))
    path.chmod(0o644)
    return path


def records_of(run_dir: Path, job: int) -> list[Path]:
    """The records of a job's slurmstepds. Other steps may end meanwhile, and take theirs away."""
    found = []
    for path in (run_dir / "steps").glob("[0-9]*"):
        with suppress(FileNotFoundError):
            if json.loads(path.read_text())["job"] == job:
                found.append(path)
    return found


def start_of(pid: int, proc: Path = Path("/proc")) -> int:
    return int((proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[19])


def process(
    proc: Path, pid: int, cgroup: str, parent: int = 1, uid: int = 58008, title: str = "x"
) -> None:
    """One process with one thread, started `pid` ticks after the boot."""
    own = proc / str(pid)
    for directory in (own, own / "task" / str(pid)):
        directory.mkdir(parents=True)
        (directory / "stat").write_text(
            f"{pid} (x) S {parent} " + " ".join("0" for _ in range(5, 22)) + f" {pid} 0 0\n"
        )
        (directory / "cgroup").write_text(cgroup)
    (own / "cmdline").write_text(f"{title}\0")
    (own / "exe").symlink_to("/usr/sbin/slurmstepd-wlm" if uid == 0 else "/usr/bin/x")
    (own / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
