"""The simulated driver's reader of modules by itself: fatbins, machine code and PTX, under
AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import struct
from pathlib import Path

import images
import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from image_reader import INVALID_IMAGE, INVALID_PTX, NO_BINARY, READ, Reader, Seen, damaged
from images import Kernel, Variable
from sim_tools import make

pytestmark = pytest.mark.native


KERNELS = (
    Kernel("_Z3addPfi", ((0, 8), (8, 4)), registers=40, shared=512, bounds=(128, 2, 1)),
    Kernel("wide", ((0, 4), (4, 8000), (8008, 8)), registers=255, wide=True),
    Kernel("none", ()),
)
VARIABLES = (
    Variable("table", 400),
    Variable("start", 4, ".nv.global.init", b"\1\2\3\4"),
    Variable("shown", 8, ".nv.global.init", b"\x2a", managed=True),
    Variable("factor", 112, ".nv.constant3", b"\7"),
)
PTX = b"""
// a comment with .entry not_one()
.version 8.4
.target sm_80, texmode_independent
.address_size 64
.extern .global .align 4 .b8 elsewhere[4];
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.visible .global .align 16 .b8 table[5][4];
.const .align 4 .u32 factor[] = {0x7, 8, -1};
.global .attribute(.managed) .align 8 .f64 shown = 0d3FF0000000000000;
.global .u64 place = generic(table);
.global .v2 .f32 pair, single[2];
.func helper(.param .b64 x) { .shared .b8 not_counted[9]; { ret; } }
.visible .entry add(.param .u64 .ptr .global .align 16 add_0, .param .u8 add_1,
    .param .align 8 .b8 add_2[12], .param .u16 add_3) .maxntid 128, 2, 1 .minnctapersm 2
{ .shared .align 8 .b8 a[10]; .reg .b32 %r<2>; ld.global.u32 %r1, [%r0];
  { .shared .u32 b; } st.shared.v2.u32 [a], {%r0, %r1}; /* } */ ret; }
