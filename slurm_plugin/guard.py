"""Finds jobs that bypassed qgpu's job_submit: they ask for qgpu and will never have a card.

job_submit.lua rewrites each qgpu:N into shards, whole cards, or a refusal. Slurm itself takes
qgpu:N for a plain count. So a job with qgpu and no card passed slurmctld without the script:
JobSubmitPlugins lacks lua, or the site's script does not call ours.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from gres.printable import printable
from slurm_plugin.records import Columns, Runner, SlurmError, run, whole

# Fields of squeue and their columns. Only these two kinds of requests can hold qgpu; the others are
# for GPUs.
_COLUMNS = {
    "JobID": 12,
    "State": 16,
    "Reason": 14,
    "Partition": 60,
    "tres-per-node": 160,
    "tres-per-task": 160,
}
_WAITS = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_RUNS = {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
_HELD = {"JobHeldUser", "JobHeldAdmin"}
_HUNDREDS = re.compile(r"\bqgpu[:=](?:[a-z]+:)?[1-9][0-9]*00(?:,|$)")
_NAME = re.compile(r"(?:gres[:/])?([a-z_]+)")


@dataclass(frozen=True)
class Bypassed:
    """One job that bypassed job_submit. `held`: nothing starts it."""

    job_id: int
    running: bool
    held: bool
    request: str

    @property
    def sentence(self) -> str:
        """The sentence for its user and the administrators."""
        return (
            f"qgpu: job {self.job_id} asks for {printable(self.request)}, but slurmctld took it"
            " without qgpu's job_submit, so it has no card. Administrators: see that"
            " JobSubmitPlugins has lua and that job_submit.lua calls qgpu. Then submit it again."
        )


@dataclass(frozen=True)
class Action:
    """The action on one job: hold it while it waits, end it once it runs."""

    job: Bypassed
    kind: Literal["hold", "cancel"]


def _names(request: str) -> list[str]:
    return [match[1] for entry in request.split(",") if (match := _NAME.match(entry))]


def _job(number: str, state: str, reason: str, requests: list[str]) -> Bypassed | None:
    job_id = whole(number)
    if job_id is None or not state:
        raise SlurmError(f"squeue says '{printable(number, 40)}' where a job number should be")
    given = [value for value in requests if value not in ("N/A", "(null)", "")]
    names = [name for value in given for name in _names(value)]
    # whole cards have a hundred of qgpu beside each
    carried = "shard" in names or ("gpu" in names and any(map(_HUNDREDS.search, given)))
    if "qgpu" not in names or carried or state not in _WAITS | _RUNS:
        return None
    if any(len(value.encode()) >= _COLUMNS["tres-per-node"] for value in given):
        return None  # truncated: shards may follow
    held = state in _WAITS and (reason in _HELD or state == "REQUEUE_HOLD")
    return Bypassed(job_id, state in _RUNS, held, ",".join(given))


def actions(jobs: Iterable[Bypassed]) -> list[Action]:
    """The actions; a job that is held already, by any user, stays as it is."""
    return [Action(job, "cancel" if job.running else "hold") for job in jobs if not job.held]


def commands(action: Action) -> list[list[str]]:
    """Slurm's commands for an action: the sentence for users and administrators first."""
    number, text = str(action.job.job_id), action.job.sentence
    note = ["scontrol", "update", f"JobId={number}", f"AdminComment={text}"]
    if action.kind == "hold":
        return [note, ["scontrol", "hold", number]]
    return [note, ["scontrol", "notify", number, text], ["scancel", number]]


def act(action: Action, runner: Runner = run) -> None:
    """Act. If the sentence cannot be delivered, the job is held or ended nevertheless.

    Raises SlurmError if slurmctld refuses.
    """
    *sentences, last = commands(action)
    for words in sentences:
        try:
            runner(words)
        except SlurmError:
            continue
    runner(last)


def bypassed(partitions: Collection[str] = (), runner: Runner = run) -> list[Bypassed]:
    """Jobs that bypassed job_submit, in these partitions (empty: all). Raises SlurmError."""
    columns = Columns.of(*(f"{name}:{width}" for name, width in _COLUMNS.items()))
    # -a: hidden partitions too, also for SlurmUser
    text = runner(["squeue", "-h", "-O", columns.long, "-a"])
    found = []
    for record in columns.read(text, "squeue"):
        number, state, reason, partition, *requests = (value.strip() for value in record)
        job = _job(number, state, reason, requests)
        if job is not None and (not partitions or set(partitions) & set(partition.split(","))):
            found.append(job)
    return found
