"""NVML as a port: the cards, and the processes that hold memory on them.

`enforcer.nvml.driver` is the adapter on nvidia-ml-py (module `pynvml`); `simulator.fakes` is
the fake for tests and for qgpud without a card. Cards are keyed by UUID; memory is bytes.
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
    """A lasting fault; any other NVML error may pass within a second.

    No driver or library, another version than the kernel module's, no permission, or a reset is
    needed.
    """


@dataclass(frozen=True)
class CardInfo:
    """One card as the driver reports it. `mem_total` is bytes.

    `minor` is that of its device file. A MIG instance is a card, with the minor of its parent card.
    """

    uuid: str
    minor: int
    name: str
    mem_total: int
    instance: Instance | None = None

    @property
    def place(self) -> Place:
        """The place that device files of gres.conf lead to."""
        return Place(self.minor, self.instance)


@dataclass(frozen=True)
class GpuProcess:
    """One process on a card; `mem_used` is bytes, None if the driver does not report it."""

    pid: int
    mem_used: int | None


@dataclass(frozen=True)
class CardUsage:
    """Usage of one card, in bytes.

    `used` is the whole card without the driver's own reserve. `busy` is percent of the time since
    the last sample, per process with a kernel (0..100); None if not reported or not asked.
    """

    processes: tuple[GpuProcess, ...]
    used: int | None = None
    busy: dict[int, int] | None = None


@dataclass(frozen=True)
class MemoryLimits:
    """The driver's limits of one cgroup on one card, in bytes; without a limit `hard` is the
    largest number.
    """

    soft: int
    hard: int
    used: int


@dataclass(frozen=True)
class CardLoad:
    """Load of a whole card; None if the driver does not report it (MIG: no utilisation)."""

    util_percent: int | None = None
    mem_used: int | None = None


class Nvml(Protocol):
    """What qgpud asks the driver. Each call raises NvmlError (CardLostError for a single card)."""

    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order."""
        ...

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Processes with a context on the card, of any kind."""
        ...

    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """Usage of one card for the audit; without utilisation if `busy` is false."""
        ...

    def load(self, uuid: str) -> CardLoad:
        """Load of the whole card; free of side effects, unlike `usage`."""
        ...

    def free(self, uuid: str) -> int:
        """Bytes of the card that the driver would still give."""
        ...

    def driver_version(self) -> str:
        """The driver's version, such as 580.65.06."""
        ...

    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """Limits of a cgroup (full path of its directory) on a card. Driver 615 and later."""
        ...

    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Set the limits; root only."""
        ...

    def close(self) -> None:
        """Close the library."""
        ...
