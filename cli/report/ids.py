"""Jobs as sacct spells them: 12, 12,13, 12_3, 12_[1-4], 12+1, 12.0, 12.batch; and 1-40. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_JOBS = 5000  # jobs of one report: the question to a qgpud stays below its 64 KiB
_JOB = re.compile(
    r"(?P<job>[0-9]{1,10})"
    r"(?:-(?P<last>[0-9]{1,10})|_\[(?P<tasks>[0-9,:-]+)(?:%[0-9]+)?\]|(?P<one>[_+][0-9]{1,7}))?"
    r"(?P<step>\.(?:batch|extern|interactive|[0-9]{1,10}))?"
)
_TASKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([1-9][0-9]{0,6}))?)?")
_COMMA = re.compile(r",(?![^\[\]]*\])")  # not within the brackets of an array
HELP = (
    "write for example 12, 12,13, 12-40, 12_3 or 12_[1-4] for tasks of an array, or 12.0 for the"
    " job of a step"
)


def parse(arguments: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The jobs of each word, without their steps. Raises ValueError with a sentence."""
    found: dict[str, tuple[str, ...]] = {}
    count = 0
    for word in (word for argument in arguments for word in _COMMA.split(argument)):
        found[word] = _jobs(word, MAX_JOBS - count)
        count += len(found[word])
        if count > MAX_JOBS:
            raise _too_many(word)
    return found


def _jobs(word: str, room: int) -> tuple[str, ...]:
    match = _JOB.fullmatch(word)
    if match is None and re.fullmatch(r"[0-9]{13,16}", word):  # a `qgpu run`
        return (word,)
    if match is None:
        raise ValueError(f"'{word}' is not a job id; {HELP}")
    job = str(int(match["job"]))
    if job == "0":  # to sacct all jobs
        raise ValueError(f"'{word}' is not a job id, because Slurm counts from 1; {HELP}")
    if match["last"]:
        return tuple(map(str, _range(word, job, match["last"], 1, room)))
    if match["tasks"]:
        return tuple(f"{job}_{task}" for task in _array(word, match["tasks"], room))
    one = match["one"]
    return (f"{job}{one[0]}{int(one[1:])}" if one else job,)


def _array(word: str, tasks: str, room: int) -> list[int]:
    found: list[int] = []
    for part in tasks.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise ValueError(f"'{part}' of '{word}' is no task of an array; {HELP}")
        first, last, step = match.groups()
        found += _range(word, first, last or first, int(step or 1), room - len(found))
    return found


def _range(word: str, first: str, last: str, step: int, room: int) -> range:
    found = range(int(first), int(last) + 1, step)
    if not found:
        raise ValueError(f"'{word}' ends before it begins; write {last}-{first}")
    if len(found) > room:
        raise _too_many(word)
    return found


def _too_many(word: str) -> ValueError:
    return ValueError(
        f"'{word}' names more jobs than one report takes, which are {MAX_JOBS}; ask for a time"
        " instead, for example --since 7d"
    )


def steps(words: Iterable[str]) -> list[str]:
    """The words that name a step."""
    return [word for word in words if "." in word]


def unknown(asked: dict[str, tuple[str, ...]], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of which sacct has no job, and a sentence for each of which it has only some.

    An array's number stands for all its tasks, and one record for all those that wait.
    """
    heads = {job.partition("_")[0].partition("+")[0] for job in known}
    waiting = {job.partition("_")[0] for job in known if "_[" in job}
    there = heads | set(known)
    none, some = [], []
    for word, jobs in asked.items():
        missing = [
            job
            for job in jobs
            if job not in there and not ("_" in job and job.partition("_")[0] in waiting)
        ]
        if len(missing) == len(jobs):
            none.append(word)
        elif missing:
            some.append(f"{len(missing)} of the {len(jobs)} jobs {word} are not known to sacct")
    return none, some
