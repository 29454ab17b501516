"""Where the cgroups of jobs are, looked for often and told apart from the last look by the links of their directories.

A directory of cgroupfs has two links and one for each directory in it. Its time of change stays as it was when one is
made or removed there (seen on Linux 6.18), so that says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SLICE, SCOPE = "system.slice", "slurmstepd.scope"
Tree = dict[str, tuple[str, ...]]  # each directory, and the directories in it


def _directories(path: str) -> tuple[str, ...]:
    """The directories in that one; none if it is gone. Control files are not asked about."""
    try:
        with os.scandir(path) as entries:
            return tuple(sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False)))
    except OSError:
        return ()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _visit(path: str, known: Mapping[str, tuple[str, ...]], found: Tree) -> bool:
    """Note `path` and all below it in `found`; False if it is gone. A directory is listed only if it differs from
    what is known: another number of links, or one of the directories in it is gone (another may have come)."""
    try:
        links = os.stat(path, follow_symlinks=False).st_nlink  # noqa: PTH116 (a Path costs more than the call)
    except OSError:
        return False
    inside = known.get(path)
    same = inside is not None and links == len(inside) + 2
    if inside is None or not same or not all(_visit(one, known, found) for one in inside):
        inside = tuple(one for one in _directories(path) if one in found or _visit(one, known, found))
    found[path] = inside
    return True


@dataclass(frozen=True)
class _Job:
    """A job's own directory at one look. `paths`: itself and every leaf below it."""

    tree: Tree
    paths: tuple[Path, ...]


@dataclass
class JobCgroups:
    """The cgroups of jobs below `root`, as slurmd 22.05 and later make them."""

    root: Path
    _known: dict[str, _Job] = field(default_factory=dict)  # by the job's own directory

    def look(self, jobs: Iterable[int]) -> dict[int, tuple[Path, ...]]:
        """Of each job that has one: its own cgroup and every leaf below it; the same object while nothing changed."""
        wanted = {f"job_{job}": job for job in jobs}
        known, self._known = self._known, {}
        found: dict[int, tuple[Path, ...]] = {}
        for top in self._tops(wanted) if wanted else ():
            job_id, job = wanted[_name(top)], self._look_at(top, known.get(top))
            if job is not None:
                self._known[top] = job
                # A node with two slurmds may have a job of that number twice.
                found[job_id] = found.get(job_id, ()) + job.paths
        return found

    def _tops(self, wanted: Mapping[str, int]) -> Iterator[str]:
        """The own directories of the wanted jobs, from one listing of each scope."""
        for scope in _directories(str(self.root / SLICE)):
            if scope.endswith(SCOPE):
                yield from (top for top in _directories(scope) if _name(top) in wanted)

    def _look_at(self, top: str, before: _Job | None) -> _Job | None:
        tree: Tree = {}
        if not _visit(top, before.tree if before else {}, tree):
            return None
        if before is not None and before.tree == tree:
            return before
        leaves = (Path(one) for one in sorted(tree) if one != top and not tree[one])
        return _Job(tree, (Path(top), *leaves))
