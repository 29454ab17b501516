"""Which job a process belongs to, and which jobs live on this machine, from /proc alone."""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")
_CGROUP = re.compile(r"/job_([0-9]{1,10})(?:/|$)", re.MULTILINE)
_STEPD = re.compile(rb"slurmstepd: \[([0-9]{1,10})\.")
MAX_DEPTH = 64


def job_of_cgroup(text: str) -> int | None:
    """The job that a /proc/PID/cgroup names (v1 or v2), None if none or if its lines disagree."""
    found = {int(match) for match in _CGROUP.findall(text)}
    return found.pop() if len(found) == 1 else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent_and_uids(proc: Path, pid: int) -> tuple[int, set[int]] | None:
    fields = dict(
        line.split(":", 1)
        for line in _read(proc / str(pid) / "status").decode(errors="replace").splitlines()
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
    """The real user of a process, who started it whatever a setuid file made of it; None if it is gone."""
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


def _stat(pid: int, proc: Path) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; empty if it is gone."""
    return _read(proc / str(pid) / "stat").rpartition(b")")[2].split()


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When a process began (clock ticks since boot), which with its number names it for ever; None if gone."""
    stat = _stat(pid, proc)
    return int(stat[19]) if len(stat) > 19 and stat[0] not in (b"Z", b"X") else None


def stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether it is stopped: by a signal, a suspended job, or a debugger."""
    return _stat(pid, proc)[:1] in ([b"T"], [b"t"])


def alive(pid: int, proc: Path = PROC) -> bool:
    """Whether the process exists and is not a zombie."""
    return start_ticks(pid, proc) is not None


def cgroup_v2_of(pid: int, proc: Path = PROC) -> str | None:
    """Path of the process's cgroup below the unified hierarchy; None where there is none."""
    for line in _read(proc / str(pid) / "cgroup").decode(errors="replace").splitlines():
        if line.startswith("0::/"):
            return line[3:]
    return None


def job_of_pid(pid: int, proc: Path = PROC) -> int | None:
    """The job of a process: by its cgroup, else by a root-owned slurmstepd among its ancestors."""
    job = job_of_cgroup(_read(proc / str(pid) / "cgroup").decode(errors="replace"))
    if job is not None:
        return job
    for _ in range(MAX_DEPTH):
        facts = _parent_and_uids(proc, pid)
        if facts is None or pid <= 1:
            return None
        if facts[1] == {0}:  # a setuid program keeps its caller's real uid, and any name the caller gave it
            match = _STEPD.match(_read(proc / str(pid) / "cmdline"))
            if match:
                return int(match[1])
        pid = facts[0]
    return None


def boot_time_ns(proc: Path = PROC) -> int | None:
    """When the machine started (CLOCK_REALTIME, whole seconds), None if /proc does not tell."""
    match = re.search(rb"^btime ([0-9]+)$", _read(proc / "stat"), re.MULTILINE)
    return int(match[1]) * 10**9 if match else None
