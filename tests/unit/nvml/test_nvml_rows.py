"""NVML's lists read at once: what a library fills in, grows, refuses or does not have."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.nvml.rows import ROOM, TRIES, RowReader

KIND = "nvmlDeviceGetComputeRunningProcesses"
GONE = 2**64 - 1


class Library:
    """NVML's functions as nvml.h says: `rows` are what it would list, `code` what it answers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.code = 0
        self.calls: list[int] = []
        self.growth = 1

    def processes(self, handle: object, count, array) -> int:
        assert handle == "card"
        room = self._begin(count)
        assert len(array) >= room * 4 // 3, (
            "a driver that fills longer rows must not write behind it"
        )
        if self.code or len(self.rows) > room:
            self.rows = self.rows * self.growth
            return self.code or pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for row, (pid, held) in zip(array, self.rows, strict=False):
            row.pid, row.usedGpuMemory = pid, held
        return 0

    def samples(self, handle: object, array, count, since) -> int:
        assert handle == "card"
        new = [(pid, stamp) for pid, stamp in self.rows if stamp > since.value]
        room = self._begin(count, len(new))
        if self.code or not new:
            return self.code or pynvml.NVML_ERROR_NOT_FOUND
        if len(new) > room:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for row, (pid, stamp) in zip(array, new, strict=False):
            row.pid, row.timeStamp, row.smUtil = pid, stamp, 50
        return 0

    def _begin(self, count, length: int | None = None) -> int:
        room = count._obj.value
        self.calls.append(room)
        count._obj.value = len(self.rows) if length is None else length
        return room


def made(**functions: object) -> tuple[RowReader, Library]:
    library = Library()
    known = {
        KIND + "_v3": library.processes,
        "nvmlDeviceGetProcessUtilization": library.samples,
    } | functions

    def find(name: str) -> object:
        if known.get(name) is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return known[name]

    binding = SimpleNamespace(
        _nvmlGetFunctionPointer=find,
        NVMLError=pynvml.NVMLError,
        NVML_ERROR_FUNCTION_NOT_FOUND=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )
    return RowReader(binding), library


def listed(reader: RowReader) -> list[tuple[int, int]]:
    return [(row.pid, row.usedGpuMemory) for row in reader.processes(KIND, "u", "card") or []]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(0, GONE)), max_size=200), max_size=5)
)
def test_what_is_read_is_what_the_library_lists_each_time(lists):
    reader, library = made()
    for rows in lists:
        library.rows = rows
        assert listed(reader) == rows


def test_one_call_is_enough_once_there_is_room():
    reader, library = made()
    library.rows = [(pid, 1) for pid in range(3 * ROOM)]
    for _ in range(3):
        assert len(listed(reader)) == 3 * ROOM
    assert library.calls == [ROOM] + [6 * ROOM] * 3


def test_the_same_list_is_the_same_object_and_another_one_does_not_change_it():
    reader, library = made()
    library.rows = [(1, 5), (2, 6)]
    first = reader.processes(KIND, "u", "card")
    assert reader.processes(KIND, "u", "card") is first
    library.rows = [(1, 7), (3, 6)]
    second = reader.processes(KIND, "u", "card")
    assert second is not first and [row.pid for row in first or []] == [1, 2], (
        "the old one is still read"
    )
    assert reader.processes(KIND, "v", "card") is not second, "another card has its own"


def test_lists_shrink_to_nothing():
    reader, library = made()
    library.rows = [(1, 5)]
    assert listed(reader) == [(1, 5)]
    library.rows = []
    assert listed(reader) == []
    library.rows = [(1, 5)]
    assert listed(reader) == [(1, 5)]


def test_a_list_that_grows_faster_than_it_is_read_is_an_error_and_no_endless_loop():
    reader, library = made()
    library.rows, library.growth = [(1, 1)] * (ROOM + 1), 4
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        listed(reader)
    assert len(library.calls) == TRIES


def test_what_the_library_refuses_is_its_own_error():
    reader, library = made()
    library.code = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        listed(reader)
    library.code, library.rows = 0, [(1, 1)]
    assert listed(reader) == [(1, 1)]


def test_samples_are_those_since_then_and_none_is_an_error_as_in_the_binding():
    reader, library = made()
    library.rows = [(1, 10), (2, 20)]
    assert [(r.pid, r.timeStamp, r.smUtil) for r in reader.samples("u", "card", 10) or []] == [
        (2, 20, 50)
    ]
    with pytest.raises(pynvml.NVMLError_NotFound):
        reader.samples("u", "card", 20)


def test_older_drivers_and_other_bindings_are_left_to_the_ordinary_functions():
    reader, _ = made(**{KIND + "_v3": None})
    assert reader.processes(KIND, "u", "card") is None
    plain = SimpleNamespace(NVMLError=pynvml.NVMLError, NVML_ERROR_FUNCTION_NOT_FOUND=13)
    assert RowReader(plain).processes(KIND, "u", "card") is None
    assert RowReader(plain).samples("u", "card", 0) is None


def test_a_library_that_is_not_initialised_is_an_error():
    def find(_: str) -> object:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    binding = SimpleNamespace(
        _nvmlGetFunctionPointer=find, NVMLError=pynvml.NVMLError, NVML_ERROR_FUNCTION_NOT_FOUND=13
    )
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        RowReader(binding).processes(KIND, "u", "card")
