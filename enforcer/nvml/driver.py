"""NVML of the real driver (or the simulated one), through nvidia-ml-py."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from enforcer.nvml.nvlink import count_links
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
from enforcer.nvml.rows import RowReader
from gres.config.mig import Instance
from gres.printable import printable

P = ParamSpec("P")
R = TypeVar("R")

# NVML's codes of lasting faults (nvml.h): NO_PERMISSION, DRIVER_NOT_LOADED, IRQ_ISSUE,
# LIBRARY_NOT_FOUND, RESET_REQUIRED, OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH.
FAULTS = frozenset({4, 9, 11, 12, 16, 17, 18})
# SUCCESS without a row, NOT_FOUND: no process worked since the last sample
NO_PROCESS = frozenset({0, 6})
OTHERS_EACH = 10  # samples between two reads of lists that were empty, to save calls
QUIET, QUIET_EACH = 10, 3  # idle samples before each third one alone reads utilisation
LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


def _translate(function: Callable[P, R]) -> Callable[P, R]:
    """Turn each NVMLError into our own exception, so that no other module needs pynvml."""

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
        """`library` is an absolute path of libnvidia-ml.so.1, or "auto" for the loader's search
        path.
        """
        import pynvml

        if library != "auto":
            # pynvml loads libnvidia-ml.so.1; the loader then returns this one, as its SONAME is the
            # same.
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NvmlFaultError(f"driver.nvml: {library} cannot be loaded: {error}") from None
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._seen_us: dict[str, int] = {}
        self._quiet: dict[str, int] = {}
        self._leisure: dict[str, tuple[list[Any], int, list[Any]]] = {}
        self._rows = RowReader(pynvml)
        self._united: dict[str, tuple[list[Any], tuple[GpuProcess, ...]]] = {}
        pynvml.nvmlInit()

    @_translate
    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order, without lost ones.

        The instances of a card in MIG mode, maybe none, stand in its place.
        """
        return tuple(
            card
            for index in range(self._nvml.nvmlDeviceGetCount())
            for card in self._cards_at(index)
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
        """Processes with a context on the card, for computing (under MPS too) or graphics."""
        return _united([row for kind in LISTS for row in self._listed(kind, uuid)])

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _listed(self, kind: str, uuid: str) -> list[Any]:
        """One of NVML's lists. Old drivers, bindings or cards may lack all but compute."""
        nvml = self._nvml
        try:
            handle = self._handle(uuid)
            rows = self._rows.processes(kind, uuid, handle)
            return list(getattr(nvml, kind)(handle)) if rows is None else rows
        except (AttributeError, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            if kind == LISTS[0]:
                raise
            return []

    def _others(self, uuid: str, compute: list[Any]) -> list[Any]:
        """The other lists; if they were empty, read at every tenth sample or when compute changed.

        They are nearly always empty. Three calls per card and second cost a third of an idle node's
        time.
        """
        before, times, found = self._leisure.get(uuid, ([], OTHERS_EACH, []))
        same = before is compute or [row.pid for row in before] == [row.pid for row in compute]
        if not found and same and times < OTHERS_EACH:
            self._leisure[uuid] = compute, times + 1, found
            return found
        found = [row for kind in LISTS[1:] for row in self._listed(kind, uuid)]
        self._leisure[uuid] = compute, 1, found
        return found

    def _processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """All processes of the card; the same object while only compute has rows and they are
        unchanged.
        """
        compute = self._listed(LISTS[0], uuid)
        others = self._others(uuid, compute)
        if others:
            return _united(compute + others)
        before, found = self._united.get(uuid, (None, ()))
        if before is not compute:
            found = _united(compute)
            self._united[uuid] = compute, found
        return found

    @_translate
    def usage(self, uuid: str, busy: bool = True) -> CardUsage:
        """Processes, memory of the whole card, and utilisation if the card and driver report it."""
        handle = self._handle(uuid)
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError:
            info = None  # before driver 510: `used` would hold the driver's own reserve as well
        used, processes = None if info is None else int(info.used), self._processes(uuid)
        if not busy:
            return CardUsage(processes, used)
        return CardUsage(processes, used, self._at_work(uuid, handle) if processes else {})

    @_translate
    def load(self, uuid: str) -> CardLoad:
        """Utilisation over the driver's last sample period, and memory in use."""
        handle = self._handle(uuid)
        try:
            util: int | None = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except self._nvml.NVMLError_NotSupported:
            util = None  # a MIG instance
        return CardLoad(util, int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used))

    @_translate
    def free(self, uuid: str) -> int:
        """Bytes of the card that the driver would still give."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(uuid)).free)

    def _at_work(self, uuid: str, handle: Any) -> dict[int, int] | None:
        """Percent by process. After idle samples only each third one reads it, which costs less.

        New work then shows two samples later. (The whole card's percent would be cheaper, but
        covers only a moment.)
        """
        quiet = self._quiet.get(uuid, 0)
        self._quiet[uuid] = quiet + 1
        if quiet > QUIET and quiet % QUIET_EACH:
            return {}
        found = self._busy(uuid, handle)
        if found is None or any(found.values()):
            self._quiet[uuid] = 0
        return found

    def _busy(self, uuid: str, handle: Any) -> dict[int, int] | None:
        """Mean of NVML's new samples, by process. Samples above 100 %, seen on some drivers, are
        dropped.
        """
        seen = self._seen_us.get(uuid, 0)
        try:
            found = self._rows.samples(uuid, handle, seen)
            rows = (
                self._nvml.nvmlDeviceGetProcessUtilization(handle, seen) if found is None else found
            )
        except self._nvml.NVMLError as error:
            return {} if error.value in NO_PROCESS else None
        self._seen_us[uuid] = max(
            [int(row.timeStamp) for row in rows if int(row.smUtil) <= 100], default=seen
        )
        samples: dict[int, list[int]] = {}
        for row in rows:
            if int(row.smUtil) <= 100 and int(row.timeStamp) > seen:
                samples.setdefault(int(row.pid), []).append(int(row.smUtil))
        return {pid: round(sum(own) / len(own)) for pid, own in samples.items()}

    @_translate
    def driver_version(self) -> str:
        """The driver's version, such as 580.65.06."""
        return _text(self._nvml.nvmlSystemGetDriverVersion())

    @_translate
    def links(self, uuids: Sequence[str]) -> list[list[int]]:
        """NVLinks of each of these cards to each of them, -1 to itself."""
        return count_links(self._nvml, [self._handle(uuid) for uuid in uuids])

    @_translate
    def memory_limits(self, uuid: str, cgroup: str) -> MemoryLimits:
        """Limits of a cgroup; a binding or library without the function raises NvmlError too."""
        limits = _limits(self._nvml, "c_nvmlGetMemoryLimits_v1_t")
        limits.nameSpace = cgroup.encode()
        self._nvml.nvmlDeviceGetMemoryLimits_v1(self._handle(uuid), limits)
        return MemoryLimits(int(limits.softLimit), int(limits.hardLimit), int(limits.currentUsed))

    @_translate
    def set_memory_limits(self, uuid: str, cgroup: str, soft: int, hard: int) -> None:
        """Set the limits of a cgroup."""
        limits = _limits(self._nvml, "c_nvmlSetMemoryLimits_v1_t")
        limits.nameSpace, limits.softLimit, limits.hardLimit = cgroup.encode(), soft, hard
        self._nvml.nvmlDeviceSetMemoryLimits_v1(self._handle(uuid), limits)

    @_translate
    def close(self) -> None:
        """Close the library."""
        self._handles.clear()
        self._nvml.nvmlShutdown()


def mig_handles(nvml: Any, card: Any) -> list[tuple[Any, Instance]] | None:
    """Handles of the MIG instances of a card; None without MIG mode. Empty places are skipped."""
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
        gi, ci = (
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        )
        found.append((handle, Instance(int(gi), int(ci))))
    return found


def _limits(nvml: Any, name: str) -> Any:
    if not hasattr(nvml, name):
        raise NvmlError(
            "nvidia-ml-py is older than 13.615 and does not know limits per cgroup: upgrade it"
        )
    return getattr(nvml, name)()


def _text(value: str | bytes) -> str:
    """A text of the driver, printable. Older drivers' bindings answer bytes."""
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else value)


def _united(rows: list[Any]) -> tuple[GpuProcess, ...]:
    """Each process once, with the largest memory that a list has."""
    found: dict[int, int | None] = {}
    for row in rows:
        pid, held = int(row.pid), _memory(row.usedGpuMemory)
        seen = found.get(pid)
        found[pid] = held if seen is None else max(seen, held or 0)
    return tuple(GpuProcess(pid, held) for pid, held in found.items())


def _memory(value: int | None) -> int | None:
    """None for NVML's all ones, which means "not available"."""
    return None if value is None or value >= 2**63 else int(value)
