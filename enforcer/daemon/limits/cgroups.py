"""Scans for the cgroups of jobs; the link counts of directories show what changed.

A directory of cgroupfs has two links and one per directory in it. Its mtime does not change when
one is made or removed (seen on Linux 6.18).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Tree = dict[str, tuple[str, ...]]  # directory -> the directories in it


def _directories(path: str) -> tuple[str, ...]:
    """The directories in `path`; none if it is gone. Control files are not examined."""
    try:
        with os.scandir(path) as entries:
            return tuple(
                sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            )
    except OSError:
        return ()


def _visit(path: str, known: Mapping[str, tuple[str, ...]], found: Tree) -> bool:
    """Note `path` and all below it in `found`; False if it is gone.

    A directory is listed only if its number of links changed, or a directory in it is gone.
    """
    try:
        # os.stat, since a Path costs more than the call
        links = os.stat(path, follow_symlinks=False).st_nlink  # noqa: PTH116
    except OSError:
        return False
    inside = known.get(path)
    same = inside is not None and links == len(inside) + 2
    if inside is None or not same or not all(_visit(one, known, found) for one in inside):
        inside = tuple(
            one for one in _directories(path) if one in found or _visit(one, known, found)
        )
    found[path] = inside
    return True


@dataclass(frozen=True)
class _Job:
    """A job's own directory in one scan. `paths`: itself and each leaf below it."""

    tree: Tree
    paths: tuple[Path, ...]


@dataclass
class JobCgroups:
    """The cgroups of jobs below `root`, where their slurmstepds are (docs/specs/identity.md)."""

    root: Path
    _known: dict[str, _Job] = field(default_factory=dict)  # by the job's own directory

    def scan(self, jobs: Mapping[int, Iterable[str]]) -> dict[int, tuple[Path, ...]]:
        """Each job's own cgroup and the leaves below it; the same object while nothing changed.

        `jobs`: the paths of each job's own cgroup.
        """
        known, self._known = self._known, {}
        found: dict[int, tuple[Path, ...]] = {}
        for job_id, path in ((job_id, path) for job_id, paths in jobs.items() for path in paths):
            top = f"{self.root}/{path.strip('/')}"
            job = self._scan_job(top, known.get(top)) if ".." not in path.split("/") else None
            if job is not None:
                self._known[top] = job
                found[job_id] = found.get(job_id, ()) + job.paths
        return found

    def _scan_job(self, top: str, before: _Job | None) -> _Job | None:
        tree: Tree = {}
        if not _visit(top, before.tree if before else {}, tree):
            return None
        if before is not None and before.tree == tree:
            return before
        leaves = (Path(one) for one in sorted(tree) if one != top and not tree[one])
        return _Job(tree, (Path(top), *leaves))
