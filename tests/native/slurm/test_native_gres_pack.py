"""Class and count in one number, as slurmctld's plugin packs and the node's unpacks it:
gres/native/pack.c alone.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

SOURCE = Path(__file__).resolve().parents[3] / "gres/native/pack.c"
FLAGS = (
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
)
COUNT_MASK = 2**56 - 1
CLASSES = {None: 0, "online": 1, "offline": 2, "h200": 15, "": 15, "Online": 15, "online ": 15}
NAMES = {0: b"none", 1: b"online", 2: b"offline", 15: b"unknown", 7: b"unknown"}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    library = tmp_path_factory.mktemp("pack") / "pack.so"
    subprocess.run(["cc", *FLAGS, "-o", str(library), str(SOURCE)], check=True)
    found = ctypes.CDLL(str(library))
    found.qgn_pack.restype = ctypes.c_uint64
    found.qgn_pack.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
    found.qgn_unpack.restype = ctypes.c_bool
    found.qgn_unpack.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    found.qgn_class_name.restype = ctypes.c_char_p
    yield found


def unpack(pack: ctypes.CDLL, packed: int) -> tuple[int, int] | None:
    count, kind = ctypes.c_uint64(77), ctypes.c_int(77)
    if not pack.qgn_unpack(packed, ctypes.byref(count), ctypes.byref(kind)):
        assert (count.value, kind.value) == (77, 77), "nothing is written where it is none of ours"
        return None
    return count.value, kind.value


@given(st.integers(0, 2**64 - 1), st.sampled_from(list(CLASSES)))
def test_what_is_packed_comes_back(pack: ctypes.CDLL, count: int, word: str | None) -> None:
    packed = pack.qgn_pack(count, None if word is None else word.encode())
    assert packed >> 60 == 0xA
    assert unpack(pack, packed) == (min(count, COUNT_MASK), CLASSES[word])


@given(st.integers(0, 2**64 - 1).filter(lambda number: number >> 60 != 0xA))
def test_a_number_of_another_plugin_is_refused(pack: ctypes.CDLL, number: int) -> None:
    assert unpack(pack, number) is None


def test_plain_counts_are_no_packed_ones(pack: ctypes.CDLL) -> None:
    """What a slurmctld without the plugin would send: small numbers, and Slurm's marks for none
    and infinite.
    """
    for number in (0, 1, 100, 85899345920, 2**64 - 1, 2**64 - 2, 2**64 - 3):
        assert unpack(pack, number) is None


def test_names(pack: ctypes.CDLL) -> None:
    assert {number: pack.qgn_class_name(number) for number in NAMES} == NAMES
