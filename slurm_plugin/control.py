"""Reads running jobs and partitions from slurmctld, and asks it for more time or a requeue.

Commands squeue and scontrol, whose texts are the same in 22.05, 24.11 and 26.05, and pure parsers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gres.grant.extension import RunningJob
from slurm_plugin.accounting.sacct import Runner, SacctError, run

FORMAT = "%A|%q|%l|%S|%P"


def jobs_command() -> list[str]:
    """The call for jobs that hold cards now; run it with SLURM_TIME_FORMAT=%s."""
    return ["squeue", "-h", "-t", "RUNNING,SUSPENDED", "-o", FORMAT, "-a"]


def partitions_command() -> list[str]:
    """The call for all partitions, one per line."""
    return ["scontrol", "-o", "show", "partition"]


def extend_command(job_id: int, limit_s: int) -> list[str]:
    """The call that sets the time limit, in whole minutes."""
    return ["scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit_s // 60}"]


def requeue_command(job_id: int) -> list[str]:
    """The call that requeues the job."""
    return ["scontrol", "requeue", str(job_id)]


def parse_limit(text: str) -> int | None:
    """Seconds of [DD-]HH:MM:SS or MM:SS; None for UNLIMITED. Raises SacctError."""
    if text in ("UNLIMITED", "INFINITE"):
        return None
    match = re.fullmatch(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]{1,2}):([0-9]{2})", text)
    if match is None:
        raise SacctError(f"Slurm says '{text[:40]}' where a time limit should be")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_partitions(text: str) -> dict[str, int | None]:
    """Longest time limit of each partition in seconds, None for unlimited."""
    found = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" in words:
            found[words["PartitionName"]] = parse_limit(words.get("MaxTime", "UNLIMITED"))
    return found


def parse_jobs(text: str, partitions: Mapping[str, int | None]) -> list[RunningJob]:
    """Parse the output of `jobs_command`. Raises SacctError for other text."""
    jobs = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != 5 or not values[0].isdigit():
            raise SacctError(
                f"squeue did not answer with the fields it was asked for, but with '{line[:80]}'"
            )
        number, qos, limit, start, partition = values
        if start.isdigit():  # an ended job has none
            most = partitions.get(partition)
            jobs.append(RunningJob(int(number), qos, int(start), parse_limit(limit), most))
    return jobs


def running(qos: Sequence[str], runner: Runner = run) -> list[RunningJob]:
    """Running jobs of these QOS. Raises SacctError."""
    partitions = parse_partitions(runner(partitions_command()))
    return [job for job in parse_jobs(runner(jobs_command()), partitions) if job.qos in qos]
