"""Where the device cgroups of a job are: below a directory that a recorded slurmstepd is in.

docs/specs/identity.md has the rule. A path comes from there alone, never from a process of the job,
which may be in any cgroup of any name. The file systems of cgroups have no symbolic links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from enforcer.daemon.audit.procs import PROC, alive, cgroups_of
from enforcer.daemon.audit.steps import UNIFIED, Step
from enforcer.daemon.devices.port import DevicesError
from gres import mounttable

MAX_CGROUPS = 4096  # of one job; a user with a delegated cgroup may make as many as he likes
GONE = (errno.ENOENT, errno.ENODEV)  # a removed cgroup says the second to an open file
Tree = dict[str, tuple[str, ...]]  # directory -> the directories in it; parents come first


@dataclass(frozen=True)
class Roots:
    """Where the hierarchies are mounted that can constrain devices; None: it is not mounted."""

    devices: Path | None  # version 1
    unified: Path | None  # version 2


@dataclass(frozen=True)
class Place:
    """A job's own directory: its version (1 or 2), the hierarchy's root, the path below that."""

    version: int
    root: Path
    path: str

    @property
    def top(self) -> str:
        """The directory itself."""
        return f"{self.root}{self.path}"


def roots(table: Path = PROC / "self/mountinfo") -> Roots:
    """The hierarchies that this process sees from their roots on. Raises OSError."""
    devices = unified = None
    for row in mounttable.rows(table.read_bytes()):
        after = row.index("-", 6) + 1 if "-" in row[6:] else len(row)
        if len(row) < after + 3 or row[3] != "/":
            continue  # a part of a hierarchy, mounted elsewhere
        if row[after] == "cgroup" and "devices" in row[after + 2].split(","):
            devices = devices or Path(row[4])
        elif row[after] == "cgroup2":
            unified = unified or Path(row[4])
    return Roots(devices, unified)


def of_job(steps: Iterable[Step], there: Roots) -> tuple[Place, ...]:
    """The job's own directories, of version 1 if it has any there; none: it has no device cgroup.

    Slurm gives a job the same path in each hierarchy of version 1. So one that slurmstepd itself is
    not in is found by another one.
    """
    lines = tuple(dict.fromkeys(line for step in steps for line in step.dirs))
    both = [line[len(UNIFIED) :] for line in lines if line.startswith(UNIFIED)]
    others = [line.split(":", 2) for line in lines if not line.startswith(UNIFIED)]
    own = [path for _, names, path in others if "devices" in names.split(",")]
    single = dict.fromkeys(own or [path for _, _, path in others])
    for version, root, paths in ((1, there.devices, single), (2, there.unified, both)):
        found = tuple(Place(version, root, path) for path in paths if root and _sound(root, path))
        if found:
            return found
    return ()


def _sound(root: Path, path: str) -> bool:
    """Whether it is a directory of root's, and not the hierarchy's root."""
    if not path.strip("/") or ".." in path.split("/"):
        return False
    try:
        info = os.stat(f"{root}{path}", follow_symlinks=False)  # noqa: PTH116
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()


def outside(places: Iterable[Place], pids: Iterable[int], proc: Path = PROC) -> int | None:
    """A living process that is in none of these directories; None if all are."""
    tops = tuple(places)
    for pid in pids:
        if not any(_inside(place, cgroups_of(pid, proc)) for place in tops) and alive(pid, proc):
            return pid
    return None


def _inside(place: Place, text: str) -> bool:
    for line in text.rstrip("\n").split("\n"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        here = "devices" in names.split(",") if place.version == 1 else (number, names) == ("0", "")
        if here and f"{path}/".startswith(f"{place.path}/"):
            return True
    return False


def tree(top: str, known: Tree) -> Tree:
    """The directory and all below it; empty if it is gone. Raises DevicesError for too many.

    `known`: the result of the last call. A directory of cgroupfs has two links and one per
    directory in it: it is listed again only if they changed, or one in it is gone.
    """
    found, missed = _walk(top, known)
    return _walk(top, {})[0] if missed and known else found


def _walk(top: str, known: Tree) -> tuple[Tree, bool]:
    """The directories, and whether one that was listed is gone."""
    found: Tree = {}
    waiting, missed = [top], False
    while waiting:
        path = waiting.pop()
        if len(found) == MAX_CGROUPS:
            raise DevicesError(
                f"the job has more than {MAX_CGROUPS} cgroups below {top}; a job with as many"
                " cannot be moved"
            )
        inside = _inside_of(path, known.get(path))
        if inside is None:
            missed = True
        else:
            found[path] = inside
            waiting += inside
    return found, missed


def _inside_of(path: str, known: tuple[str, ...] | None) -> tuple[str, ...] | None:
    try:
        # os.stat, since a Path costs more than the call
        links = os.stat(path, follow_symlinks=False).st_nlink  # noqa: PTH116
        if known is not None and links == len(known) + 2:
            return known
        with os.scandir(path) as entries:
            return tuple(one.path for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return None
