"""Reads Slurm's accounting by `sacct`.

The fields are the same in 22.05, 24.11 and 26.05. The fields that are counted hold no text of a
user; names come by a call of their own, for jobs that are listed.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
DETAILS = ("JobIDRaw", "TotalCPU", "TRESUsageInTot", "ReqTRES", "AllocTRES")
SHARE = ("gres/qgpu", "gres/vram")
PER_CALL = 1000  # jobs of one call: the kernel takes 128 KiB in one word, slurmdbd a long query


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


class Detail(NamedTuple):
    """What a job's steps used of the host, and the TRES that it asked for.

    None: not measured. `mem_peak` is of the step that held most, over all its tasks. `booked`: TRES
    of the job, `parts`: those of SHARE that a step named for itself.
    """

    cpu_s: float | None = None
    mem_peak: int | None = None
    asked: Mapping[str, str] = MappingProxyType({})
    booked: Mapping[str, str] = MappingProxyType({})
    parts: frozenset[str] = frozenset()


class Window(NamedTuple):
    """Jobs that ran at any time from `since` to `until` (seconds of CLOCK_REALTIME); empty means
    all. `listed`: with their names, and with their whole times instead of the part inside.
    """

    since: int
    until: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    listed: bool = False


Which = Sequence[str] | Window  # jobs by number, or those of a window


def _calls(which: Which) -> Iterator[list[str]]:
    """What chooses the jobs in each call; -T makes Slurm cut times at a window's edges, as sreport
    does.
    """
    if not isinstance(which, Window):
        for start in range(0, len(which), PER_CALL):
            yield ["-j", ",".join(which[start : start + PER_CALL])]
        return
    times = ["-S", _local(which.since), "-E", _local(which.until)]
    words = ["-a", *([] if which.listed else ["-T"]), *times]
    for flag, values in (("-u", which.users), ("-A", which.accounts), ("-q", which.qos)):
        words += [flag, ",".join(values)] if values else []
    yield words


def _read(
    names: Sequence[str], which: Which, runner: Runner | None, *options: str
) -> Iterator[list[list[str]]]:
    """The records of each call. Without -X also of steps.

    Two calls may name the same job, since an array's number stands for all its tasks.
    """
    for words in _calls(which):
        columns = Columns.of(*names)
        answer = (runner or records.run)(["sacct", *options, *columns.sacct, *words])
        yield columns.read(answer, "sacct")


def _local(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def jobs_between(window: Window, runner: Runner | None = None) -> list[SacctJob]:
    """The jobs of a window, in sacct's order. Raises SlurmError."""
    found = [_job(record) for part in _read(FIELDS, window, runner, "-X") for record in part]
    return _named(found, window, runner) if window.listed else found


def jobs(job_ids: Sequence[str], runner: Runner | None = None) -> list[SacctJob]:
    """The jobs of these that sacct has, in its order. Raises SlurmError.

    Tasks of an array that wait have one record together, which sacct gives for the array alone.
    """
    found = _by_number(job_ids, runner)
    there = {job.job_id for job in found.values()}
    heads = {text.partition("_")[0] for text in job_ids if "_" in text and text not in there}
    for job in _by_number(sorted(heads), runner).values():
        if "_[" in job.job_id:
            found[job.raw_id] = job
    return _named(list(found.values()), list(map(str, found)), runner)


def _by_number(job_ids: Sequence[str], runner: Runner | None) -> dict[int, SacctJob]:
    parts = _read(FIELDS, job_ids, runner, "-X")
    return {job.raw_id: job for part in parts for job in map(_job, part)}


def _named(found: list[SacctJob], which: Which, runner: Runner | None) -> list[SacctJob]:
    """The jobs with their names."""
    named: dict[int, Sequence[str]] = {}
    for part in _read(NAMES, which if found else (), runner, "-X"):
        named |= unique(part)
    return [
        job._replace(name=named[job.raw_id][1]) if job.raw_id in named else job for job in found
    ]


def details(which: Which, runner: Runner | None = None) -> dict[int, Detail]:
    """Details of each job that sacct has, from its steps. Raises SlurmError."""
    found: dict[int, Detail] = {}
    for part in _read(DETAILS, which, runner):
        found |= _details(part)
    return found


def _details(part: Iterable[Sequence[str]]) -> dict[int, Detail]:
    """A step that Slurm did not sample (JobAcctGatherType none) or that still runs adds nothing."""
    found: dict[int, Detail] = {}
    for step, cpu, usage, asked, booked in part:
        job = whole(step.partition(".")[0].partition("+")[0])
        if job is None:
            continue
        known = found.get(job, Detail())
        if "." not in step:
            found[job] = known._replace(asked=parse_tres(asked), booked=parse_tres(booked))
            continue
        if step.rpartition(".")[2].isdigit():  # no batch or extern, which names nothing
            own = _own_parts(parse_tres(booked), known.booked)
            known = found[job] = known._replace(parts=known.parts | own)
        if usage:
            # No process takes no time and no memory: 0 means that nothing was seen of it.
            seconds = (known.cpu_s or 0) + (parse_cpu(cpu) or 0)
            held = max(known.mem_peak or 0, parse_memory(parse_tres(usage).get("mem", "")) or 0)
            found[job] = known._replace(cpu_s=seconds or None, mem_peak=held or None)
    return found


def _own_parts(step: Mapping[str, str], job: Mapping[str, str]) -> frozenset[str]:
    """Those of SHARE that a step named for itself: one that names nothing has on its nodes all
    that the job has there.
    """

    def on_node(tres: Mapping[str, str], name: str) -> float:
        return (parse_memory(tres.get(name, "")) or 0) / (whole(tres.get("node", "")) or 1)

    if SHARE[0] not in step or all(on_node(step, name) == on_node(job, name) for name in SHARE):
        return frozenset()
    return frozenset(name for name in SHARE if name in step)


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


def parse_cpu(text: str) -> float | None:
    """Seconds of [DD-[HH:]]MM:SS[.mmm], as sacct writes times of the processor; else None."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+(?:\.[0-9]+)?)", text)
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def parse_memory(text: str) -> int | None:
    """Bytes of 317848K, 1.5G or 4096, as sacct writes memory; else None."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)", text)
    return None if match is None else int(float(match[1]) * 1024 ** "_KMGTP".index(match[2] or "_"))


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
