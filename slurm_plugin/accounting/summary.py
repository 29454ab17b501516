"""Writes a job's use as a short text into Slurm's database, if the field is free.

docs/specs/reporting/report.md has the format. jobstats owns AdminComment on many clusters, so
foreign text is never overwritten; the pure function `decide` sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.records import Columns, Runner, SlurmError, run, unique, whole

PREFIX = "QG1:"
MAX_TEXT = 255  # characters of our text, so that a row of accounting stays small
# sacctmgr of 22.05 writes all in small letters.
_OURS = re.compile(r"(?:QG1|qg1):[a-z_]+=[0-9.]+(?:;[a-z_]+=[0-9.]+)*")
# Field of qgpu.yaml -> (field of sacct, of sacctmgr).
FIELDS = {"admin_comment": ("AdminComment", "AdminComment"), "extra": ("Extra", "Extra")}


@dataclass(frozen=True)
class Totals:
    """Use of one job on all its cards."""

    busy_s: float
    suspended_s: float
    mem_peak: int
    denied: int


def text_of(totals: Totals) -> str:
    """`QG1:busy_s=12.3;suspended_s=0.0;mem_peak_mib=1024;denied=0`."""
    return (
        f"{PREFIX}busy_s={totals.busy_s:.1f};suspended_s={totals.suspended_s:.1f};"
        f"mem_peak_mib={totals.mem_peak >> 20};denied={totals.denied}"
    )


def decide(current: str, wanted: str) -> str | None:
    """The text to write; None for a field with other text than ours."""
    found = current.strip()
    if found and not _OURS.fullmatch(found):
        return None
    if found.lower() == wanted.lower() or not _OURS.fullmatch(wanted) or len(wanted) > MAX_TEXT:
        return None
    return wanted


def write_command(field: str, job_id: int, text: str) -> list[str]:
    """The sacctmgr call that writes the field."""
    return [
        "sacctmgr",
        "-i",
        "modify",
        "job",
        "where",
        f"jobid={job_id}",
        "set",
        f"{FIELDS[field][1]}={text}",
    ]


def current(field: str, job_ids: Sequence[int], runner: Runner = run) -> dict[int, str]:
    """The field of each ended job.

    Left out are running jobs, those unknown to sacct, and those that it names twice.
    """
    columns = Columns.of("JobIDRaw", "End", FIELDS[field][0])
    ids = ",".join(map(str, job_ids))
    found = unique(columns.read(runner(["sacct", "-X", *columns.sacct, "-j", ids]), "sacct"))
    return {job: text for job, (_, end, text) in found.items() if whole(end) is not None}


def write(
    field: str, totals: Mapping[int, Totals], runner: Runner = run, limit: int = 200
) -> tuple[list[int], list[int]]:
    """Write at most `limit` jobs; the jobs written, and the jobs whose field holds other text.

    Raises SlurmError if Slurm refuses.
    """
    written: list[int] = []
    foreign: list[int] = []
    ids = sorted(totals)
    for start in range(0, len(ids), 100):
        part = ids[start : start + 100]
        for job, text in current(field, part, runner).items():
            if job not in totals or len(written) >= limit:
                continue
            wanted = text_of(totals[job])
            new = decide(text, wanted)
            if new is not None:
                runner(write_command(field, job, new))
                written.append(job)
            elif text.strip().lower() != wanted.lower():
                foreign.append(job)
    return written, foreign


__all__ = ["FIELDS", "SlurmError", "Totals", "current", "decide", "text_of", "write"]
