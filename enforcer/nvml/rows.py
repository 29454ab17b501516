"""Reads NVML's lists, each with one call into memory of our own.

The binding calls twice, once for the length, and makes an object per row. On a node with a hundred
processes that was a third of qgpud's cost. Where the binding hides the library's functions, or an
old driver lacks these, the reader returns None and the binding's functions are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROOM = 32  # rows at first; the array grows if a list is longer
SAMPLES = 128  # the same for utilisation: drivers demand 100 regardless, and less is not documented
TRIES = 4  # attempts, since a list may grow while it is read
SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE
LATEST = "_v3"  # suffix of the functions that fill ProcessRow: driver 510 and later
UTILISATION = "nvmlDeviceGetProcessUtilization"


class ProcessRow(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h; memory in bytes, all ones where it is not known."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


class SampleRow(ctypes.Structure):
    """nvmlProcessUtilizationSample_t of nvml.h: microseconds, and percent."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("timeStamp", ctypes.c_ulonglong),
        ("smUtil", ctypes.c_uint),
        ("memUtil", ctypes.c_uint),
        ("encUtil", ctypes.c_uint),
        ("decUtil", ctypes.c_uint),
    )


@dataclass
class _Kept:
    """The array of one list of one card, and the rows made of it.

    Some drivers (535.43 and later) filled rows a third longer, so the array has spare room at its
    end.
    """

    array: Any = None
    room: int = 0
    raw: bytes = b""
    rows: list[Any] = field(default_factory=list)


def _make_room(kept: _Kept, row: type[ctypes.Structure], room: int) -> None:
    kept.array, kept.room, kept.raw, kept.rows = (row * (room + room // 3 + 1))(), room, b"", []


class RowReader:
    """Reads lists through `binding` (module pynvml, or its substitute)."""

    def __init__(self, binding: Any) -> None:
        self._find: Callable[[str], Any] | None = getattr(binding, "_nvmlGetFunctionPointer", None)
        self._error: type[Exception] = binding.NVMLError
        self._unknown: int = binding.NVML_ERROR_FUNCTION_NOT_FOUND
        self._kept: dict[tuple[str, str], _Kept] = {}

    def processes(self, kind: str, uuid: str, handle: Any) -> list[Any] | None:
        """One list of processes, as the same object while it is unchanged. Raises NVMLError."""
        ask = self._function(kind + LATEST)
        if ask is None:
            return None
        return self._read(
            (kind, uuid),
            ProcessRow,
            ROOM,
            lambda array, count: ask(handle, ctypes.byref(count), array),
        )

    def samples(self, uuid: str, handle: Any, since_us: int) -> list[Any] | None:
        """Utilisation by process since then. Raises NVMLError."""
        ask = self._function(UTILISATION)
        if ask is None:
            return None
        since = ctypes.c_ulonglong(since_us)
        return self._read(
            (UTILISATION, uuid),
            SampleRow,
            SAMPLES,
            lambda array, count: ask(handle, array, ctypes.byref(count), since),
        )

    def _function(self, name: str) -> Any:
        if self._find is None:
            return None
        try:
            return self._find(name)
        except self._error as error:
            if getattr(error, "value", None) == self._unknown:
                return None
            raise

    def _read(
        self,
        key: tuple[str, str],
        row: type[ctypes.Structure],
        least: int,
        fill: Callable[[Any, Any], int],
    ) -> list[Any]:
        kept = self._kept.setdefault(key, _Kept())
        if kept.array is None:
            _make_room(kept, row, least)
        for _ in range(TRIES):
            count = ctypes.c_uint(kept.room)
            code = fill(kept.array, count)
            if code != SIZE:
                break
            _make_room(kept, row, max(count.value, least) * 2)
        if code:
            raise self._error(code)
        raw = ctypes.string_at(kept.array, min(count.value, kept.room) * ctypes.sizeof(row))
        if raw != kept.raw or not raw:
            # copies, since callers may keep them while the array is filled anew
            kept.raw, kept.rows = (
                raw,
                list((row * (len(raw) // ctypes.sizeof(row))).from_buffer_copy(raw)),
            )
        return kept.rows
