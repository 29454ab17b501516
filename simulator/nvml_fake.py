"""Invented cards, for tests and for nodes without a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from enforcer.nvml.port import (
    CardInfo,
    CardLoad,
    CardLostError,
    CardUsage,
    GpuProcess,
    MemoryLimits,
    NvmlError,
    NvmlFaultError,
)

UNLIMITED = 2**64 - 1  # the fakes' NVML_DEVICE_MEMORY_LIMIT_MAX; a real driver reports its own


class FakeNvml:
    """Fake cards. Tests place processes, and remove cards or the whole driver."""

    def __init__(self, cards: Iterable[CardInfo] = ()) -> None:
        self._cards = {card.uuid: card for card in cards}
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._used: dict[str, int] = {}
        self._busy: dict[str, dict[int, int]] = {}
        self.tells_busy = True  # False: as with MIG
        self.loads: dict[str, CardLoad] = {}
        self._lost: set[str] = set()
        self.failure: str | None = None
        self.fault: str | None = None  # the same, of the kind that does not pass
        self.version = "580.65.06"
        self.limits: dict[tuple[str, str], tuple[int, int]] = {}
        self.before: Callable[[], object] = lambda: (
            None
        )  # runs in every call: tests hang or count here

    @classmethod
    def with_cards(
        cls, count: int, mem_total: int, first_minor: int = 0, name: str = "fake"
    ) -> FakeNvml:
        """`count` cards whose UUIDs end in their minor number."""
        minors = range(first_minor, first_minor + count)
        return cls(
            CardInfo(f"GPU-fa4e0000-0000-0000-0000-{m:012d}", m, name, mem_total) for m in minors
        )

    def lose(self, uuid: str) -> None:
        """From now on the card does not answer."""
        self._lost.add(uuid)

    def put(
        self,
        uuid: str,
        *processes: GpuProcess,
        used: int | None = None,
        busy: dict[int, int] | None = None,
    ) -> None:
        """Replace the processes on a card; `used` is their sum by default."""
        self._processes[uuid] = processes
        self._used[uuid] = sum(p.mem_used or 0 for p in processes) if used is None else used
        self._busy[uuid] = busy or {}

    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that are not lost."""
        self._check()
        return tuple(card for card in self._cards.values() if card.uuid not in self._lost)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """What `put` said last."""
        self._check()
        if uuid in self._lost or uuid not in self._cards:
            raise CardLostError(f"card {uuid} does not answer: GPU is lost")
        return self._processes.get(uuid, ())

    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """What `put` said last."""
        did = self._busy.get(uuid, {}) if busy and self.tells_busy else None
        return CardUsage(self.processes(uuid), self._used.get(uuid, 0), did)

    def load(self, uuid: str) -> CardLoad:
        """The load in `loads`; else the memory of `put`."""
        self.processes(uuid)
        return self.loads.get(uuid, CardLoad(None, self._used.get(uuid, 0)))

    def driver_version(self) -> str:
        """The value of `version`."""
        self._check()
        return self.version

    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """What was set, on a driver that has limits."""
        self._check_limits(uuid, cgroup)
        soft, hard = self.limits.get((uuid, cgroup), (0, UNLIMITED))
        return MemoryLimits(soft, hard, 0)

    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Remember them; the cgroup must exist."""
        self._check_limits(uuid, cgroup)
        if (soft, hard) == (0, UNLIMITED):
            self.limits.pop((uuid, cgroup), None)
        else:
            self.limits[uuid, cgroup] = (soft, hard)

    def _check_limits(self, uuid: str, cgroup: str) -> None:
        self._check()
        if int(self.version.partition(".")[0]) < 615:
            raise NvmlError("the NVIDIA driver does not answer through NVML: Function Not Found")
        if uuid not in self._cards or not Path(cgroup).is_dir():
            raise NvmlError("the NVIDIA driver does not answer through NVML: Invalid Argument")

    def close(self) -> None:
        """Nothing to release."""

    def _check(self) -> None:
        self.before()
        if self.failure is not None:
            raise NvmlError(self.failure)
        if self.fault is not None:
            raise NvmlFaultError(self.fault)
