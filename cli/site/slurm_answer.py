"""What this cluster's Slurm says of an sbatch command: `sbatch --test-only`, scontrol and squeue.

slurmctld runs job_submit.lua for --test-only as for a submission, so qgpu's own sentences come from
there. With QGPU_PLAN=1 it also says what it would book (slurm_plugin/lua/qgpu_plan.lua).
--test-only looks at no limit of the QOS and at no time limit of the partition, so these are read
from scontrol.
"""

from __future__ import annotations

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

TIMEOUT_S = 60.0  # as long as a client of Slurm waits for a busy slurmctld, and some
NOW_S = 5  # seconds by which the clocks of two hosts of a cluster may differ
AGAIN_S = 2.0  # between two questions: the start is in whole seconds, so that one of these is seen
# Reasons of squeue with which a job delays no other, because it may not start yet.
NOT_ELIGIBLE = frozenset(
    ["BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin"]
)
_START = re.compile(
    r"Job \d+ to start at (?P<at>\d+)(?: a)? using (?P<cpus>\d+) processors on"
    r" (?:nodes )?(?P<nodes>\S+)(?: in partition (?P<partition>\S+))?"
)
_TOLD = re.compile(r"(?P<part>\d+: )?qgpu: plan (?P<name>\w+)=(?P<value>.*)")
_PREFIX = re.compile(r"^(?:sbatch: )?(?:error: )?(?:allocation failure: )?(?:Batch job .*?: )?")
UNAVAILABLE = "Requested node configuration is not available"


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
    return UNAVAILABLE in answer.refused


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
