"""Which job a process belongs to, by the slurmstepds that are recorded in run_dir/steps.

docs/specs/identity.md has the rule; enforcer/native/common/qg_steps.c is the same in C. Names
of cgroups prove nothing: a directory counts because a recorded slurmstepd is in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.daemon.audit.procs import PROC, ancestors, cgroups_of, start_ticks, uids_of
from enforcer.daemon.log import emit
from gres.grant.store import RUN_BASE

STEPS = "steps"  # below run_dir, as slurm_plugin/spank/step.c has it
# age of a directory's date from which it is trusted: file systems have coarse clocks
SETTLED_NS = 2 * 10**9
SEARCH_NS = 900 * 10**6  # least time between two searches: one serves the polls of a second
UNIFIED = "0::"  # how lines of cgroup version 2 begin
_TITLE = re.compile(rb"slurmstepd: \[([0-9]{1,10})\.")
MAX_PER_JOB = 32  # records; slurm_plugin/spank leaves no more
_MAX_RECORD = 256  # bytes; about 60 are used


@dataclass(frozen=True)
class Step:
    """A living slurmstepd. `dirs`: lines of its cgroup file, each cut to the job's directory."""

    job: int
    pid: int
    start: int
    dirs: tuple[str, ...]


def job_dir(path: str) -> str:
    """The job's directory in the path of a slurmstepd's cgroup; empty if it is in none.

    It is the parent of the step's. Version 1 has slurmstepd in the job's own directory in the
    freezer hierarchy, which is below its user's.
    """
    names = path.split("/")
    for at in range(len(names) - 1, 1, -1):
        if names[at].startswith("step_"):
            return "/".join(names[:at])
    return path if len(names) > 2 and names[-2].startswith("uid_") else ""


