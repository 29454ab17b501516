"""Whether qgpud can find the jobs that run here: by their slurmstepds' records and cgroups."""

from __future__ import annotations

import re
from pathlib import Path

from cli.doctor.checks import site
from cli.doctor.known import Known
from cli.doctor.result import Check
from enforcer.daemon.audit.steps import STEPS, Steps
from enforcer.daemon.granting.decide import named_jobs
from enforcer.daemon.granting.jobshere import parse, squeue_command
from enforcer.daemon.limits.probe import cgroup2_root
from enforcer.daemon.limits.unfound import ELSEWHERE, HOMELESS, UNRECORDED
from enforcer.wire.layout import GRANTS_DIR
from gres.grant.store import RUN_BASE

_STEPD = re.compile(r"slurmstepd: \[([0-9]{1,10})\.")
NAMED = 3  # jobs named in one sentence; more are counted
_WAY_OUT = {
    UNRECORDED: (
        "install qgpu_spank.so of this release, see `spank` above, and restart slurmd; jobs that"
        " run now stay so until they end"
    ),
    ELSEWHERE: "run qgpud and slurmd in one cgroup namespace",
}


def job_cgroups(known: Known, root: Path | None = None) -> Check:
    """Whether the cgroup of each running job with a card is found."""
    jobs = running(known)
    if not jobs:
        return Check("job cgroups", "ok", "no job with a card runs here now")
    steps = Steps(Path(known.run_dir) / STEPS, known.host.proc, known.host.trusted)
    lost = {job: why for job in jobs if (why := _fault(steps, job, root or cgroup2_root()))}
    lost = {job: why for job, why in lost.items() if job in running(known, anew=True)}
    if not lost:
        return Check("job cgroups", "ok", f"found for the {len(jobs)} job(s) with a card here")
    first = min(lost)
    others = ", ".join(map(str, sorted(lost.keys() - {first})[:NAMED]))
    text, path = lost[first]
    text = text.format(job=first, path=path) + (f"; also of job {others}" if others else "")
    return Check("job cgroups", "fail", text, _way_out(known, lost[first][0]))


def _way_out(known: Known, why: str) -> str:
    if why != HOMELESS:
        return _WAY_OUT[why]
    key = "(ProctrackType|TaskPlugin)"
    return site.settle(known, key, "restart slurmd; jobs that run now stay so until they end")


def _fault(steps: Steps, job: int, root: Path | None) -> tuple[str, str] | None:
    """What is wrong with the job, and the path of its cgroup; None if it is found."""
    found = steps.of(job)
    if not found:
        return UNRECORDED, ""
    if not any(step.dirs for step in found):
        return HOMELESS, ""
    paths = steps.unified([job])[job] or ()
    if root is None or not paths or any((root / path.strip("/")).is_dir() for path in paths):
        return None
    return ELSEWHERE, paths[0]


def grants(known: Known) -> Check:
    """Whether each grant belongs to a job that Slurm has on this node."""
    standing = granted(known)
    steps = Steps(Path(known.run_dir) / STEPS, known.host.proc, known.host.trusted)
    idle = {int(job) for job in standing if int(job) < RUN_BASE and not steps.of(int(job))}
    if not idle:
        return Check("grants", "ok", f"{len(standing)}, each with a running job")
    said = known.host.said(*squeue_command("squeue", known.node))
    told = parse(said.out) if said.code == 0 else None
    if told is None:
        text = f"nothing of {named_jobs(idle)} runs here, and squeue does not answer: {said.last}"
        return Check("grants", "warn", text, "let slurmctld answer here, then ask doctor again")
    lost = sorted(job for job in idle - told.here if str(job) in granted(known))
    if not lost:
        return Check("grants", "ok", f"{len(standing)}, each with a job that Slurm has here")
    text = (
        f"{named_jobs(lost)} left a grant, and with it a part of a card: Slurm has no such job here"
        " any more, and no Epilog ended it"
    )
    todo = f"qgpud ends it in two minutes; else say qgpu job release {lost[0]}"
    return Check("grants", "fail", text, todo)


def granted(known: Known) -> set[str]:
    """The jobs that have a grant here."""
    return {path.stem for path in (Path(known.run_dir) / GRANTS_DIR).glob("[0-9]*.json")}


def running(known: Known, anew: bool = False) -> set[int]:
    """The jobs that have a grant and a slurmstepd here. `anew`: of those, what runs still."""
    with_grant, found = granted(known), set[int]()
    for process in known.host.daemons(known.slurm_uid):
        match = _STEPD.match(process.words[0]) if process.words else None
        there = not anew or (known.host.proc / str(process.pid) / "cmdline").exists()
        if match and match[1] in with_grant and process.name.startswith("slurmstepd") and there:
            found.add(int(match[1]))
    return found
