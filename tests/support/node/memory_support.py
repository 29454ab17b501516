"""A node whose driver has memory limits per cgroup, as far as tests need one."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from enforcer.daemon.granting import ending
from enforcer.daemon.limits.backend import MemoryBackend
from enforcer.daemon.node import NodeService
from enforcer.nvml.port import MemoryLimits, NvmlError
from simulator.fakes import FakeNode, FakeNvml


def place(job: int) -> str:
    """The cgroup of a job, as Slurm names it by default."""
    return f"/system.slice/n1_slurmstepd.scope/job_{job}"


class Recorded(dict[int, tuple[str, ...]]):
    """The jobs whose own cgroup is there: each has a slurmstepd on record."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def get(  # type: ignore[override]
        self, job: int, default: object = None
    ) -> tuple[str, ...] | None:
        there = (self._root / place(job).strip("/")).is_dir()
        return super().get(job) or ((place(job),) if there else None)


def tree(root: Path, job: int, *tasks: str) -> Path:
    top = root / place(job).strip("/")
    for task in tasks or ("",):
        (top / task).mkdir(parents=True, exist_ok=True)
    return top


def service_of(node: FakeNode, root: Path | None, setting: str = "auto") -> NodeService:
    service = node.service()
    if root is not None:
        node.job_cgroups = Recorded(root)
    clock, started = node.clock.monotonic_ns, functools.partial(ending.started, service.store)
    how = (setting, service.nvml, root, service.steps, clock, started)
    service.memory = MemoryBackend(*how)  # type: ignore[arg-type]
    service.start()
    return service


class Picky(FakeNvml):
    """A driver that takes limits on some cards and for some cgroups only."""

    def __init__(self, cards=()):  # type: ignore[no-untyped-def]
        super().__init__(cards)
        self.version = "615.12.01"
        self.refuses = lambda uuid, cgroup: False
        self.sets: list[tuple[str, str, int]] = []
        self.used = 0  # by the processes of each cgroup of a job

    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        return replace(super().memory_limits(uuid, cgroup), used=self.used)

    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        self.sets.append((uuid, cgroup, hard))
        if self.refuses(uuid, cgroup):
            raise NvmlError("NVML says: Not Supported")
        super().set_memory_limits(uuid, cgroup, soft, hard)
