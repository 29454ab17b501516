"""Moves the memory of processes by the helper program (docs/specs/reclaim.md), one per operation.

The helper holds a lock on a file of the job, with its pid, while it runs. So a qgpud that was
killed in the midst finds out at its next start when the operation that it began is over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from enforcer.clock import Clock
from enforcer.daemon.audit.procs import PROC
from enforcer.daemon.reclaim.child import Child, Done, NoChild, start
from gres.grant.store import Grant
from gres.printable import printable

LOCKS = "checkpoint"  # below run_dir
INVALID_VALUE, OUT_OF_MEMORY = 1, 2  # CUDA_ERROR_*
MAX_PIDS = 4096  # of one operation: a command line holds them
Action = Literal["state", "leave", "return"]
_LINE = re.compile(
    r"([0-9]{1,10}) (running|locked|checkpointed|failed|none) (\S+) (-?[0-9]+) (\S+)"
)


@dataclass(frozen=True)
class Line:
    """What the helper says of one process: its state now, and the step that failed or `-`."""

    pid: int
    state: str
    step: str
    code: int
    name: str

    @property
    def failed(self) -> bool:
        """Whether a step failed."""
        return self.step != "-"


@dataclass(frozen=True)
class Outcome:
    """The end of an operation. `why`: a sentence if it is not `done`."""

    action: Action
    done: bool
    lines: tuple[Line, ...] = ()
    why: str = ""

    def states(self) -> set[str]:
        """The states of the processes that use CUDA."""
        return {line.state for line in self.lines} - {"none"}

    def unmapped(self) -> set[int]:
        """The processes that are on no card that the map of a return names."""
        return {x.pid for x in self.lines if x.step == "restore" and x.code == INVALID_VALUE}

    def without_room(self) -> bool:
        """Whether all that failed was that the card has too little memory."""
        failed = [line for line in self.lines if line.failed]
        return bool(failed) and all(line.code == OUT_OF_MEMORY for line in failed)


def parse(text: str) -> tuple[Line, ...]:
    """The lines of the helper; what is none is passed over."""
    found = (_LINE.fullmatch(line.strip()) for line in text.split("\n"))
    return tuple(
        Line(int(m[1]), m[2], printable(m[3], 40), int(m[4]), printable(m[5], 60))
        for m in found
        if m is not None
    )


def outcome(action: Action, done: Done) -> Outcome:
    """What a helper that ended did."""
    lines = parse(done.out)
    if done.status == 0:
        return Outcome(action, True, lines)
    failed = next((line for line in lines if line.failed), None)
    if failed is None:
        return Outcome(action, False, lines, done.why)
    why = f"process {failed.pid}: {failed.step} failed with {failed.name} ({failed.code})"
    return Outcome(action, False, lines, why)


@dataclass
class Operation:
    """One helper that runs. `began_ns`: CLOCK_MONOTONIC."""

    action: Action
    pids: tuple[int, ...]
    child: Child
    began_ns: int
    number: int

    def poll(self) -> Outcome | None:
        """Its end; None while it runs. Without a process there is nothing to do."""
        if not self.pids:
            return Outcome(self.action, True)
        done = self.child.poll()
        return None if done is None else outcome(self.action, done)


@dataclass
class Mover:
    """Starts helpers. `limit_ns`: the deadline of each."""

    helper: str
    run_dir: Path
    clock: Clock
    limit_ns: int
    environ: Mapping[str, str] = field(
        default_factory=lambda: {
            name: value for name, value in os.environ.items() if name == "QGPU_SIM_DIR"
        }
    )
    _count: int = 0

    def busy(self, job_id: int) -> bool:
        """Whether a helper of an earlier qgpud still works on the job."""
        fd = self._open(job_id)
        if fd is None:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def end(self, job_id: int) -> None:
        """Kill the helper of an earlier qgpud that still works on the job: it hangs."""
        fd = self._open(job_id)
        if fd is None or not self.busy(job_id):
            return
        text = os.pread(fd, 20, 0).strip()
        os.close(fd)
        with contextlib.suppress(OSError, ValueError):
            handle = os.pidfd_open(int(text))
            try:
                lock = self.run_dir / LOCKS / str(job_id)
                held = (PROC / text.decode() / "fd").iterdir()
                if any(lock.samefile(one) for one in held if one.exists()):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def start(
        self, action: Action, grant: Grant, pids: Iterable[int], words: Iterable[str] = ()
    ) -> Operation:
        """Start an operation on these processes; `words` are further options."""
        self._count += 1
        listed = tuple(sorted(pids))[:MAX_PIDS]
        words = [self.helper, "--driver", grant.driver_path, *words, action, *map(str, listed)]
        child = self._start(grant.job_id, words) if listed else NoChild("")
        return Operation(action, listed, child, self.clock.monotonic_ns(), self._count)

    def _start(self, job_id: int, words: list[str]) -> Child:
        fd = self._open(job_id)
        if fd is None:
            return NoChild(f"{self.run_dir / LOCKS} cannot be written")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child = start(self.helper, words, self.environ, self.clock, self.limit_ns, fd)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{child.pid}\n".encode(), 0)
            return child
        except OSError:
            return NoChild("another helper works on the job")
        finally:
            os.close(fd)

    def forget(self, job_id: int) -> None:
        """The job ended: remove its file."""
        with contextlib.suppress(OSError):
            (self.run_dir / LOCKS / str(job_id)).unlink()

    def _open(self, job_id: int) -> int | None:
        directory = self.run_dir / LOCKS
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(directory / str(job_id), flags, 0o600)
        except OSError:
            return None