def job_dirs(text: str) -> tuple[str, ...]:
    """The lines of a slurmstepd's cgroup file, each cut to the job's directory."""
    found = []
    for line in text.rstrip("\n").split("\n"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if directory := job_dir(path):
            found.append(f"{number}:{names}:{directory}")
    return tuple(found)


def depth_inside(text: str, dirs: Iterable[str]) -> int:
    """The length of the one of `dirs` that a line of the cgroup file is at or below; 0 if none."""
    lines = text.rstrip("\n").split("\n")
    return next(
        (len(one) for one in dirs if any(f"{line}/".startswith(f"{one}/") for line in lines)), 0
    )


@dataclass
class Steps:
    """The records of one node. They are read again after the directory changed."""

    directory: Path
    proc: Path = PROC
    owners: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    _date_ns: int | None = None
    _searched_ns: int = -SEARCH_NS
    _known: dict[tuple[int, int], Step | None] = field(default_factory=dict)  # by pid and inode

    def job_of(self, pid: int) -> int | None:
        """The job in whose cgroup the process is, or from whose slurmstepd it descends."""
        steps = self._look()
        return (self._by_cgroup(pid, steps) or self._by_ancestor(pid, steps)) if steps else None

    def job_anew(self, pid: int, jobs: Iterable[int]) -> int | None:
        """`job_of` once more, after a search for slurmstepds of these jobs that have no record.

        A search reads all of /proc. So one serves all processes of a sample.
        """
        now = time.monotonic_ns()
        if now - self._searched_ns < SEARCH_NS:
            return None
        self._searched_ns = now
        return self.job_of(pid) if self.adopt(job for job in jobs if job < RUN_BASE) else None

    def _by_cgroup(self, pid: int, steps: list[Step]) -> int | None:
        """The job of the deepest directory that the process is in; None if two jobs have it."""
        text, deepest, job = cgroups_of(pid, self.proc), 0, None
        for step in steps:
            depth = depth_inside(text, step.dirs)
            known = depth == deepest and job == step.job
            if not depth or depth < deepest or known or not self._lives(step):
                continue
            job = None if depth == deepest else step.job
            deepest = depth
        return job

    def _by_ancestor(self, pid: int, steps: list[Step]) -> int | None:
        daemons = {step.pid: step for step in steps}
        for above in ancestors(pid, self.proc)[1:]:
            step = daemons.get(above)
            if step is not None and self._lives(step):
                return step.job
        return None

    def of(self, job: int) -> list[Step]:
        """The job's living slurmstepds."""
        return [step for step in self._look() if step.job == job and self._lives(step)]

    def unified(self, jobs: Iterable[int]) -> dict[int, tuple[str, ...] | None]:
        """The jobs' own directories in cgroup version 2; None for a job without a slurmstepd."""
        wanted: dict[int, tuple[str, ...] | None] = dict.fromkeys(jobs)
        for step in self._look():
            if step.job in wanted and self._lives(step):
                mine = (one[len(UNIFIED) :] for one in step.dirs if one.startswith(UNIFIED))
                wanted[step.job] = tuple(dict.fromkeys((*(wanted[step.job] or ()), *mine)))
        return wanted

    def _lives(self, step: Step) -> bool:
        return start_ticks(step.pid, self.proc) == step.start

    def _look(self) -> list[Step]:
        try:
            info = self.directory.lstat()
            if not stat.S_ISDIR(info.st_mode) or not self._ours(info):
                return []
            if info.st_mtime_ns != self._date_ns:
                self._read(info.st_mtime_ns)
        except OSError:
            return []
        return [step for step in self._known.values() if step is not None]

    def _read(self, date_ns: int) -> None:
        # A coarse clock may give two changes one date: only an old date is believed.
        settled = time.time_ns() - date_ns > SETTLED_NS
        known, self._known = self._known, {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.isascii() and entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        key = (int(entry.name), entry.inode())
                        self._known[key] = known[key] if key in known else self._step(*key)
        self._date_ns = date_ns if settled else None

    def _step(self, pid: int, _: int) -> Step | None:
        """The record of that name; None if it does not count: another may come in its place."""
        fd = os.open(self.directory / str(pid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:  # noqa: PTH123
            info = os.fstat(fd)
            text = file.read(_MAX_RECORD) if stat.S_ISREG(info.st_mode) else b""
        try:
            found = json.loads(text)
            step = Step(found["job"], found["pid"], found["start"], ())
        except (ValueError, KeyError, TypeError):
            return None
        if not self._ours(info) or step.pid != pid or not self._lives(step):
            return None
        return Step(step.job, pid, step.start, job_dirs(cgroups_of(pid, self.proc)))

    def _ours(self, info: os.stat_result) -> bool:
        return info.st_uid in self.owners and not info.st_mode & 0o022

    # ---- what qgpud changes ----------------------------------------------------------------------

    def begin(self, jobs: Iterable[int]) -> None:
        """Bring the records of a node with these grants up to date, at qgpud's start."""
        self.sweep()
        if adopted := self.adopt(job for job in jobs if job < RUN_BASE):
            emit(logging.INFO, "steps-recorded", jobs=",".join(map(str, adopted)))

    def sweep(self) -> None:
        """Remove the records of slurmstepds that ended without removing them."""
        for path in self.directory.glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                if self._step(int(path.name), 0) is None:
                    path.unlink()

    def adopt(self, jobs: Iterable[int]) -> list[int]:
        """Record the slurmstepds of jobs that have none on record; the jobs that have one now.

        They began under a plugin that left no records. A machine with several slurmds may have a
        job number twice: then its slurmstepds are in two directories, and none is recorded.
        """
        missing = {job for job in jobs if not self.of(job)}
        found: dict[int, list[Step]] = {}
        for step in self._unrecorded() if missing else ():
            if step.job in missing:
                found.setdefault(step.job, []).append(step)
        alone = {job: steps for job, steps in found.items() if len({s.dirs[:1] for s in steps}) < 2}
        for steps in alone.values():
            for step in steps[:MAX_PER_JOB]:
                self._write(step)
        return sorted(alone)

    def _unrecorded(self) -> Iterator[Step]:
        """The slurmstepds of this machine, by what they are: root's, and running that program."""
        for path in self.proc.glob("[0-9]*"):
            # Of root's slurmstepds alone: a user's process may make a reader of its cmdline wait.
            uids = uids_of(int(path.name), self.proc)
            if not uids or len(uids) != 1 or not uids <= self.owners:
                continue
            try:
                if not (path / "exe").readlink().name.startswith("slurmstepd"):
                    continue
                match = _TITLE.match((path / "cmdline").read_bytes())
            except OSError:
                continue
            pid, start = int(path.name), start_ticks(int(path.name), self.proc)
            if match and start:
                yield Step(int(match[1]), pid, start, job_dirs(cgroups_of(pid, self.proc)))

    def _write(self, step: Step) -> None:
        self.directory.mkdir(mode=0o755, exist_ok=True)
        temporary = self.directory / f".{step.pid}.tmp"
        record = {"job": step.job, "pid": step.pid, "start": step.start}
        temporary.unlink(missing_ok=True)
        temporary.write_text(f"{json.dumps(record)}\n")
        temporary.chmod(0o644)
        temporary.rename(self.directory / str(step.pid))
