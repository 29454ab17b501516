"""Memory caps beside the shim's ledger: the driver's own limits per cgroup (driver 615 and later, through NVML).

The shim counts and refuses, but a program can go around it. Where the driver offers
nvmlDeviceSetMemoryLimits_v1, and cgroups are version 2, the kernel refuses as well, for every process of the job.
The limit is put on the job's cgroup and on each leaf below it: the driver shows the cap as the card's size only
to processes of a cgroup that has the limit itself. The soft limit, which reserves memory and would leak into
the ancestors if a cgroup were removed with it, is never raised.

Written from NVIDIA's documentation and bindings (nvidia-ml-py 13.615); it ran against fakes, not on a 615 driver.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from enforcer.daemon.log import emit
from enforcer.daemon.nvmlworker import NvmlCaller, NvmlStuckError
from enforcer.nvml import Nvml, NvmlError
from gres.grants import RUN_BASE, Grant

FIRST_DRIVER = 615
Setting = Literal["auto", "ledger", "nvml"]
Strength = Literal["hard", "cooperative"]


def cgroup2_root(mounts: Path = Path("/proc/self/mounts")) -> Path | None:
    """Where the unified hierarchy is mounted. One beside version 1 has no device memory controller."""
    try:
        rows = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    if any(len(row) > 2 and row[2] == "cgroup" for row in rows):
        return None
    return next((Path(row[1]) for row in rows if len(row) > 2 and row[2] == "cgroup2"), None)


def job_cgroups(root: Path, job_id: int) -> list[Path]:
    """The job's cgroup and every leaf below it, as slurmd 22.05 and later make them; empty if there is none."""
    found: list[Path] = []
    for job in sorted(root.glob(f"system.slice/*slurmstepd.scope/job_{job_id}")):
        found.append(job)
        found += [path for path in sorted(job.rglob("*")) if path.is_dir() and not _has_directory(path)]
    return found


def _has_directory(path: Path) -> bool:
    try:
        return any(entry.is_dir() for entry in path.iterdir())
    except OSError:
        return False


@dataclass(frozen=True)
class Probe:
    """What this node offers; `why` says why not, `later` whether it may change (the driver is not there yet)."""

    hard: bool
    why: str = ""
    later: bool = False


def probe(nvml: Nvml, root: Path | None) -> Probe:
    """Ask the driver, changing nothing. Raises NvmlError only where the driver itself does not answer."""
    if root is None:
        return Probe(False, "the limits of the driver need cgroup version 2 alone, this node has version 1")
    version = nvml.driver_version()
    match = re.match(r"[0-9]+", version)
    if match is None or int(match[0]) < FIRST_DRIVER:
        return Probe(
            False, f"driver {version} has no limits per cgroup; {FIRST_DRIVER} is the first that has"
        )
    cards = nvml.cards()
    if not cards:
        return Probe(False, "the driver sees no card", later=True)
    try:
        nvml.memory_limits(cards[0].uuid, str(root))
    except NvmlError as error:
        return Probe(False, f"driver {version} refuses limits per cgroup: {error}")
    return Probe(True)


@dataclass(frozen=True)
class _Limit:
    job_id: int
    uuid: str
    cgroup: Path


@dataclass
class MemoryBackend:
    """Keeps the driver's limits in step with the grants. Without support it does nothing and says why."""

    setting: Setting
    nvml: NvmlCaller
    root: Path | None
    _probe: Probe | None = None
    _before: dict[_Limit, int] = field(default_factory=dict)
    _failed: set[int] = field(default_factory=set)

    def check(self) -> Probe:
        """What this node offers; asked again while the driver was not there."""
        if self.setting == "ledger":
            return Probe(False, "enforcer.memory_backend is ledger")
        if self._probe is None or self._probe.later:
            old = self._probe
            try:
                self._probe = self.nvml.call(lambda nvml: probe(nvml, self.root))
            except NvmlError as error:
                self._probe = Probe(False, str(error), later=True)
            if self._probe != old:
                name = "nvml" if self._probe.hard else "ledger"
                emit(
                    logging.INFO,
                    "memory-backend",
                    name=name,
                    strength=self.strength,
                    why=self._probe.why or None,
                )
        return self._probe

    @property
    def strength(self) -> Strength:
        """How caps hold on this node: hard (the kernel refuses), or cooperative (the shim does)."""
        return "hard" if self._probe is not None and self._probe.hard else "cooperative"

    def fault(self) -> str:
        """Why no job may start: the configuration demands what the node does not offer. Empty if it may."""
        if self.setting != "nvml":
            return ""
        found = self.check()
        return "" if found.hard else f"enforcer.memory_backend is nvml, but {found.why}"

    def wanted(self, grants: Mapping[int, Grant]) -> bool:
        """Whether `apply` can ever have something to do with these grants."""
        return self.root is not None and self.strength == "hard" and bool(grants)

    def apply(self, grants: Iterable[Grant]) -> None:
        """Set the limits of cgroups that appeared since the last time. Cheap when there is nothing to do."""
        if self.root is None or self.strength != "hard":
            return
        for grant in grants:
            # A program of `qgpu run` stays in its user's cgroup, which is not ours to limit.
            if grant.state != "active" or grant.job_id >= RUN_BASE or grant.job_id in self._failed:
                continue
            for cgroup in job_cgroups(self.root, grant.job_id):
                for card in grant.cards:
                    if card.mem_cap < card.mem_total:
                        self._set(_Limit(grant.job_id, card.uuid, cgroup), card.mem_cap)

    def _set(self, limit: _Limit, cap: int) -> None:
        if limit in self._before:
            return
        self._before[limit] = cap  # until the driver says what it was, and so that it is asked once

        def work(nvml: Nvml) -> int:
            before = nvml.memory_limits(limit.uuid, str(limit.cgroup)).hard
            nvml.set_memory_limits(limit.uuid, str(limit.cgroup), 0, cap)
            return before

        self.nvml.start(work, lambda result: self._was_set(limit, result))

    def _was_set(self, limit: _Limit, result: int | NvmlError) -> None:
        if isinstance(result, int):
            self._before[limit] = result
            emit(logging.DEBUG, "memory-limit", job=limit.job_id, card=limit.uuid, cgroup=limit.cgroup)
            return
        self._before.pop(limit, None)
        if isinstance(result, NvmlStuckError):
            return  # said elsewhere; tried again with the next look
        if limit.cgroup.exists() and limit.job_id not in self._failed:
            self._failed.add(limit.job_id)
            emit(logging.ERROR, "memory-limit-failed", job=limit.job_id, card=limit.uuid, why=result)

    def release(self, job_id: int) -> None:
        """Take the job's limits away before slurmd removes its cgroups."""
        self._failed.discard(job_id)
        for limit in [limit for limit in self._before if limit.job_id == job_id]:
            before = self._before.pop(limit)
            if limit.cgroup.exists():
                self._clear(limit, before)

    def _clear(self, limit: _Limit, before: int) -> None:
        def work(nvml: Nvml) -> bool:
            nvml.set_memory_limits(limit.uuid, str(limit.cgroup), 0, before)
            return True

        def done(result: bool | NvmlError) -> None:
            if isinstance(result, NvmlError) and limit.cgroup.exists():
                emit(logging.WARNING, "memory-limit-left", job=limit.job_id, card=limit.uuid, why=result)

        self.nvml.start(work, done)