.entry declared(.param .u32 x);
.visible .entry _Z4noneILi0EEvv() { ret; }
"""


def whole(seen: Seen, arch: int) -> None:
    """What images.cubin() was asked for."""
    assert (seen.status, seen.arch, seen.words) == (0, arch, ["code"])
    assert seen.kernels == {
        "_Z3addPfi": ["40", "512", "0", "256", "12", "0:8", "8:4"],
        "none": ["32", "0", "0", "0", "0"],
        "wide": ["255", "0", "0", "0", "8016", "0:4", "4:8000", "8008:8"],
    }
    assert seen.globals == {
        "factor": ["constant", "112", "07".ljust(128, "0")],
        "shown": ["managed", "8", "2a".ljust(16, "0")],
        "start": ["device", "4", "01020304"],
        "table": ["device", "400"],
    }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("arch", [80, 90])
def test_machine_code(reader: Reader, arch: int, old: bool) -> None:
    code = images.cubin(KERNELS, VARIABLES, arch, old)
    seen = reader.read(code)
    assert seen.status == (0 if arch == 90 else NO_BINARY)
    seen.status = 0
    whole(seen, arch)


@pytest.mark.parametrize("flags", [images.PLAIN, images.LZ4, images.ZSTD])
def test_a_container_has_it_in_each_compression(reader: Reader, flags: int) -> None:
    code = images.cubin(KERNELS, VARIABLES)
    whole(reader.read(images.fatbin(images.entry(code, flags=flags))), 90)
    seen = reader.read(images.fatbin(images.entry(PTX, images.PTX_ENTRY, 80, flags)))
    assert (seen.status, seen.words, list(seen.kernels)) == (0, ["ptx"], ["_Z4noneILi0EEvv", "add"])


def test_text(reader: Reader) -> None:
    seen = reader.read(PTX)
    assert (seen.status, seen.arch) == (0, 80)
    assert seen.kernels == {
        "_Z4noneILi0EEvv": ["0", "0", "0", "0", "0"],
        "add": ["0", "16", "0", "256", "30", "0:8", "8:1", "16:12", "28:2"],
    }
    assert seen.globals == {
        "factor": ["constant", "12", "0700000008000000ffffffff"],
        "pair": ["device", "8"],
        "place": ["device", "8", "0" * 16],
        "shown": ["managed", "8", "000000000000f03f"],
        "single": ["device", "16"],
        "table": ["device", "20"],
    }


def one(name: str, arch: int, flags: int = images.PLAIN) -> bytes:
    return images.entry(images.cubin((Kernel(name),), (), arch), arch=arch, flags=flags)


def text(name: str, arch: int, flags: int = images.PLAIN) -> bytes:
    ptx = f".version 8.4\n.target sm_{arch}\n.entry {name}() {{ ret; }}".encode()
    return images.entry(ptx, images.PTX_ENTRY, arch, flags)


@pytest.mark.parametrize(
    ("entries", "status", "name"),
    [
        ([one("a", 80), one("b", 90), one("c", 100)], 0, "b"),
        ([one("b", 90), one("a", 90, images.PLAIN | images.SPECIFIC)], 0, "a"),
        ([text("p", 90), one("b", 90), text("q", 80)], 0, "b"),
        ([one("a", 80), text("p", 80), text("q", 75)], 0, "p"),
        ([text("p", 75), text("q", 90), text("r", 100)], 0, "q"),
        ([one("a", 80)], NO_BINARY, "a"),
        ([one("a", 100), text("p", 100)], NO_BINARY, "a"),
        ([text("p", 80, images.PLAIN | images.SPECIFIC)], NO_BINARY, "p"),
        ([text("p", 80, images.PLAIN | 0x200000)], NO_BINARY, "p"),  # of a family
        ([text("p", 90, images.PLAIN | 0x200000)], 0, "p"),
        ([], NO_BINARY, None),
        ([images.entry(b"an archive", 8)], NO_BINARY, None),
    ],
)
def test_the_part_that_fits_the_card(
    reader: Reader, entries: list[bytes], status: int, name: str | None
) -> None:
    seen = reader.read(images.fatbin(*entries))
    assert (seen.status, list(seen.kernels)) == (status, [name] if name else [])


def test_any_name_is_taken_where_the_library_lacks(tmp_path: Path) -> None:
    make("build/test/sim-image-test")
    for name in ("liblz4.so.1", "libzstd.so.1"):
        (tmp_path / name).write_text("no library")
    program = Reader(LD_LIBRARY_PATH=str(tmp_path))
    code = images.cubin(KERNELS)
    for flags, name in ((images.LZ4, "liblz4.so.1"), (images.ZSTD, "libzstd.so.1")):
        seen = program.read(images.fatbin(images.entry(code, flags=flags)))
        assert (seen.status, seen.words) == (0, ["code", "any", "lacks", name])
        assert not seen.kernels
    program.end()


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x7fELF",
        b"\0" * 100,
        b"\x50\xed\x55\xba",
        b"MZ\x90\0" + b"\0" * 96,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 8),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 0xFFFF, 0),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64),
        images.fatbin(images.entry(b"no code", flags=images.PLAIN)),
        images.fatbin(images.entry(bytes(2000), flags=images.LZ4))[:-900],
    ],
)
def test_what_is_no_module_is_refused(reader: Reader, broken: bytes) -> None:
    assert reader.status(broken) == INVALID_IMAGE


@pytest.mark.parametrize("flags", [images.LZ4, images.ZSTD])
@pytest.mark.parametrize("claimed", [0, 5, 2001, 2**30, 2**30 + 1, 2**63])
def test_a_size_that_is_not_the_unpacked_one_is_refused(
    reader: Reader, flags: int, claimed: int
) -> None:
    part = bytearray(images.entry(images.cubin(KERNELS).ljust(2000, b"\0"), flags=flags))
    part[56:64] = struct.pack("<Q", claimed)
    assert reader.status(images.fatbin(bytes(part))) == INVALID_IMAGE


@pytest.mark.parametrize(
    "ptx",
    [
        b".target sm_80 .entry a() { }",  # no version
        b".version 8.0 .entry a(",
        b".version 8.0 .entry a() {",
        b".version 8.0 .entry",
        b".version 8.0 .global .u32",
        b".version 8.0 .global .u32 a[4",
        b".version 8.0 .global .u32 a[99999999999999999999];",
        b".version 8.0 .global .u32 a[4294967296][4294967296];",
        b".version 8.0 .entry a(.param .b8 x[32765]) { }",
        b".version 8.0 .entry a(.param .b8 x[4] .u32) { }",
        b".version 8.0 .const .u32 a = {1",
    ],
)
def test_text_that_is_cut_or_too_large_is_refused(reader: Reader, ptx: bytes) -> None:
    assert reader.status(ptx) == INVALID_PTX


# ---- hostile bytes ----


def valid() -> list[bytes]:
    code = images.cubin(KERNELS, VARIABLES)
    old = images.cubin(KERNELS, VARIABLES, 90, True)
    ptx = images.entry(PTX, images.PTX_ENTRY, 80)
    return [
        code,
        old,
        PTX,
        images.fatbin(images.entry(code), ptx),
        images.fatbin(ptx, images.entry(old, flags=images.LZ4)),
        images.fatbin(images.entry(code, flags=images.ZSTD)),
    ]


@given(damaged(valid()))
@examples(4000)
def test_damaged_modules_harm_nobody(reader: Reader, data: bytes) -> None:
    assert reader.status(data) in READ


PIECES = [
    *(b".version 8.0\n", b".target sm_90 ", b".entry ", b"a", b"b ", b"(", b")", b"{", b"}"),
    *(b"[", b"]", b",", b";", b"=", b'"', b"//", b"/*", b"*/", b"\n", b"\0", b".param "),
    *(b".align ", b".b8 ", b".u64 ", b".global ", b".const ", b".shared ", b".extern "),
    *(b".maxntid ", b"4", b" 99999999999 ", b".attribute(.managed) ", b".v4 ", b".f16x2 "),
    *(b".pragma ", b'"qgpu any name"', b".func ", b".b128 ", b"-1 ", b"0x"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
@examples(2000)
def test_text_of_pieces_harms_nobody(reader: Reader, text: bytes) -> None:
    assert reader.status(b".version 8.0 " + text) in (0, INVALID_PTX)


def test_a_name_that_many_symbols_share_has_a_limit(reader: Reader) -> None:
    """Names are copied: 65536 kernels with one name of 60 kB would take 4 GB."""
    code = bytearray(images.cubin((Kernel("k" * 60000),) + (Kernel("x"),) * 3000))
    table = struct.unpack_from("<Q", code, 40)[0]
    symbols, size = struct.unpack_from("<QQ", code, table + 3 * 64 + 24)
    name = struct.unpack_from("<I", code, symbols + 24)[0]
    for at in range(symbols + 24, symbols + size, 24):
        struct.pack_into("<I", code, at, name)
    assert reader.status(bytes(code)) == INVALID_IMAGE
