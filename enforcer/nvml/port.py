"""NVML as a port: which cards there are, and which processes hold memory on them.

`enforcer.nvml.driver` is the adapter on nvidia-ml-py (module `pynvml`), `simulator.nvml_fake` the fake for tests and
for running qgpud without a card. Cards are keyed by UUID; memory is bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gres.config.mig import Instance, Place


class NvmlError(RuntimeError):
    """NVML does not answer; the text is a sentence for an administrator."""


class CardLostError(NvmlError):
    """One card does not answer any more (fallen off the bus, or being reset)."""


class NvmlFaultError(NvmlError):
    """What does not pass by itself: no driver, no library, a library of another version than the kernel module, no
    permission, a card that wants a reset. Whatever else NVML says may be gone in a second."""


@dataclass(frozen=True)
class CardInfo:
    """One card as the driver reports it. `minor` is that of its device file, `mem_total` is bytes; a MIG instance is a
    card of its own, with the minor of the card that it is a part of."""

    uuid: str
    minor: int
    name: str
    mem_total: int
    instance: Instance | None = None

    @property
    def place(self) -> Place:
        """What gres.conf's device files lead to."""
        return Place(self.minor, self.instance)


@dataclass(frozen=True)
class GpuProcess:
    """One process on a card; `mem_used` is bytes, None where the driver does not tell."""

    pid: int
    mem_used: int | None


@dataclass(frozen=True)
class CardUsage:
    """What lies on one card. Bytes; `used` is the whole card without the driver's own reserve, `busy` is percent of
    time per process that had a kernel since the last look (0..100), None where the driver does not tell, or was not
    asked.
    """

    processes: tuple[GpuProcess, ...]
    used: int | None = None
    busy: dict[int, int] | None = None


@dataclass(frozen=True)
class MemoryLimits:
    """The driver's limits of one cgroup on one card, in bytes; without a limit `hard` is the largest number."""

    soft: int
    hard: int
    used: int


@dataclass(frozen=True)
class CardLoad:
    """What a whole card does now, whoever uses it; None where the driver does not tell (MIG: no utilisation)."""

    util_percent: int | None = None
    mem_used: int | None = None


class Nvml(Protocol):
    """What qgpud asks the driver. Every call raises NvmlError (CardLostError for a single card)."""

    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order."""
        ...

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Processes with a context on the card, of any kind."""
        ...

    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """Everything the audit wants to know of one card; not what its processes did where `busy` is false."""
        ...

    def load(self, uuid: str) -> CardLoad:
        """What the whole card does now; free of side effects, unlike `usage`."""
        ...

    def driver_version(self) -> str:
        """Such as 580.65.06."""
        ...

    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """Limits of a cgroup (full path of its directory) on a card. Driver 615 and later."""
        ...

    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Set them; root only."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
