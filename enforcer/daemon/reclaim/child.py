"""A command in the background: its output goes to memory, and it is killed after its time.

Nothing here waits. A command that a kill does not end at once (it hangs in the driver) is over for
its owner all the same.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from enforcer.clock import Clock
from gres.printable import printable
from gres.trusted import UntrustedError, require

KILL_S = 0.02  # seconds that a process which was killed is waited for
MAX_BYTES = 1 << 20  # bytes read of an output; a process has 80


@dataclass(frozen=True)
class Done:
    """The end of a command. `status` None: it was killed after its time, or could not start."""

    status: int | None
    out: str = ""
    why: str = ""


class Child(Protocol):
    """A command that runs."""

    @property
    def pid(self) -> int:
        """Its number; 0 where it did not start."""

    def fileno(self) -> int | None:
        """Readable once it ended; None where it did not start."""

    def poll(self) -> Done | None:
        """Its end; None while it runs and has time."""

    def drop(self) -> None:
        """Let it run, without anybody who waits for it."""


class NoChild:
    """A command that did not start."""

    def __init__(self, why: str) -> None:
        self._why = why

    @property
    def pid(self) -> int:
        """Nothing runs."""
        return 0

    def fileno(self) -> None:
        """Nothing runs."""

    def poll(self) -> Done:
        """Why."""
        return Done(None, why=self._why)

    def drop(self) -> None:
        """Nothing runs."""


class Process:
    """A command that started. `keeps`: a descriptor that it holds to its end."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        clock: Clock,
        limit_ns: int,
        keeps: int | None = None,
    ) -> None:
        """Start it. Raises OSError."""
        self._clock, self._until, self._name = clock, clock.monotonic_ns() + limit_ns, command[0]
        self._limit_s = limit_ns // 10**9
        self._files = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("out", "err")]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._files[0],
                stderr=self._files[1],
                env=environ,
                pass_fds=[] if keeps is None else [keeps],
            )
            self._files.append(os.pidfd_open(self._process.pid))
        except OSError:
            self.drop()
            raise

    @property
    def pid(self) -> int:
        """As Child has it."""
        return self._process.pid

    def fileno(self) -> int | None:
        """As Child has it."""
        return self._files[2] if len(self._files) > 2 else None

    def poll(self) -> Done | None:
        """As Child has it."""
        status = self._process.poll()
        if status is None and self._clock.monotonic_ns() < self._until:
            return None
        if status is None:
            self.kill()
            self.drop()
            return Done(None, why=f"{self._name} did not end within {self._limit_s} s")
        out, err = (os.pread(fd, MAX_BYTES, 0).decode(errors="replace") for fd in self._files[:2])
        self.drop()
        why = printable(err.strip(), 200) or f"exit status {status}"
        return Done(status, out, "" if status == 0 else why)

    def kill(self) -> None:
        """End it. It is waited for a moment: only a process that hangs in the driver needs more,
        and the next one that starts collects it.
        """
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)

    def drop(self) -> None:
        """As Child has it."""
        for fd in self._files:
            os.close(fd)
        self._files = []


def start(
    program: str,
    words: Sequence[str],
    environ: Mapping[str, str],
    clock: Clock,
    limit_ns: int,
    keeps: int | None = None,
) -> Child:
    """Start a program that only root can change; `words` is the command, maybe another program
    that starts it.
    """
    try:
        require(program, "the program")
        return Process(words, environ, clock, limit_ns, keeps)
    except (OSError, UntrustedError) as error:
        return NoChild(f"{program} was not run: {error}")
