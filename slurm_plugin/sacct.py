"""What Slurm's accounting says about jobs: `sacct -P` and a pure parser of its text.

The same fields exist in 22.05, 24.11 and 26.05. The name comes last, because it is the one field that may
hold the separator.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gres.hostlist import HostlistError, expand

FIELDS = (
    "JobID",
    "JobIDRaw",
    "User",
    "State",
    "Elapsed",
    "NodeList",
    "QOS",
    "Partition",
    "AllocTRES",
    "JobName",
)
TIMEOUT_S = 60
Runner = Callable[[Sequence[str]], str]


class SacctError(RuntimeError):
    """sacct could not be run or understood; the text is a sentence."""


@dataclass(frozen=True)
class SacctJob:
    """One job (or array task) of the accounting. `elapsed_s` is None while Slurm does not tell it."""

    job_id: str
    raw_id: int
    user: str
    state: str
    elapsed_s: int | None
    nodes: tuple[str, ...]
    qos: str
    partition: str
    tres: dict[str, str]
    name: str


def is_job_id(text: str) -> bool:
    """Whether sacct takes the text as a job: 12, an array task 12_3 or a part of a heterogeneous job 12+1."""
    return re.fullmatch(r"[0-9]{1,10}(?:[_+][0-9]{1,7})?", text) is not None


def command(job_ids: Sequence[str], sacct: str = "sacct") -> list[str]:
    """The sacct call for these jobs: one line per allocation, no steps."""
    return [sacct, "-P", "-X", "-j", ",".join(job_ids), f"--format={','.join(FIELDS)}"]


def run(arguments: Sequence[str]) -> str:
    """Run sacct. Raises SacctError with sacct's own words."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise SacctError(f"{arguments[0]} was not found: is Slurm's client package installed here?") from None
    except subprocess.TimeoutExpired:
        raise SacctError(
            f"{arguments[0]} did not answer within {TIMEOUT_S} s: is slurmdbd running?"
        ) from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SacctError(f"{arguments[0]} failed: {words}")
    return done.stdout


def jobs(job_ids: Sequence[str], runner: Runner = run) -> list[SacctJob]:
    """The jobs that sacct knows of these, in its order. Raises SacctError."""
    return parse(runner(command(job_ids))) if job_ids else []


def parse(text: str) -> list[SacctJob]:
    """Jobs of the output of `command`. Raises SacctError when it is something else."""
    lines = text.splitlines()
    if not lines or lines[0].split("|") != list(FIELDS):
        found = lines[0][:80] if lines else "nothing"
        raise SacctError(f"sacct did not answer with the fields it was asked for, but with '{found}'")
    return [_job(line) for line in lines[1:] if line]


def _job(line: str) -> SacctJob:
    values = line.split("|", len(FIELDS) - 1)
    if len(values) != len(FIELDS):
        raise SacctError(f"sacct's line '{line[:80]}' has {len(values)} fields instead of {len(FIELDS)}")
    row = dict(zip(FIELDS, values, strict=True))
    if not row["JobIDRaw"].isdigit():
        raise SacctError(f"sacct's line '{line[:80]}' has no job number")
    return SacctJob(
        job_id=row["JobID"],
        raw_id=int(row["JobIDRaw"]),
        user=row["User"],
        state=row["State"],
        elapsed_s=parse_elapsed(row["Elapsed"]),
        nodes=_nodes(row["NodeList"]),
        qos=row["QOS"],
        partition=row["Partition"],
        tres=parse_tres(row["AllocTRES"]),
        name=row["JobName"],
    )


def parse_elapsed(text: str) -> int | None:
    """Seconds of [DD-]HH:MM:SS, None for anything else (sacct writes INVALID or nothing)."""
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]{2,}):([0-9]{2}):([0-9]{2})", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_tres(text: str) -> dict[str, str]:
    """TRES by name: `cpu=1,gres/qgpu:online=30` -> {"cpu": "1", "gres/qgpu:online": "30"}."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {name: value for name, _, value in pairs}


def _nodes(text: str) -> tuple[str, ...]:
    if text in ("", "None assigned"):
        return ()
    try:
        return tuple(expand(text))
    except HostlistError:
        return (text,)
