"""Variables of modules and limits of contexts: after each step ledger and simulated card agree.

The numbers are MiB, as in test_shim_memory_groups.py; the program is
tests/native/programs/memory/mem_module.c.
"""

from __future__ import annotations

import struct
from pathlib import Path

import images
import pytest
from images import Kernel, Variable
from shim_memory_support import CONTEXT, MIB, node, walk

from enforcer.wire import abi

pytestmark = pytest.mark.native

WORK = (Kernel("work"),)
SIZE = 64 * MIB - 4096  # the simulated driver needs some bytes before the first variable
STEPS = """begin 0 loaded 64 from_file 128 from_text 192 refused 192 full 256 unloaded 64
all_unloaded 0 no_modules 0 with_managed 96 managed_unloaded 0 linked 64 link_gone 0
libraries 0 no_kernel 0 launched 64 as_module 128 used_again 128 one_left 64 libraries_gone 0
managed 96 too_large 0 not_there 0 listed 64 in_another 128 another_gone 64
launch_refused 224 launched_there 128 there_gone 64 kernels_gone 0
heap 64 stack 196 limits_refused 196 fifo 228 stack_lowered 96 heap_lowered 64
before_reset 192 reset 0 library_stayed 64 second_context 256"""

# where a second context is
SECOND = {"in_another", "launch_refused", "launched_there", "second_context"}


def cubin(size: int, *more: Variable) -> bytes:
    return images.cubin(WORK, (Variable("table", size), *more))


def text(size: int) -> bytes:
    """The same as PTX."""
    return (
        f".version 8.0\n.target sm_90\n.address_size 64\n"
        f".visible .global .align 4 .b8 table[{size}];\n.visible .entry work() {{ ret; }}\n"
    ).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The images that the program loads."""
    broken = bytearray(cubin(SIZE))
    struct.pack_into("<H", broken, 62, 4000)  # where the names of sections are
    managed = Variable("shown", 32 * MIB - 4096, managed=True)
    files = {
        "plain.cubin": cubin(SIZE),
        "packed.fatbin": images.fatbin(
            images.entry(cubin(200 * MIB), arch=80),
            images.entry(cubin(SIZE), flags=images.ZSTD),
            images.entry(text(SIZE), images.PTX_ENTRY, 90, images.LZ4),
        ),
        "text.ptx": text(SIZE),
        "large.cubin": cubin(257 * MIB),
        "endless.cubin": cubin(2**64 - 1),
        "managed.cubin": images.cubin(WORK, (managed, Variable("table", SIZE))),
        "little.cubin": cubin(MIB),
        "broken.cubin": bytes(broken),
    }
    place = tmp_path / "images"
    place.mkdir()
    for name, data in files.items():
        (place / name).write_bytes(data)
    return place


@pytest.mark.parametrize("sanitizer", ["", "asan"], ids=["plain", "asan"])
def test_modules_libraries_and_limits(tmp_path: Path, folder: Path, sanitizer: str) -> None:
    words = STEPS.split()
    with node(tmp_path) as running:
        program = running.run("mem_module", str(folder), sanitizer=sanitizer)
        for name, mib in zip(words[::2], map(int, words[1::2]), strict=True):
            # a second context is NVML's to tell, not ours
            context = CONTEXT if name in SECOND else 0
            assert (name, program.at(name) / MIB) == (name, mib + context / MIB)
            assert (name, program.used() / MIB) == (name, mib)
            program.on()
        program.pass_by("context_gone", 64 * MIB)
        program.pass_by("end", 0)
        assert (program.at("little") > 0, program.used()) == (True, 0)
        program.on()
        error = program.end()
    assert error.count("qgpu: ") == 1 and len(error.splitlines()) == 1, error
    assert "allocation of 258.0 MiB refused: job 4711 holds 192.0 of 256.0 MiB" in error


def test_with_eager_loading_a_library_counts_at_once(tmp_path: Path, folder: Path) -> None:
    steps = [("begin", 0), ("loaded", 64), ("refused", 64), ("unloaded", 0)]
    assert "allocation of 258.0 MiB refused" in walk(tmp_path, f"mem_module {folder} eager", steps)


def test_managed_variables_that_are_resident_come_in_by_nvml(tmp_path: Path, folder: Path) -> None:
    with node(tmp_path) as running:
        running.card_flags = abi.GRANT_CARD_MANAGED_RESIDENT
        program = running.run("mem_module", str(folder), "resident")
        program.pass_by("begin", 0)
        for name in ("module", "library"):
            assert (name, program.at(name)) == (name, 96 * MIB)
            assert program.used() == 64 * MIB
            program.on()
        program.pass_by("unloaded", 0)
        assert program.end() == ""
