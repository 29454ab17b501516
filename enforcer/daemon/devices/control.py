"""The device cgroups of the jobs of this node, of either version (docs/specs/devices.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.daemon.audit.procs import PROC
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.devices.places import Place, Roots, Tree, of_job, outside, roots, tree
from enforcer.daemon.devices.port import Device, DevicesError, Rules
from enforcer.daemon.devices.single import Single
from enforcer.daemon.devices.unified import Unified

_SYS_ADMIN = 1 << 21  # the bit of CAP_SYS_ADMIN
_EFFECTIVE = re.compile(rb"^CapEff:\s+([0-9a-f]+)$", re.MULTILINE)


def may_administer(status: Path = PROC / "self/status") -> bool:
    """Whether this process has CAP_SYS_ADMIN, which both versions ask for."""
    match = _EFFECTIVE.search(status.read_bytes())
    return bool(match and int(match[1], 16) & _SYS_ADMIN)


@dataclass
class _Known:
    """One directory of a job, as it was seen last."""

    keeper: Single | Unified
    tree: Tree = field(default_factory=dict)


@dataclass
class JobDevices:
    """Implements `Devices` for the jobs whose slurmstepds are on record."""

    steps: Steps
    mounted: Callable[[], Roots] = roots
    administers: Callable[[], bool] = may_administer
    _known: dict[int, dict[Place, _Known]] = field(default_factory=dict)  # by job
    _roots: Roots | None = None  # a host of containers has thousands of mounts: read once per job

    def fault(self) -> str:
        """See `Devices`."""
        if self.administers():
            return ""
        return (
            "qgpud has no CAP_SYS_ADMIN, without which the kernel changes no device cgroup:"
            " docs/specs/devices.md has the drop-in for its unit"
        )

    def refusal(self, job_id: int, pids: Iterable[int]) -> str:
        """Why the access of this job with these processes cannot be changed; empty if it can."""
        fault = self.fault()
        if fault:
            return fault
        try:
            return self._refusal(job_id, tuple(pids))
        except (DevicesError, OSError) as error:
            return f"the device cgroups of job {job_id} cannot be changed: {error}"

    def _refusal(self, job_id: int, pids: tuple[int, ...]) -> str:
        steps = self.steps.of(job_id)
        if not steps:
            return f"no slurmstepd of job {job_id} is on record, so its cgroups are not known"
        self._roots = self.mounted()
        places = of_job(steps, self._roots)
        if not places:
            return (
                f"job {job_id} has no device cgroup: Slurm makes one with task/cgroup in TaskPlugin"
                " and ConstrainDevices=yes in cgroup.conf"
            )
        stranger = outside(places, pids, self.steps.proc)
        if stranger is not None:
            return f"process {stranger} is not in the device cgroup of job {job_id}"
        said = [known.keeper.refusal(known.tree) for known in self._scan(job_id, places)]
        why = said[0] if said else "it ended"
        return why and f"the device access of job {job_id} cannot be changed: {why}"

    def apply(self, job_id: int, allow: frozenset[Device], deny: frozenset[Device]) -> bool:
        """See `Devices`."""
        rules = Rules.of(allow, deny)
        try:
            self._roots = self._roots or self.mounted()
            places = of_job(self.steps.of(job_id), self._roots)
            done = [known.keeper.apply(known.tree, rules) for known in self._scan(job_id, places)]
        except OSError as error:
            raise DevicesError(
                f"the device cgroups of job {job_id} cannot be changed: {error}"
            ) from None
        return any(done)

    def _scan(self, job_id: int, places: Iterable[Place]) -> Iterator[_Known]:
        """The job's directories that are there, with all below them as they are now."""
        before = self._known.get(job_id, {})
        mine = self._known[job_id] = {}
        for place in places:
            known = before.get(place) or _Known(Single() if place.version == 1 else Unified())
            known.tree = tree(place.top, known.tree)
            if known.tree:
                mine[place] = known
                yield known

    def forget(self, job_id: int) -> None:
        """The job ended."""
        self._known.pop(job_id, None)
