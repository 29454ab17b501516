"""NVML as a port: which cards there are, and which processes hold memory on them.

`PynvmlNvml` is the adapter on nvidia-ml-py (module `pynvml`), `FakeNvml` the fake that ships for tests and
for running qgpud without a card. Cards are keyed by UUID; memory is bytes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from gres.mig import Instance, Place

UNLIMITED = 2**64 - 1  # the fakes' NVML_DEVICE_MEMORY_LIMIT_MAX; a real driver is asked what it says

P = ParamSpec("P")
R = TypeVar("R")


class NvmlError(RuntimeError):
    """NVML does not answer; the text is a sentence for an administrator."""


class CardLostError(NvmlError):
    """One card does not answer any more (fallen off the bus, or being reset)."""


class NvmlFaultError(NvmlError):
    """What does not pass by itself: no driver, no library, a library of another version than the kernel module, no
    permission, a card that wants a reset. Whatever else NVML says may be gone in a second."""


# NVML's codes for that (nvml.h): NO_PERMISSION, DRIVER_NOT_LOADED, IRQ_ISSUE, LIBRARY_NOT_FOUND, RESET_REQUIRED,
# OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH.
FAULTS = frozenset({4, 9, 11, 12, 16, 17, 18})


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
    time per process that had a kernel since the last look (0..100), empty where the driver does not tell.
    """

    processes: tuple[GpuProcess, ...]
    used: int | None = None
    busy: dict[int, int] = field(default_factory=dict)


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
        """Processes with a context on the card."""
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


class FakeNvml:
    """Invented cards. Tests move processes about and let cards or the whole driver disappear."""

    def __init__(self, cards: Iterable[CardInfo] = ()) -> None:
        self._cards = {card.uuid: card for card in cards}
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._used: dict[str, int] = {}
        self._busy: dict[str, dict[int, int]] = {}
        self.loads: dict[str, CardLoad] = {}
        self._lost: set[str] = set()
        self.failure: str | None = None
        self.fault: str | None = None  # the same, of the kind that does not pass
        self.version = "580.65.06"
        self.limits: dict[tuple[str, str], tuple[int, int]] = {}
        self.before: Callable[[], object] = lambda: None  # runs in every call: tests hang or count here

    @classmethod
    def with_cards(cls, count: int, mem_total: int, first_minor: int = 0, name: str = "fake") -> FakeNvml:
        """`count` cards whose UUIDs end in their minor number."""
        minors = range(first_minor, first_minor + count)
        return cls(CardInfo(f"GPU-fa4e0000-0000-0000-0000-{m:012d}", m, name, mem_total) for m in minors)

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
        """Replace the processes on a card; `used` is their sum unless it is said."""
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
        did = self._busy.get(uuid, {}) if busy else {}
        return CardUsage(self.processes(uuid), self._used.get(uuid, 0), did)

    def load(self, uuid: str) -> CardLoad:
        """As `loads` says; else the memory that `put` said."""
        self.processes(uuid)
        return self.loads.get(uuid, CardLoad(None, self._used.get(uuid, 0)))

    def driver_version(self) -> str:
        """As `version` says."""
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
        """Nothing to let go of."""

    def _check(self) -> None:
        self.before()
        if self.failure is not None:
            raise NvmlError(self.failure)
        if self.fault is not None:
            raise NvmlFaultError(self.fault)


