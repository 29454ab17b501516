"""What /proc says of a process: owner, ancestors, state, cgroup."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from gres import mounttable

PROC = Path("/proc")
MAX_DEPTH = 64  # ancestors followed, against loops while processes end
GONE = (b"Z", b"X")
STOPPED = (b"T", b"t")
MAX_THREADS = 4096  # threads read in one sample, which takes about 0.1 s
BOOT_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TooManyThreadsError(RuntimeError):
    """A process has more threads than may be read now."""


class ThreadBudget:
    """Limits the threads read per sample, of all processes together: 300 000 would stall the
    daemon.

    The first thread of a process is always read, so a running process is seen to run.
    """

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most = self._left = most

    def renew(self) -> None:
        """Start a sample."""
        self._left = self._most

    def take(self) -> None:
        """Count one thread. Raises TooManyThreadsError."""
        if self._left <= 0:
            raise TooManyThreadsError
        self._left -= 1

    def stopped(self, pid: int) -> bool | None:
        """`stopped` within the budget."""
        return stopped(pid, budget=self)

    def stop_waits(self, pid: int) -> bool:
        """`stop_waits` within the budget."""
        return stop_waits(pid, budget=self)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent_and_uids(proc: Path, pid: int) -> tuple[int, set[int]] | None:
    fields = dict(
        line.split(":", 1)
        for line in _read(proc / str(pid) / "status").decode(errors="replace").split("\n")
        if ":" in line
    )
    try:
        return int(fields["PPid"]), {int(uid) for uid in fields["Uid"].split()}
    except (KeyError, ValueError, IndexError):
        return None


def uids_of(pid: int, proc: Path = PROC) -> set[int] | None:
    """The four user ids of a process as a set; None if it is gone."""
    facts = _parent_and_uids(proc, pid)
    return None if facts is None else facts[1]


def owner_of(pid: int, proc: Path = PROC) -> int | None:
    """The real uid of a process, which a setuid file does not change; None if it is gone."""
    match = re.search(rb"^Uid:\s+([0-9]+)", _read(proc / str(pid) / "status"), re.MULTILINE)
    return int(match[1]) if match else None


def ancestors(pid: int, proc: Path = PROC) -> list[int]:
    """The process itself, its parent and so on, up to init."""
    found: list[int] = []
    while pid > 1 and len(found) < MAX_DEPTH:
        found.append(pid)
        facts = _parent_and_uids(proc, pid)
        if facts is None:
            break
        pid = facts[0]
    return found


def _stat(process: Path) -> list[bytes]:
    """Fields of the stat of a process or thread (its directory) from the state on; empty if it is
    gone.
    """
    return _read(process / "stat").rpartition(b")")[2].split()


def _live_threads(
    pid: int, proc: Path, budget: ThreadBudget | None = None
) -> Iterator[tuple[Path, bytes]]:
    """Directory and state of each thread that has not ended, read one by one.

    The first thread may end (pthread_exit) before the others; the process then shows as a zombie.
    Raises TooManyThreadsError; without a budget MAX_THREADS may be read.
    """
    budget = budget or ThreadBudget()
    try:
        with os.scandir(proc / str(pid) / "task") as tasks:
            for number, task in enumerate(tasks):
                if number:
                    budget.take()
                state = _stat(Path(task.path))[:1]
                if state and state[0] not in GONE:
                    yield Path(task.path), state[0]
    except OSError:
        return


def _lives(pid: int, proc: Path) -> bool:
    """Whether it has a thread that has not ended; one with too many threads to read counts as
    alive.
    """
    try:
        return next(_live_threads(pid, proc), None) is not None
    except TooManyThreadsError:
        return True


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Start of a process (clock ticks since boot), which with its pid
    identifies it; None if gone.
    """
    stat = _stat(proc / str(pid))
    if len(stat) <= 19 or (stat[0] in GONE and not _lives(pid, proc)):
        return None
    return int(stat[19])


