"""What no submission of the job can change: limits and nodes by which it would wait for ever."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cli.site.slurm_answer import UNAVAILABLE, lines_of, program
from gres.config.sentences import shown

_INVALID_GRES = "Invalid generic resource (gres) specification"


def out_of_service() -> str:
    """Nodes that take no jobs, with Slurm's reason for the first; empty if all do."""
    rows = lines_of("sinfo", "-hN", "-t", "drain,down,fail", "-o", "%N %E")
    names = sorted({row.split()[0] for row in rows})
    reason = rows[0].partition(" ")[2] if rows else ""
    return f"{','.join(names)} ({reason})" if names else ""


def _unknown_gres(gres: str) -> str:
    """The names in --gres that this Slurm does not have, with those that it has."""
    text = program("scontrol", "show", "config") or ""
    types = (re.search(r"^GresTypes\s*=\s*(\S+)", text, re.MULTILINE) or ["", ""])[1].split(",")
    names = [entry.partition(":")[0] for entry in gres.split(",") if entry]
    wrong = [name for name in names if name not in types]
    if not wrong or types == [""]:
        return ""
    near = difflib.get_close_matches(wrong[0], types, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}:COUNT?" if near else "write NAME:COUNT"
    return f": '{shown(wrong[0])}' is none of {', '.join(types)}; {hint}"


def explain(refused: str, gres: str) -> str:
    """A refusal in words that say what to look at."""
    if refused == _INVALID_GRES:
        return refused + _unknown_gres(gres)
    if UNAVAILABLE not in refused:
        return refused
    down = out_of_service()
    less = f"; out of service are {down}" if down else ""
    return (
        f"{UNAVAILABLE}: no set of nodes in service has these nodes, CPUs, memory, features and"
        f" cards together{less}. Ask for less of --gres, -N, -c, -n or --mem"
        " (sinfo -Nel lists the nodes)"
    )


def minutes(text: str) -> float:
    """Minutes of a time of Slurm: 30, 30:00, 1:00:00, 1-12, 1-12:30; infinite for a word."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]):
        return float("inf")
    numbers = [int(part) for part in parts]
    if dash:
        hours, more = numbers[0], [*numbers[1:], 0, 0]
        return int(days) * 1440 + hours * 60 + more[0] + more[1] / 60
    if len(numbers) == 3:
        return numbers[0] * 60 + numbers[1] + numbers[2] / 60
    return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)


def above_partition(time_limit: str | None, partition: str | None, qos: str | None) -> str:
    """Why the job's time limit keeps it waiting for ever; empty if it does not, as with a QOS that
    has a limit of its own (the flag PartitionTimeLimit).
    """
    if not time_limit or not partition:
        return ""
    text = program("scontrol", "-o", "show", "partition", partition) or ""
    most = re.search(r" MaxTime=(\S+)", text)
    if not most or minutes(time_limit) <= minutes(most[1]):
        return ""
    flags = ("sacctmgr", "-nP", "show", "qos", f"name={qos}", "format=flags")
    if qos and "PartitionTimeLimit" in (program(*flags) or ""):
        return ""
    return (
        f"sbatch takes --time={time_limit} and the job waits for ever (PartitionTimeLimit):"
        f" partition {partition} allows {most[1]}; write --time={most[1]}"
    )


@dataclass(frozen=True)
class Limit:
    """A limit of the job's QOS that it meets: for ever, or until others of it end."""

    sentence: str
    ever: bool


def _tres(text: str) -> dict[str, tuple[int | None, int]]:
    """`cpu=N(0),gres/qgpu=80(30)`: limit (None without one) and what is in use."""
    found = re.findall(r"([\w/:.-]+)=(N|\d+)(?:\((\d+)\))?", text)
    return {
        name: (None if most == "N" else int(most), int(used or 0)) for name, most, used in found
    }


def _field(name: str, text: str) -> dict[str, tuple[int | None, int]]:
    match = re.search(rf"\b{name}=(\S*)", text)
    return _tres(match[1]) if match else {}


def read_limit(text: str, wants: Mapping[str, int], uid: int) -> Limit | None:
    """The first limit in `scontrol show assoc_mgr` of a QOS that a job with these TRES meets."""
    name = (re.search(r"QOS=([^\s(]+)", text) or ["", ""])[1]
    for tres, (most, _) in _field("MaxTRESPJ", text).items():
        if most is not None and wants.get(tres, 0) > most:
            said = f"QOS {name} allows {tres}={most} per job, this one asks for {wants[tres]}"
            return Limit(f"{said}: sbatch takes it and it waits for ever", ever=True)
    for tres, (least, _) in _field("MinTRESPJ", text).items():
        if least is not None and wants.get(tres, 0) < least:
            said = f"QOS {name} wants {tres}={least} per job at least, this one asks for"
            return Limit(f"{said} {wants.get(tres, 0)}: it waits for ever", ever=True)
    users = text.partition("User Limits")[2]
    mine = re.search(rf"^ *(?:\S+\({uid}\)|{uid})$((?:\n +Max.*)*)", users, re.MULTILINE)
    for whose, found in (
        ("you", _field("MaxTRESPU", mine[1] if mine else "")),
        ("all together", _field("GrpTRES", text)),
    ):
        for tres, (most, used) in found.items():
            want = wants.get(tres, 0)
            if most is not None and want and want + used > most:
                said = f"QOS {name} gives {whose} {tres}={most}, {used} in use, {want} asked for"
                ever = want > most
                return Limit(f"{said}: it waits {'for ever' if ever else 'for those'}", ever)
    jobs = re.search(r"MaxJobsPU=(\d+)\((\d+)\)", mine[1] if mine else "")
    if jobs and int(jobs[2]) >= int(jobs[1]):
        return Limit(f"QOS {name} lets you run {jobs[1]} job(s) at a time: it waits for one", False)
    return None


def limit_of(qos: str | None, wants: Mapping[str, int]) -> Limit | None:
    """The limit of the job's QOS that it meets, if slurmctld shows it to this user."""
    if not qos or "," in qos:
        return None
    text = program("scontrol", "show", "assoc_mgr", f"qos={qos.lower()}", "flags=qos")
    return read_limit(text, wants, os.getuid()) if text else None
