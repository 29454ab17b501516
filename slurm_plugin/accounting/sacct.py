"""Reads Slurm's accounting by `sacct`.

The fields are the same in 22.05, 24.11 and 26.05. The fields that are counted hold no text of a
user; names come by a call of their own, for jobs that are asked for by number.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gres.config.hostlist import HostlistError, expand
from gres.printable import printable
from slurm_plugin import records
from slurm_plugin.records import Columns, Runner, SlurmError, unique, whole

FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "State",
    "Elapsed",
    "NodeList",
    "QOS",
    "Partition",
    "AllocTRES",
    "Account",
    "Start",
    "End",
)
NAMES = ("JobIDRaw", "JobName")


class SacctJob(NamedTuple):
    """One job (or array task) of the accounting.

    `elapsed_s` is None until Slurm has it. `name` is the user's, empty where it is not known.
    """

    job_id: str
    raw_id: int
    user: str
    state: str
    elapsed_s: int | None
    nodes: tuple[str, ...]
    qos: str
    partition: str
    tres: Mapping[str, str]
    account: str = ""
    start: int | None = None
    end: int | None = None
    name: str = ""


def is_job_id(text: str) -> bool:
    """Whether sacct takes the text as a job: 12, an array task 12_3 or a part of a heterogeneous
    job 12+1.
    """
    return re.fullmatch(r"[0-9]{1,10}(?:[_+][0-9]{1,7})?", text) is not None


def _by_number(columns: Columns, job_ids: Sequence[str]) -> list[str]:
    """The sacct call for these jobs: one record per allocation, no steps."""
    return ["sacct", "-X", *columns.sacct, "-j", ",".join(job_ids)]


class Window(NamedTuple):
    """Jobs that ran at any time from `since` to `until` (seconds of CLOCK_REALTIME); empty means
    all.
    """

    since: int
    until: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()


def _in_window(columns: Columns, window: Window) -> list[str]:
    """The sacct call for a window; -T makes Slurm cut times at its edges, as sreport does."""
    times = ["-S", _local(window.since), "-E", _local(window.until)]
    words = ["sacct", "-X", *columns.sacct, "-a", "-T", *times]
    for flag, values in (("-u", window.users), ("-A", window.accounts), ("-q", window.qos)):
        words += [flag, ",".join(values)] if values else []
    return words


def _local(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def jobs_between(window: Window, runner: Runner | None = None) -> list[SacctJob]:
    """The jobs of a window without names, in sacct's order. Raises SlurmError."""
    columns = Columns.of(*FIELDS)
    return _read(columns, (runner or records.run)(_in_window(columns, window)))


def jobs(job_ids: Sequence[str], runner: Runner | None = None) -> list[SacctJob]:
    """The jobs of these that sacct has, in its order. Raises SlurmError."""
    if not job_ids:
        return []
    runner = runner or records.run
    columns = Columns.of(*FIELDS)
    found = _read(columns, runner(_by_number(columns, job_ids)))
    columns = Columns.of(*NAMES)
    answer = runner(_by_number(columns, job_ids)) if found else ""
    named = unique(columns.read(answer, "sacct"))
    return [
        job._replace(name=named[job.raw_id][1]) if job.raw_id in named else job for job in found
    ]


def _read(columns: Columns, text: str) -> list[SacctJob]:
    return [_job(record) for record in columns.read(text, "sacct")]


def _job(record: Sequence[str]) -> SacctJob:
    raw, job_id, user, state, elapsed, nodes, qos, partition, tres, account, start, end = record
    number = whole(raw)
    if number is None:
        raise SlurmError(f"sacct says '{printable(raw, 40)}' where a job number should be")
    return SacctJob(
        job_id,
        number,
        user,
        state,
        parse_elapsed(elapsed),
        _nodes(nodes),
        qos,
        partition,
        parse_tres(tres),
        account,
        whole(start),
        whole(end),
    )


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
