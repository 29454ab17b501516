"""NVML as a port: which cards there are, and which processes hold memory on them.

`PynvmlNvml` is the adapter on nvidia-ml-py (module `pynvml`), `FakeNvml` the fake that ships for tests and
for running qgpud without a card. Cards are keyed by UUID; memory is bytes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class NvmlError(RuntimeError):
    """NVML does not answer; the text is a sentence for an administrator."""


class CardLostError(NvmlError):
    """One card does not answer any more (fallen off the bus, or being reset)."""


@dataclass(frozen=True)
class CardInfo:
    """One card as the driver reports it. `minor` is that of its device file, `mem_total` is bytes."""

    uuid: str
    minor: int
    name: str
    mem_total: int


@dataclass(frozen=True)
class GpuProcess:
    """One process on a card; `mem_used` is bytes, None where the driver does not tell."""

    pid: int
    mem_used: int | None


class Nvml(Protocol):
    """What qgpud asks the driver. Every call raises NvmlError (CardLostError for a single card)."""

    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order."""
        ...

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Processes with a context on the card."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


class FakeNvml:
    """Invented cards. Tests move processes about and let cards or the whole driver disappear."""

    def __init__(self, cards: Iterable[CardInfo] = ()) -> None:
        self._cards = {card.uuid: card for card in cards}
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._lost: set[str] = set()
        self.failure: str | None = None

    @classmethod
    def with_cards(cls, count: int, mem_total: int, first_minor: int = 0, name: str = "fake") -> FakeNvml:
        """`count` cards whose UUIDs end in their minor number."""
        minors = range(first_minor, first_minor + count)
        return cls(CardInfo(f"GPU-fa4e0000-0000-0000-0000-{m:012d}", m, name, mem_total) for m in minors)

    def lose(self, uuid: str) -> None:
        """From now on the card does not answer."""
        self._lost.add(uuid)

    def put(self, uuid: str, *processes: GpuProcess) -> None:
        """Replace the processes on a card."""
        self._processes[uuid] = processes

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

    def close(self) -> None:
        """Nothing to let go of."""

    def _check(self) -> None:
        if self.failure is not None:
            raise NvmlError(self.failure)


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
            raise NvmlError(f"the NVIDIA driver does not answer through NVML: {error}") from None

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
                raise NvmlError(f"driver.nvml: {library} cannot be loaded: {error}") from None
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        pynvml.nvmlInit()

    @_translate
    def cards(self) -> tuple[CardInfo, ...]:
        """All cards that answer, in NVML's order; a lost one is left out."""
        found = [self._card(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return tuple(card for card in found if card is not None)

    def _card(self, index: int) -> CardInfo | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
            total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
            name = _text(nvml.nvmlDeviceGetName(handle))
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_NotFound):
            return None
        self._handles[uuid] = handle
        return CardInfo(uuid, minor, name, total)

    @_translate
    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """Processes with a compute context on the card."""
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        rows = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
        return tuple(GpuProcess(int(row.pid), _memory(row.usedGpuMemory)) for row in rows)

    @_translate
    def close(self) -> None:
        """Let go of the driver."""
        self._handles.clear()
        self._nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older drivers' bindings answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _memory(value: int | None) -> int | None:
    """NVML says all ones for "not available"."""
    return None if value is None or value >= 2**63 else int(value)
