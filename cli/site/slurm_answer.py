"""What this cluster's Slurm says of an sbatch command: `sbatch --test-only`, scontrol and squeue.

slurmctld runs job_submit.lua for --test-only as for a submission, so qgpu's own sentences come from
there. With QGPU_PLAN=1 it also says what it would book (slurm_plugin/lua/qgpu_plan.lua).
--test-only looks at no limit of the QOS and at no time limit of the partition, so these are read
from scontrol.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cli.setup.host import find_slurm_conf
from gres.config.hostlist import expand
from gres.config.schema import JobClass
from gres.config.sentences import shown

TIMEOUT_S = 60.0  # as long as a client of Slurm waits for a busy slurmctld, and some
NOW_S = 5  # seconds by which the clocks of two hosts of a cluster may differ
AGAIN_S = 2.0  # between two questions: the start is in whole seconds, so that one of these is seen
# Reasons of squeue with which a job is in nobody's way, because it may not start yet.
NOT_ELIGIBLE = frozenset(
    ["BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin"]
)
_START = re.compile(
    r"Job \d+ to start at (?P<at>\d+)(?: a)? using (?P<cpus>\d+) processors on"
    r" (?:nodes )?(?P<nodes>\S+)(?: in partition (?P<partition>\S+))?"
)
_TOLD = re.compile(r"(?P<part>\d+: )?qgpu: plan (?P<name>\w+)=(?P<value>.*)")
_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?(?:Batch job .*?: )?")
_INVALID_GRES = "Invalid generic resource (gres) specification"
_UNAVAILABLE = "Requested node configuration is not available"


@dataclass(frozen=True)
class Start:
    """When and where Slurm would start the job: seconds since 1970, nodes, CPUs.

    `free`: whether these nodes have now what it asks for; None where that is not known.
    """

    at: int
    nodes: tuple[str, ...]
    cpus: int
    partition: str | None
    free: bool | None = None


@dataclass(frozen=True)
class Answer:
    """sbatch's answer: `refused` is the sentence, empty if it takes the job. `told`: what qgpu's
    job_submit would book, one for each part of a heterogeneous job. `words` were asked at `began`
    (time.monotonic()).
    """

    refused: str = ""
    start: Start | None = None
    told: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    began: float = 0.0

    def free(self) -> bool:
        """Whether sbatch takes it and nodes have now what it asks for."""
        return not self.refused and self.start is not None and self.start.free is True


class NoAnswerError(RuntimeError):
    """sbatch neither takes the job nor refuses it."""


def program(name: str, *words: str, environ: Mapping[str, str] | None = None) -> str | None:
    """What a program of Slurm prints; None if it fails."""
    env = {**(environ or os.environ), "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            [name, *words], env=env, capture_output=True, timeout=TIMEOUT_S, check=False,
            stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def lines_of(name: str, *words: str) -> list[str]:
    """The lines of what a program of Slurm prints, but for empty ones; none if it fails."""
    return [line for line in (program(name, *words) or "").split("\n") if line.strip()]


def reachable() -> bool:
    """Whether this host has a Slurm to ask."""
    return bool(shutil.which("sbatch") and find_slurm_conf("/", os.environ))


def _sentence(lines: Sequence[str]) -> str:
    """The one sentence of a refusal: qgpu's own, else all that Slurm says."""
    own = [text for line in lines if (text := _own_note(line))]
    if own:
        return own[-1]
    said = dict.fromkeys(_PREFIX.sub("", line).strip() for line in lines if "qgpu: " not in line)
    return "; ".join(text for text in said if text) or "sbatch refuses it and does not say why"


def read_answer(status: int, said: str) -> Answer:
    """The answer in what `sbatch --test-only` printed."""
    lines = [line for line in said.split("\n") if line.strip()]
    told: dict[str, dict[str, str]] = {}
    for line in lines:
        if match := _TOLD.search(line):
            told.setdefault(match["part"] or "", {})[match["name"]] = match["value"]
    found = tuple(told.values())
    if status != 0:
        return Answer(refused=_sentence(lines), told=found)
    start = next(filter(None, map(_START.search, lines)), None)
    notes = [line.strip() for line in lines if "Preempts:" in line]
    notes += [text for line in lines if (text := _own_note(line))]
    if start is None:
        return Answer(told=found, notes=tuple(notes))
    nodes = tuple(expand(start["nodes"]))
    free = True if int(start["at"]) <= time.time() + NOW_S else None
    return Answer(
        start=Start(int(start["at"]), nodes, int(start["cpus"]), start["partition"], free),
        told=found,
        notes=tuple(notes),
    )


def _own_note(line: str) -> str:
    text = line.partition("qgpu: ")[2]
    return "" if text.startswith("plan ") else text


def ask(words: Sequence[str]) -> Answer | None:
    """sbatch's answer to a command; None where no slurmctld answers. Nothing is submitted. Raises
    NoAnswerError.
    """
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s", "QGPU_PLAN": "1"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *words], env=env, capture_output=True, timeout=TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"sbatch --test-only did not end within {TIMEOUT_S:g} s: slurmctld is busy, SLURM_CONF"
            " is wrong, or a file that an option names is a pipe; try the same words with sbatch"
        ) from None
    if done.returncode != 0 and "UP" not in (program("scontrol", "ping") or ""):
        return None
    answer = read_answer(done.returncode, done.stderr + done.stdout)
    return replace(answer, words=tuple(words), began=began)