def _translate(function: Callable[P, R]) -> Callable[P, R]:
    """Turn every NVMLError into our own exception, so that nobody else needs pynvml."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        import pynvml

        try:
            return function(*args, **kwargs)
        except pynvml.NVMLError_GpuIsLost as error:
            raise CardLostError(f"a card does not answer: {error}") from None
        except pynvml.NVMLError as error:
            kind = NvmlFaultError if error.value in FAULTS else NvmlError
            raise kind(f"the NVIDIA driver does not answer through NVML: {error}") from None

    return wrapped


class PynvmlNvml:
    """The real driver (or the simulated one) through nvidia-ml-py."""

    @_translate
    def __init__(self, library: str = "auto") -> None:
        """`library` is an absolute path of libnvidia-ml.so.1, or "auto" for the loader's search path."""
        import pynvml

        if library != "auto":
            # pynvml asks the loader for libnvidia-ml.so.1, and one of that SONAME is loaded already then.
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NvmlFaultError(f"driver.nvml: {library} cannot be loaded: {error}") from None
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._seen_us: dict[str, int] = {}
        pynvml.nvmlInit()

    @_translate
    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order; a lost one is left out. In place of a card in MIG mode stand its
        instances, which may be none."""
        return tuple(
            card for index in range(self._nvml.nvmlDeviceGetCount()) for card in self._cards_at(index)
        )

    def _cards_at(self, index: int) -> list[CardInfo]:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
            found = mig_handles(nvml, handle)
            if found is None:
                return [self._card(handle, minor)]
            return [self._card(each, minor, instance) for each, instance in found]
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NotFound):
            return []

    def _card(self, handle: Any, minor: int, instance: Instance | None = None) -> CardInfo:
        uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        total = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        name = _text(self._nvml.nvmlDeviceGetName(handle))
        self._handles[uuid] = handle
        return CardInfo(uuid, minor, name, total, instance)

    @_translate
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Processes with a compute context on the card."""
        return self._processes(self._handle(uuid))

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        rows = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return tuple(GpuProcess(int(row.pid), _memory(row.usedGpuMemory)) for row in rows)

    @_translate
    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """Processes, memory of the whole card, and utilisation, which old cards and drivers do not tell."""
        handle = self._handle(uuid)
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError:
            info = None  # before driver 510: `used` would hold the driver's own reserve as well
        used = None if info is None else int(info.used)
        return CardUsage(self._processes(handle), used, self._busy(uuid, handle) if busy else {})

    @_translate
    def load(self, uuid: str) -> CardLoad:
        """Utilisation over the driver's last sample period, and memory in use."""
        handle = self._handle(uuid)
        try:
            util: int | None = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError_NotSupported:
            util = None  # a MIG instance
        return CardLoad(util, int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))

    def _busy(self, uuid: str, handle: Any) -> dict[int, int]:
        try:
            rows = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us.get(uuid, 0))
        except self._nvml.NVMLError:
            return {}  # NOT_FOUND: nobody worked since then
        self._seen_us[uuid] = max([int(row.timeStamp) for row in rows], default=self._seen_us.get(uuid, 0))
        return {int(row.pid): int(row.smUtil) for row in rows}

    @_translate
    def driver_version(self) -> str:
        """Such as 580.65.06."""
        return _text(self._nvml.nvmlSystemGetDriverVersion())

    @_translate
    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """Ask the driver; a binding or a library without the function is an NvmlError as well."""
        limits = _limits(self._nvml, "c_nvmlGetMemoryLimits_v1_t")
        limits.nameSpace = cgroup.encode()
        self._nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), limits)
        return MemoryLimits(int(limits.softLimit), int(limits.hardLimit), int(limits.currentUsed))

    @_translate
    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Tell the driver."""
        limits = _limits(self._nvml, "c_nvmlSetMemoryLimits_v1_t")
        limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), soft, hard
        self._nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), limits)

    @_translate
    def close(self) -> None:
        """Let go of the driver."""
        self._handles.clear()
        self._nvml.nvmlShutdown()


def mig_handles(nvml: Any, card: Any) -> list[tuple[Any, Instance]] | None:
    """Handles of the MIG instances of a card; None where it is not in MIG mode. Places without one are passed over."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(card)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None  # a card, or a driver, without MIG
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except nvml.NVMLError_NotFound:
            continue
        gi, ci = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        found.append((handle, Instance(int(gi), int(ci))))
    return found


def _limits(nvml: Any, name: str) -> Any:
    if not hasattr(nvml, name):
        raise NvmlError("nvidia-ml-py is older than 13.615 and does not know limits per cgroup: upgrade it")
    return getattr(nvml, name)()


def _text(value: str | bytes) -> str:
    """Older drivers' bindings answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _memory(value: int | None) -> int | None:
    """NVML says all ones for "not available"."""
    return None if value is None or value >= 2**63 else int(value)
