"""Starting the sandbox's daemons, knowing them again later, and saying which log to read when one
fails.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.sandbox import ended, namespace, processes, wait
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.processes import ProcessId
from enforcer.fdwait import readable_within

# Slurm 22.05 raises the limit itself. Not slurmd here, whose jobs have its limits, and not the
# simulated cards, whose memory would be in their core.
_LEAVE_CORES = ("slurmctld", "slurmdbd", "arbiter")


def _allow_core(pid: int) -> None:
    with contextlib.suppress(OSError):  # it may have ended already
        hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
        resource.prlimit(pid, resource.RLIMIT_CORE, (hard, hard))


@dataclass
class Daemons:
    """The daemons of one sandbox. Each one's pid and start time is in S/pids/NAME."""

    layout: Layout
    env: Mapping[str, str]
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _killed: set[str] = field(default_factory=set)

    def start(
        self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """Start a daemon in the namespace under a name, its output appended to log."""
        self._spawn(name, list(argv), log, env or {}, ())

    def run(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Run a program to its end in the namespace, its output appended to log."""
        with log.open("ab") as out:
            subprocess.run(
                namespace.enter(self.anyone()) + list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self.env, **env},
                cwd="/",
                check=False,
            )

    def start_ready(
        self,
        name: str,
        argv: Callable[[int], Sequence[str]],
        log: Path,
        env: Mapping[str, str],
        seconds: float = 10,
    ) -> None:
        """The same for a program with --ready-fd; argv(fd) is its command
        line. Returns when ready.
        """
        reader, writer = os.pipe()
        try:
            self._spawn(name, list(argv(writer)), log, env, (writer,))
            os.close(writer)
            writer = -1
            readable = readable_within(reader, seconds)
            if not readable or not os.read(reader, 1):
                self.check(name, log)
                raise self.failure(name, log, f"did not become ready within {seconds:g} s")
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def _spawn(
        self,
        name: str,
        argv: list[str],
        log: Path,
        env: Mapping[str, str],
        pass_fds: tuple[int, ...],
    ) -> None:
        place = self.layout.core_dir(name)
        place.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            child = subprocess.Popen(
                namespace.enter(self.anyone(), place) + argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**self.env, **env, processes.MARK: str(self.layout.state)},
                cwd="/",
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._children[name] = child
        self._killed.discard(name)
        if name.rpartition(".")[2] in _LEAVE_CORES:
            _allow_core(child.pid)
        self.remember(name, child.pid)

    def remember(self, name: str, pid: int) -> None:
        """Write S/pids/NAME."""
        who = processes.identify(pid)
        if who is not None:
            (self.layout.pids / name).write_text(f"{who.pid} {who.started}\n")

    def find(self, name: str) -> ProcessId | None:
        """The daemon as it was started last, running or not; None if it never was."""
        try:
            pid, started = (self.layout.pids / name).read_text().split()
            return ProcessId(int(pid), int(started))
        except (OSError, ValueError):
            return None

    def running(self, name: str) -> bool:
        """Whether the daemon runs."""
        child = self._children.get(name)
        if child is not None:
            child.poll()
        who = self.find(name)
        return who is not None and who.alive()

    def names(self) -> list[str]:
        """All daemons that were started, in no order."""
        return (
            sorted(p.name for p in self.layout.pids.iterdir()) if self.layout.pids.is_dir() else []
        )

    def reap(self) -> None:
        """Collect our own children that have ended, so that no zombie stays."""
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
        self._children.clear()

    def anyone(self) -> int:
        """A process in the sandbox's namespace: its first one, else any remaining one."""
        holder = self.find("namespace")
        if holder is not None and holder.alive():
            return holder.pid
        left = [p for name in self.names() if (p := self.find(name)) is not None and p.alive()]
        if not left:
            raise SandboxError(
                f"no process of the sandbox in {self.layout.state} runs any more: it is down"
            )
        return left[0].pid

    def check(self, name: str, log: Path) -> None:
        """SandboxError naming the log if the daemon is not running."""
        if not self.running(name):
            raise SandboxError(f"{self.last_words(name)}\nread {log}")

    def dead(self) -> list[str]:
        """The daemons that have exited, without those that `kill` ended."""
        return [n for n in self.names() if n not in self._killed and not self.running(n)]

    def last_words(self, name: str) -> str:
        """Some lines on a daemon that has ended: how, its core, the ends of its logs."""
        who, record = self.find(name), self.layout.pids / name
        if who is None:
            return f"{name} ended before it could be seen"
        child = self._children.get(name)
        status = None if child is None else child.poll()
        return ended.words(self.layout, name, who.pid, status, record.stat().st_mtime)

    def core(self, name: str) -> ended.Core | None:
        """The core of a daemon that has ended, if it left one that can be found."""
        who = self.find(name)
        return None if who is None else ended.find_core(self.layout, name, who.pid)

    def failure(self, name: str, log: Path, what: str) -> SandboxError:
        """An error that shows the end of the log."""
        return SandboxError(f"{name} {what}; read {log}\n{wait.tail(log)}")

    def kill(self, name: str, signum: signal.Signals = signal.SIGKILL, seconds: float = 10) -> None:
        """Send the signal to a daemon; for SIGKILL and SIGTERM also wait for its end."""
        who = self.find(name)
        if who is None or not who.kill(signum):
            raise SandboxError(f"{name} of the sandbox in {self.layout.state} does not run")
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self._killed.add(name)
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self._await_end(name, who, time.monotonic() + seconds)

    def _await_end(self, name: str, who: ProcessId, deadline: float) -> None:
        with contextlib.suppress(KeyError, subprocess.TimeoutExpired):
            self._children[name].wait(max(0.0, deadline - time.monotonic()))
        wait.until(
            lambda: not who.alive(), max(0.1, deadline - time.monotonic()), f"the end of {name}"
        )
