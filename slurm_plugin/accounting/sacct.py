"""Reads Slurm's accounting: `sacct -P` and a pure parser of its text.

The fields are the same in 22.05, 24.11 and 26.05. The name comes last, as only it may hold the
separator.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gres.config.hostlist import HostlistError, expand

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
# further fields, which a recording may lack
MORE = ("Account", "Start", "End")
ASKED = (*FIELDS[:-1], *MORE, FIELDS[-1])
TIMEOUT_S = 60  # seconds for one call: a large window takes slurmdbd a while
Runner = Callable[[Sequence[str]], str]


class SacctError(RuntimeError):
    """sacct could not be run or understood; the text is a sentence."""


class SacctJob(NamedTuple):
    """One job (or array task) of the accounting. `elapsed_s` is None until Slurm has it."""

    job_id: str
    raw_id: int
    user: str
    state: str
    elapsed_s: int | None
    nodes: tuple[str, ...]
    qos: str
    partition: str
    tres: Mapping[str, str]
    name: str
    account: str = ""
    start: int | None = None
    end: int | None = None


def is_job_id(text: str) -> bool:
    """Whether sacct takes the text as a job: 12, an array task 12_3 or a part of a heterogeneous
    job 12+1.
    """
    return re.fullmatch(r"[0-9]{1,10}(?:[_+][0-9]{1,7})?", text) is not None


def command(job_ids: Sequence[str], sacct: str = "sacct") -> list[str]:
    """The sacct call for these jobs: one line per allocation, no steps."""
    return [sacct, "-P", "-X", "-j", ",".join(job_ids), f"--format={','.join(ASKED)}"]


class Window(NamedTuple):
    """Jobs that ran at any time from `since` to `until` (seconds of CLOCK_REALTIME); empty means
    all.
    """

    since: int
    until: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()


def window_command(window: Window, sacct: str = "sacct") -> list[str]:
    """The sacct call for a window; -T makes Slurm cut times at its edges, as sreport does."""
    words = [sacct, "-P", "-X", "-a", "-T", "-S", _local(window.since), "-E", _local(window.until)]
    for flag, values in (("-u", window.users), ("-A", window.accounts), ("-q", window.qos)):
        words += [flag, ",".join(values)] if values else []
    return [*words, f"--format={','.join(ASKED)}"]


def _local(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def jobs_between(window: Window, runner: Runner | None = None) -> list[SacctJob]:
    """The jobs of a window, in sacct's order. Raises SacctError."""
    return parse((runner or run)(window_command(window)))


def run(arguments: Sequence[str]) -> str:
    """Run sacct. Raises SacctError with sacct's message."""
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )
    except FileNotFoundError:
        raise SacctError(
            f"{arguments[0]} was not found: is Slurm's client package installed here?"
        ) from None
    except subprocess.TimeoutExpired:
        raise SacctError(
            f"{arguments[0]} did not answer within {TIMEOUT_S} s: is slurmdbd running?"
        ) from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SacctError(f"{arguments[0]} failed: {words}")
    return done.stdout


def jobs(job_ids: Sequence[str], runner: Runner = run) -> list[SacctJob]:
    """The jobs of these that sacct has, in its order. Raises SacctError."""
    return parse(runner(command(job_ids))) if job_ids else []


def parse(text: str) -> list[SacctJob]:
    """Parse the output of `command`. Raises SacctError for other text."""
    lines = text.splitlines()
    header = lines[0].split("|") if lines else []
    if header not in (list(ASKED), list(FIELDS)):
        found = lines[0][:80] if lines else "nothing"
        raise SacctError(
            f"sacct did not answer with the fields it was asked for, but with '{found}'"
        )
    return [_job(line, len(header)) for line in lines[1:] if line]


def _job(line: str, count: int) -> SacctJob:
    values = line.split("|", count - 1)
    if len(values) != count:
        raise SacctError(f"sacct's line '{line[:80]}' has {len(values)} fields instead of {count}")
    if len(values) == len(FIELDS):
        values[-1:] = ["", "", "", values[-1]]  # a recording without MORE
    job_id, raw, user, state, elapsed, nodes, qos, partition, tres, account, start, end, name = (
        values
    )
    if not raw.isdigit():
        raise SacctError(f"sacct's line '{line[:80]}' has no job number")
    return SacctJob(
        job_id,
        int(raw),
        user,
        state,
        parse_elapsed(elapsed),
        _nodes(nodes),
        qos,
        partition,
        parse_tres(tres),
        name,
        account,
        _seconds(start),
        _seconds(end),
    )


def _seconds(text: str) -> int | None:
    """Seconds of CLOCK_REALTIME; sacct writes Unknown or None for what has not happened."""
    return int(text) if text.isdigit() else None


@functools.lru_cache(maxsize=4096)
def parse_elapsed(text: str) -> int | None:
    """Seconds of [DD-]HH:MM:SS, None for anything else (sacct writes INVALID or nothing)."""
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]{2,}):([0-9]{2}):([0-9]{2})", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@functools.lru_cache(maxsize=4096)
def parse_tres(text: str) -> Mapping[str, str]:
    """TRES by name: `cpu=1,gres/qgpu:online=30` -> {"cpu": "1", "gres/qgpu:online": "30"}."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return MappingProxyType({name: value for name, _, value in pairs})


@functools.lru_cache(maxsize=4096)
def _nodes(text: str) -> tuple[str, ...]:
    if text in ("", "None assigned"):
        return ()
    try:
        return tuple(expand(text))
    except HostlistError:
        return (text,)
