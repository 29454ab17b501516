"""Which processes belong to a sandbox, and ending them.

Every process of a sandbox lives in the sandbox's own mount namespace, where a copy of /etc lies
over /etc (namespace.py). That directory's inode, seen through /proc/PID/root, is the membership
test: it needs no list that a crash could lose, no environment that a program could overwrite, and
it holds for a job's detached children too. Daemons carry MARK in their environment in addition: it
covers the moment before the namespace exists.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import machine_etc

MARK = "QGPU_SANDBOX_DAEMON"
_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number; started is in clock
    ticks.
    """

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        now = _stat(self.pid)
        return now is not None and now == ("R", self.started)

    def kill(self, signum: signal.Signals) -> bool:
        """Send the signal to exactly this process; False if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(fd, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process, or None if there is none of that number."""
    now = _stat(pid)
    return None if now is None else ProcessId(pid, now[1])


def _stat(pid: int) -> tuple[str, int] | None:
    """("R" for running or "Z" for dead but not reaped, start time)."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return ("Z" if fields[0] in "ZX" else "R"), int(fields[19])


def _pids() -> Iterator[int]:
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            yield int(entry.name)


def _mark(pid: int) -> str | None:
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    want = MARK.encode() + b"="
    for item in environ.split(b"\0"):
        if item.startswith(want):
            return item[len(want) :].decode(errors="replace")
    return None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def live_states() -> set[Path]:
    """State directories of all sandboxes that have a daemon running on this machine."""
    return {Path(mark) for pid in _pids() if (mark := _mark(pid)) is not None}


def members(state: Path) -> list[ProcessId]:
    """Every running process of the sandbox in that state directory, this one excepted."""
    etc, mine = _inode(machine_etc(state)), _inode(Path("/etc"))
    found = []
    for pid in _pids():
        if pid == os.getpid() or (who := identify(pid)) is None or not who.alive():
            continue
        seen = _inode(_PROC / str(pid) / "root" / "etc")
        inside = seen is not None and seen == etc and seen != mine
        if inside or _mark(pid) == str(state):
            found.append(who)
    return found


def inside(state: Path) -> bool:
    """Whether this process itself runs inside the sandbox (for example in its `exec` shell)."""
    etc = _inode(machine_etc(state))
    return etc is not None and etc == _inode(Path("/etc"))


def end_all(state: Path, seconds: float = 60.0) -> int:
    """Kill every process of the sandbox and wait until they are gone; returns how many there were.

    SIGKILL at once: all that they could save is removed next. SandboxError if some outlive the
    deadline.
    """
    seen: set[ProcessId] = set()
    deadline = time.monotonic() + seconds
    while left := members(state):
        seen.update(left)
        for process in left:
            process.kill(signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SandboxError(
                f"{len(left)} processes of the sandbox in {state} do not end although killed; the"
                f" first waits in the kernel, see where with: cat /proc/{left[0].pid}/stack"
            )
        time.sleep(0.02)
    return len(seen)
