"""Reads running jobs and partitions from slurmctld, and asks it for more time or a requeue.

The fields of squeue and sinfo are the same in 22.05, 24.11 and 26.05. None is a user's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gres.grant.extension import RunningJob
from gres.printable import printable
from slurm_plugin.records import Columns, Runner, SlurmError, run, whole

JOBS = ("%A", "%q", "%l", "%S", "%P")
PARTITIONS = ("%R", "%l")


def extend_command(job_id: int, limit_s: int) -> list[str]:
    """The call that sets the time limit, in whole minutes."""
    return ["scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit_s // 60}"]


def requeue_command(job_id: int) -> list[str]:
    """The call that requeues the job."""
    return ["scontrol", "requeue", str(job_id)]


def parse_limit(text: str) -> int | None:
    """Seconds of [DD-]HH:MM:SS or MM:SS; None for UNLIMITED. Raises SlurmError."""
    if text in ("UNLIMITED", "INFINITE", "infinite"):
        return None
    match = re.fullmatch(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]{1,2}):([0-9]{2})", text)
    if match is None:
        raise SlurmError(f"Slurm says '{printable(text, 40)}' where a time limit should be")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def partitions(runner: Runner = run) -> dict[str, int | None]:
    """Longest time limit of each partition in seconds, None for unlimited. Raises SlurmError."""
    columns = Columns.of(*PARTITIONS)
    text = runner(["sinfo", "-h", "-a", "-o", columns.short])
    return {name: parse_limit(limit) for name, limit in columns.read(text, "sinfo")}


def running(qos: Sequence[str], runner: Runner = run) -> list[RunningJob]:
    """Jobs of these QOS that hold cards now. Raises SlurmError."""
    longest, columns = partitions(runner), Columns.of(*JOBS)
    text = runner(["squeue", "-h", "-t", "RUNNING,SUSPENDED", "-o", columns.short, "-a"])
    found = (_job(record, longest) for record in columns.read(text, "squeue"))
    return [job for job in found if job is not None and job.qos in qos]


def _job(record: Sequence[str], longest: Mapping[str, int | None]) -> RunningJob | None:
    """One job; None for one that ended, which has no start."""
    number, start = whole(record[0]), whole(record[3])
    _, qos, limit, _, partition = record
    if number is None:
        raise SlurmError(f"squeue says '{printable(record[0], 40)}' where a job number should be")
    if start is None:
        return None
    return RunningJob(number, qos, start, parse_limit(limit), longest.get(partition))
