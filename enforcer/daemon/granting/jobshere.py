"""Asks slurmctld which jobs hold this node, by one squeue in the background.

`squeue -w NODE` lists a job that completes only until this node's Epilog is over. No field is a
user's text, so no line can be forged. The header shows that slurmctld answered: an empty list is
believed only below it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from enforcer.daemon.jobnotes import outside
from gres.printable import printable
from gres.trusted import UntrustedError, require

FIELDS = "JobID:20,StateCompact:20,EndTime:40"
LIMIT_S = 15.0  # seconds for squeue: a busy slurmctld takes a while
MAX_BYTES = 4 << 20  # bytes; a job has 80
# The job has no node any more, or is queued again. Any other state holds the node, also an unknown.
GONE = frozenset({"BF", "CA", "CD", "DL", "F", "LF", "NF", "OOM", "PD", "PR", "RV", "TO"})


@dataclass(frozen=True)
class Told:
    """An answer: the jobs that hold this node. `ended`: when others did (ns of CLOCK_REALTIME)."""

    here: frozenset[int]
    ended: Mapping[int, int] = field(default_factory=dict)


class Question(Protocol):
    """One question to slurmctld."""

    def answer(self) -> Told | str | None:
        """The answer, or why there is none; None: not yet."""

    def drop(self) -> None:
        """Give up."""


class Controller(Protocol):
    """Asks slurmctld."""

    def ask(self) -> Question:
        """Begin; returns at once."""


def squeue_command(scontrol: str, node: str) -> list[str]:
    """The call, of the squeue beside scontrol."""
    words = ["--local", "-a", "-t", "all", "-w", node, "-O", FIELDS]
    return [str(Path(scontrol).with_name("squeue")), *words]


def parse(text: str) -> Told | None:
    """What squeue printed; None if that is not an answer of slurmctld, whole and as asked."""
    head, *rows = text.rstrip("\n").split("\n")
    if head.split()[:2] != ["JOBID", "ST"] or not text.endswith("\n"):
        return None
    here, ended = set[int](), dict[int, int]()
    for row in rows:
        words = row.split()
        if len(words) != 3 or not words[0].isascii() or not words[0].isdigit():
            return None
        job = int(words[0])
        if words[1] not in GONE:
            here.add(job)
        elif (end := _time_ns(words[2])) is not None:
            ended[job] = end
    return Told(frozenset(here), {job: end for job, end in ended.items() if job not in here})


def _time_ns(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 10**9
    except (ValueError, OverflowError):
        return None


class NoQuestion:
    """A question that could not be asked."""

    def __init__(self, why: str) -> None:
        self._why = why

    def answer(self) -> str:
        """Why."""
        return self._why

    def drop(self) -> None:
        """Nothing runs."""


class SqueueQuestion:
    """A squeue that runs. Its output goes to memory: a full pipe would stop it."""

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        self._out, self._err = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err"))
        self._until = time.monotonic() + LIMIT_S
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, env=environ
            )
        except OSError:
            self._close()
            raise

    def answer(self) -> Told | str | None:
        """As Question has it."""
        status = self._process.poll()
        if status is None and time.monotonic() < self._until:
            return None
        if status is None:
            self.drop()
            return f"squeue did not answer within {LIMIT_S:.0f} s"
        text, said = (self._read(fd) for fd in (self._out, self._err))
        self._close()
        if status:
            return f"squeue failed: {printable(said.strip(), 200) or f'exit status {status}'}"
        return parse(text) or f"squeue did not answer as expected, but '{printable(text, 80)}'"

    def drop(self) -> None:
        """As Question has it."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _read(self, fd: int) -> str:
        return os.pread(fd, MAX_BYTES, 0).decode(errors="replace")

    def _close(self) -> None:
        for fd in (self._out, self._err):
            os.close(fd)


@dataclass(frozen=True)
class JobsHere:
    """Asks about the node of that name. `scontrol` is an absolute path, with squeue beside it."""

    scontrol: str
    node: str

    def ask(self) -> Question:
        """As Controller has it."""
        command = squeue_command(self.scontrol, self.node)
        environ = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
        try:
            require(command[0], "the program")
            return SqueueQuestion([*outside(os.environ, waits=True), *command], environ)
        except (OSError, UntrustedError) as error:
            return NoQuestion(f"squeue was not run: {error}")
