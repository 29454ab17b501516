"""Writes a job's use as a short text into Slurm's database, if the field is free.

docs/specs/reporting/report.md has the format. jobstats owns AdminComment on many clusters, so
foreign text is never overwritten; the pure function `decide` sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.accounting.sacct import Runner, SacctError, run

PREFIX = "QG1:"
MAX_TEXT = 255  # characters of our text, so that a row of accounting stays small
_OURS = re.compile(r"QG1:[a-z_]+=[0-9.]+(?:;[a-z_]+=[0-9.]+)*")
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
    if found == wanted or not _OURS.fullmatch(wanted) or len(wanted) > MAX_TEXT:
        return None
    return wanted


def read_command(field: str, job_ids: Sequence[int]) -> list[str]:
    """The sacct call for the field's present text; the field comes last,
    since users may write it.
    """
    ids = ",".join(str(job) for job in job_ids)
    return ["sacct", "-P", "-X", "-n", "-j", ids, f"--format=JobIDRaw,End,{FIELDS[field][0]}"]


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
    """The field of each ended job; running jobs and those unknown to sacct are left out."""
    found: dict[int, str] = {}
    for line in runner(read_command(field, job_ids)).splitlines():
        number, _, rest = line.partition("|")
        end, _, text = rest.partition("|")
        if number.isdigit() and end.isdigit():
            found[int(number)] = text
    return found


def write(
    field: str, totals: Mapping[int, Totals], runner: Runner = run, limit: int = 200
) -> tuple[list[int], list[int]]:
    """Write at most `limit` jobs; the jobs written, and the jobs whose field holds other text.

    Raises SacctError if Slurm refuses.
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
            elif text.strip() != wanted:
                foreign.append(job)
    return written, foreign


__all__ = ["FIELDS", "SacctError", "Totals", "current", "decide", "text_of", "write"]