def asked_again(first: Answer) -> Answer:
    """`first`, or where its start is late a second answer, which says whether the nodes are free.

    Slurm adds to the start a time for each job that waits in the partition, also for one that only
    waits for its own begin, and says nothing of it (_delayed_job_start_time in slurmctld).
    So a late start may be that of free nodes. It then moves with the clock, because it is now and
    that time; the end of a running job stays where it is.
    """
    if first.refused or first.start is None or first.start.free:
        return first
    time.sleep(max(0.0, first.began + AGAIN_S - time.monotonic()))
    again = ask(first.words)
    if again is None or again.start is None:
        return first
    if again.start.free:
        return replace(again, notes=first.notes)
    moved, passed = again.start.at - first.start.at, time.monotonic() - first.began
    free = True if 0 < moved <= passed + 1 else None
    if free and overdue(again.start):
        free = None  # because Slurm guesses the end of such a job anew each second
    start = replace(again.start, free=free if moved else False)
    return replace(again, start=start, notes=first.notes)


def no_nodes(answer: Answer) -> bool:
    """Whether no set of nodes has what the job asks for."""
    return _UNAVAILABLE in answer.refused


# ---- what waits for ever, though sbatch takes it -------------------------------------------------


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
    if _UNAVAILABLE not in refused:
        return refused
    down = out_of_service()
    less = f"; out of service are {down}" if down else ""
    return (
        f"{_UNAVAILABLE}: no set of nodes in service has these nodes, CPUs, memory, features and"
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


# ---- when, behind whom, on which card ------------------------------------------------------------


def _ends(start: Start) -> list[tuple[int, str]]:
    """The time limits and ids of the jobs that run on those nodes."""
    where = ",".join(start.nodes)
    told = lines_of("squeue", "-ah", "-t", "R,S,CG", "-w", where, "-o", "%e|%i")
    rows = [row.partition("|") for row in told]
    return [(int(end), job) for end, _, job in rows if end.isdigit()]


def overdue(start: Start) -> bool:
    """Whether a job on those nodes is past its time limit."""
    return any(end <= time.time() for end, _ in _ends(start))


def behind(start: Start) -> str:
    """The job that is certainly in the way: the only one on those nodes that ends by then."""
    found = [each for each in _ends(start) if each[0] <= start.at + NOW_S]
    return found[0][1] if len(found) == 1 and found[0][0] >= start.at - NOW_S else ""


@dataclass(frozen=True)
class Queue:
    """How many jobs wait for the nodes of a partition, and how many of them could start."""

    waiting: int
    eligible: int

    def sentence(self) -> str:
        """For a note; empty if no job wants a start."""
        more = "those of a higher priority go first"
        return f"{self.eligible} job(s) wait here already: {more}" if self.eligible else ""


def _sharing(partition: str) -> str:
    """The partitions that have nodes of this one, with itself, by commas."""
    nodes: dict[str, set[str]] = {partition: set()}
    for row in lines_of("sinfo", "-ah", "-o", "%R|%N"):
        name, _, names = row.partition("|")
        nodes.setdefault(name, set()).update(expand(names) if names else ())
    return ",".join(name for name in nodes if name == partition or nodes[name] & nodes[partition])


def queue(partition: str | None) -> Queue:
    """The jobs that wait in the partition, or in another that has nodes of it."""
    part = ("-p", _sharing(partition)) if partition else ()
    reasons = lines_of("squeue", "-ah", "-t", "PD", *part, "-o", "%r")
    return Queue(len(reasons), sum(reason not in NOT_ELIGIBLE for reason in reasons))


@dataclass(frozen=True)
class NodeUse:
    """Shards in use on each card (None where this Slurm does not say), and shares by class."""

    shards: tuple[int, ...] | None
    granted: dict[JobClass, int]


def read_use(text: str) -> NodeUse:
    """Of `scontrol -d show node`; 22.05 names the cards with shards, and not how many."""
    line = re.search(r"GresUsed=(\S*)", text)
    used = re.findall(r"\bshard:[^(,]*\(([^)]*)\)", line[1] if line else "")
    found = re.findall(r"(\d+)/\d+", used[0]) if len(used) == 1 else []  # of one model
    granted: dict[JobClass, int] = {}
    for job_class, share in re.findall(r"\bqgpu:(online|offline):(\d+)", line[1] if line else ""):
        granted[job_class] = int(share)
    none = used == ["IDX:N/A"]
    shards = tuple(map(int, found)) if found else (0,) if none else None
    return NodeUse(shards, granted)


def use_of(node: str) -> NodeUse:
    """What is in use of a node."""
    return read_use(program("scontrol", "-d", "show", "node", node) or "")


def card_of(use: NodeUse, shards: int, spread: bool) -> int | None:
    """The card that Slurm takes for one share: the first that fits, or the one with most left."""
    if use.shards is None or not shards:
        return None
    fits = [
        (used if spread else 0, at) for at, used in enumerate(use.shards) if used + shards <= 100
    ]
    return min(fits)[1] if fits else None
