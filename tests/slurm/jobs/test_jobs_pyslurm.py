"""A real pyslurm and the sacct command tell the same of the same jobs."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from jobs_support import Live

from slurm_plugin.accounting.source import major

# Runs inside the sandbox: what the adapter and the command answer, as JSON.
PROGRAM = """
import json, sys
from slurm_plugin.accounting import source
from slurm_plugin.accounting.sacct import Window
since, *ids = sys.argv[1:]
found = source.choose()
both = {"pyslurm": found, "command": source.CommandLine()}
window = Window(int(since), int(since) + 3600)
print(json.dumps({
    "kind": type(found).__name__,
    **{name: [
        [job._replace(tres=dict(job.tres)) for job in jobs]
        for jobs in (one.between(window), one.jobs(ids))
    ] for name, one in both.items()},
}))
"""


def unfit(slurm: str) -> str:
    """Why this Python has no pyslurm for that Slurm; empty if it has."""
    try:
        found = version("pyslurm")
    except PackageNotFoundError:
        return "pyslurm is not installed here; PyPI has none for this Slurm"
    return "" if major(found) == major(slurm) else f"pyslurm {found} is not for Slurm {slurm}"


def submit_all(live: Live) -> list[int]:
    """Jobs in all states; none has a name that the command could not tell."""
    share = ("--gres=qgpu:5", "--qos=offline")
    ended = [
        live.submit("true", "--gres=qgpu:30", "--qos=online"),
        live.submit("false"),
        live.submit("true", "--gres=gpu:1", "-J", "a'b\"c\\d"),
        live.submit("true", *share, "-J", "a|b|c", "--comment=x|y"),
        live.submit("true", *share, "--array=0-2", output="%A.out"),
        live.submit("true", *share, ":", *share),
    ]
    cancelled = live.submit("sleep 600", *share)
    held = live.submit("true", "-H", *share, "--array=0,3,5-9,12%2")
    running = live.submit("exec sleep 600", *share)
    live.wait_state(running, "RUNNING")
    live.wait_state(cancelled, "RUNNING")
    live.cancel(cancelled)
    for job in (*ended, cancelled):
        live.wait_gone(job)
        live.wait_sacct(job)
    return [*ended, cancelled, held, running]


def by_name(jobs: list[Any]) -> dict[str, Any]:
    return {job[0]: job for job in jobs}


def test_both_tell_the_same_of_live_jobs(live: Live) -> None:
    if why := unfit(live.sandbox.plan.slurm):
        pytest.skip(why)
    since = int(time.time()) - 1
    jobs = submit_all(live)
    words = [sys.executable, "-c", PROGRAM, str(since), *map(str, jobs)]
    answer = json.loads(live.ask(*words))
    assert answer["kind"] == "Pyslurm"
    # what waits is not of a window
    assert [len(found) for found in answer["pyslurm"]] == [11, 12]
    for mine, theirs in zip(answer["pyslurm"], answer["command"], strict=True):
        ours, others = by_name(mine), by_name(theirs)
        assert len(ours) == len(mine)
        running = str(jobs[-1])
        for one in (ours[running], others[running]):
            one[4] = None  # the seconds go on between the two questions
        assert ours == others