def stopped(pid: int, proc: Path = PROC, budget: ThreadBudget | None = None) -> bool | None:
    """Whether each thread is stopped: by a signal, a debugger, or with its cgroup (a suspended
    job).

    None: all threads within the budget are, and there are more.
    """
    frozen = functools.cache(functools.partial(_frozen, proc))
    found = False
    try:
        for task, state in _live_threads(pid, proc, budget):
            found = True
            if not _is_stopped(task, state, frozen):
                return False
    except TooManyThreadsError:
        return None
    return found


def stop_waits(pid: int, proc: Path = PROC, budget: ThreadBudget | None = None) -> bool:
    """Whether a SIGSTOP has not taken effect yet: it is pending, or running threads are in state D.

    Of a process with too many threads, those within the budget count.
    """
    pending = re.search(rb"^ShdPnd:\s+([0-9a-f]+)", _read(proc / str(pid) / "status"), re.MULTILINE)
    if pending and int(pending[1], 16) & 1 << (signal.SIGSTOP - 1):
        return True
    try:
        return all(state in (*STOPPED, b"D") for _, state in _live_threads(pid, proc, budget))
    except TooManyThreadsError:
        return True


def _is_stopped(task: Path, state: bytes, frozen: Callable[[bytes], bool]) -> bool:
    """Whether one thread is stopped; cgroups and debuggers act on single threads."""
    return state in STOPPED or frozen(_read(task / "cgroup"))


def _frozen(proc: Path, cgroups: bytes) -> bool:
    """Whether one of these cgroups (lines of /proc/PID/cgroup) or an ancestor is frozen."""
    mounts = mounttable.rows(_read(proc / "self/mounts"))
    for line in os.fsdecode(cgroups).split("\n"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue
        unified = (number, names) == ("0", "")
        if not unified and "freezer" not in names.split(","):
            continue
        for root in (Path(row[1]) for row in mounts if len(row) > 3 and _is_mount(row, unified)):
            above = (root.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1))
            if any(_reads_frozen(directory, unified) for directory in above):
                return True
    return False


def _is_mount(row: list[str], unified: bool) -> bool:
    return row[2] == "cgroup2" if unified else row[2] == "cgroup" and "freezer" in row[3].split(",")


def _reads_frozen(directory: Path, unified: bool) -> bool:
    if unified:
        return b"frozen 1" in _read(directory / "cgroup.events").split(b"\n")
    return _read(directory / "freezer.state").strip() == b"FROZEN"


def alive(pid: int, proc: Path = PROC) -> bool:
    """Whether the process exists and is not a zombie."""
    return start_ticks(pid, proc) is not None


def cgroups_of(pid: int, proc: Path = PROC) -> str:
    """Its /proc/PID/cgroup; if its first thread ended, that of a running thread.

    Version 1 shows the root cgroup for threads that ended.
    """
    process = proc / str(pid)
    if _stat(process)[:1] in ([b"Z"], [b"X"]):
        with contextlib.suppress(TooManyThreadsError):
            process = next((task for task, _ in _live_threads(pid, proc)), process)
    return _read(process / "cgroup").decode(errors="replace")


def boot_time_ns(proc: Path = PROC) -> int | None:
    """Boot time of the machine (CLOCK_REALTIME, whole seconds); None if /proc does not have it."""
    match = re.search(rb"^btime ([0-9]+)$", _read(proc / "stat"), re.MULTILINE)
    return int(match[1]) * 10**9 if match else None


def boot_id(proc: Path = PROC) -> str | None:
    """Identifier of this boot, independent of the clock; None if /proc does not have it."""
    match = BOOT_ID.match(_read(proc / "sys/kernel/random/boot_id"))
    return match[0].decode() if match else None


def on_tmpfs(path: Path, proc: Path = PROC) -> bool:
    """Whether a directory is on a file system in memory, whose content no boot survives."""
    try:
        device = path.stat().st_dev
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(
        row[2] == number and row[row.index("-") + 1] in ("tmpfs", "ramfs")
        for row in mounttable.rows(_read(proc / "self/mountinfo"))
        if "-" in row
    )
