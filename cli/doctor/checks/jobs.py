"""Whether qgpud can find the job of a process: where the cgroups of running jobs are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cli.doctor.known import Known
from cli.doctor.result import Check
from enforcer.daemon.audit.procs import job_of_cgroup
from enforcer.daemon.limits.cgroups import JobCgroups
from enforcer.daemon.limits.probe import cgroup2_root

_STEPD = re.compile(r"slurmstepd: \[([0-9]{1,10})\.")
NAMED = 3  # jobs named in one sentence; more are counted


def job_cgroups(known: Known, root: Path | None = None) -> Check:
    """Whether the cgroup of each running job is where qgpud expects it."""
    jobs = running(known)
    if not jobs:
        return Check("job cgroups", "ok", "no job runs here now")
    lost = {job: path for job, path in _found_at(known, jobs) if path}
    root = root or cgroup2_root()
    known_dirs = JobCgroups(root).scan(jobs) if root is not None else dict.fromkeys(jobs, ())
    unseen = sorted(
        job for job in lost.keys() | (set(jobs) - known_dirs.keys()) if _lives(known, jobs[job])
    )
    if not unseen:
        return Check("job cgroups", "ok", f"found for the {len(jobs)} job(s) that run here")
    first = unseen[0]
    where = lost.get(first) or (f"no directory job_{first} is below {root}" if root else "")
    text = (
        f"qgpud finds no cgroup of job {', '.join(map(str, unseen[:NAMED]))}:"
        f" {where or 'it has none'}"
    )
    return Check("job cgroups", "fail", text, _way_out(where))


def _lives(known: Known, pids: list[int]) -> bool:
    """Whether the job still runs after the check."""
    return any(_text(known.host.proc / str(pid) / "cmdline") for pid in pids)


def _way_out(where: str) -> str:
    if re.search(r"slurmstepd\.scope/s[0-9A-Za-z]{6,}", where):
        return (
            "this Slurm names cgroups by SLUID: write enforcer: {memory_backend: ledger} in"
            " qgpu.yaml until then"
        )
    if ".slice" in where and "system.slice" not in where:
        return "take CgroupSlice= out of cgroup.conf, and restart slurmd"
    return "write ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf"


def running(known: Known) -> dict[int, list[int]]:
    """The jobs that have a slurmstepd here, and its process ids."""
    found: dict[int, list[int]] = {}
    for process in known.host.daemons(known.slurm_uid):
        match = _STEPD.match(process.words[0]) if process.words else None
        if match and process.name.startswith("slurmstepd"):
            found.setdefault(int(match[1]), []).append(process.pid)
    return found


def _found_at(known: Known, jobs: dict[int, list[int]]) -> Iterator[tuple[int, str]]:
    """Of each job whose tasks are in no cgroup that names it: where they are instead."""
    children = _children(known)
    for job, stepds in jobs.items():
        tasks = [pid for stepd in stepds for pid in children.get(stepd, [])]
        texts = [text for pid in tasks if (text := _cgroup(known, pid))]
        if texts and not any(job_of_cgroup(text) == job for text in texts):
            yield job, _path_of(texts[0])


def _path_of(cgroups: str) -> str:
    """The path of a process in version 2, else the first line."""
    lines = cgroups.strip("\n").split("\n")
    return lines[-1].partition("::")[2] or lines[0]


def _children(known: Known) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for process in known.host.processes():
        stat = _text(known.host.proc / str(process.pid) / "stat").rpartition(")")[2].split()
        if len(stat) > 1:
            found.setdefault(int(stat[1]), []).append(process.pid)
    return found


def _cgroup(known: Known, pid: int) -> str:
    return _text(known.host.proc / str(pid) / "cgroup")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
