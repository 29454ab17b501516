"""The shim's reader of modules by itself, under AddressSanitizer and UndefinedBehaviorSanitizer:
what variables take, and that hostile bytes harm no process.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator

import images
import pytest
import shim_support as s
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from image_reader import damaged
from images import Kernel, Variable

pytestmark = pytest.mark.native

MOST = 2**64 - 1
KERNELS = (Kernel("add", ((0, 8), (8, 4)), shared=512),)
VARIABLES = (
    Variable("table", 5000),
    Variable("start", 4, ".nv.global.init", b"\1\2\3\4"),
    Variable("shown", 800, managed=True),
    Variable("begun", 8, ".nv.global.init", b"\x2a", managed=True),
    Variable("factor", 112, ".nv.constant3", b"\7"),
)
SIZES = (5000 + 4 + 800 + 8 + 112, 808)
CODE = images.cubin(KERNELS, VARIABLES)
PTX = b"""
// a comment with .global .b8 not_one[4];
.version 8.4
.target sm_80, texmode_independent
.extern .global .align 4 .b8 elsewhere[4000];
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.visible .global .align 16 .b8 table[5][4];
.const .align 4 .u32 factor[] = {0x7, 8, -1};
.global .attribute(.managed) .align 8 .f64 shown[3] = {0d3FF0000000000000, 1.0, (2 + 3)};
.global .u64 place = generic(table);
.weak .global .v2 .f32 pair, single[2];
.global .texref image;
.visible .entry add(.param .u64 .ptr .global .align 16 add_0, .param .u8 add_1)
{ .shared .align 8 .b8 a[10]; .global .u32 none; ret; /* } */ }
.global .f16x2 last;
"""
TEXT_SIZES = (20 + 12 + 24 + 8 + 8 + 16 + 4, 24)


class Reader:
    """The test program; it stays for many images."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [str(s.BUILD / "test" / "shim-image-unit")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self, image: bytes) -> tuple[int, int] | None:
        """Bytes of all variables and of the managed ones; None: it could not be read."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(struct.pack("<I", len(image)) + image)
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.communicate()[1].decode()
        read, variables, managed = map(int, line.split())
        return (variables, managed) if read else None


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    one = Reader()
    yield one
    error = one.process.communicate(timeout=60)[1]
    assert one.process.returncode == 0, error.decode()  # what was never freed is a fault, too


@pytest.mark.parametrize("old", [False, True])
def test_machine_code(reader: Reader, old: bool) -> None:
    assert reader.read(images.cubin(KERNELS, VARIABLES, 90, old)) == SIZES
    assert reader.read(images.cubin(KERNELS)) == (0, 0)


def test_text(reader: Reader) -> None:
    assert reader.read(PTX) == TEXT_SIZES
    assert reader.read(PTX + b"\0.global .u32 behind_the_end;") == TEXT_SIZES


@pytest.mark.parametrize("flags", [images.PLAIN, images.LZ4, images.ZSTD])
def test_a_container_has_it_in_each_form(reader: Reader, flags: int) -> None:
    assert reader.read(images.fatbin(images.entry(CODE, flags=flags))) == SIZES
    packed = images.entry(PTX, images.PTX_ENTRY, 80, flags)
    assert reader.read(images.fatbin(packed)) == TEXT_SIZES


def one(size: int, arch: int, flags: int = images.PLAIN) -> bytes:
    return images.entry(images.cubin((), (Variable("v", size),), arch), arch=arch, flags=flags)


def ptx(size: int, arch: int) -> bytes:
    code = f".version 8.4\n.target sm_{arch}\n.global .b8 v[{size}];".encode()
    return images.entry(code, images.PTX_ENTRY, arch)


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ([one(1, 80), one(2, 90), one(3, 100)], 2),
        ([one(2, 90), one(1, 90, images.PLAIN | images.SPECIFIC)], 1),
        ([ptx(3, 90), one(2, 90), ptx(4, 80)], 2),
        ([one(1, 80), ptx(3, 80), ptx(4, 75)], 3),
        ([ptx(3, 75), ptx(4, 90), ptx(5, 100)], 4),
        ([one(1, 100)], 1),  # none fits: the driver refuses it
        ([], None),
        ([images.entry(b"an archive", 8)], None),
    ],
)
def test_the_part_that_fits_the_card(
    reader: Reader, entries: list[bytes], size: int | None
) -> None:
    assert reader.read(images.fatbin(*entries)) == (None if size is None else (size, 0))


def section(code: bytes, name: bytes) -> int:
    """Where the header of a section is."""
    table, count, names = *struct.unpack_from("<Q", code, 40), *struct.unpack_from("<HH", code, 60)
    texts = struct.unpack_from("<Q", code, table + names * 64 + 24)[0]
    for at in range(table, table + count * 64, 64):
        start = texts + struct.unpack_from("<I", code, at)[0]
        if code[start : start + len(name) + 1] == name + b"\0":
            return at
    raise AssertionError(name)


def with_size(name: bytes, size: int) -> bytes:
    code = bytearray(CODE)
    struct.pack_into("<Q", code, section(CODE, name) + 32, size)
    return bytes(code)


def test_sizes_near_the_end_of_64_bits_do_not_wrap(reader: Reader) -> None:
    assert reader.read(with_size(b".nv.global", MOST - 10)) == (MOST, 808)
    assert reader.read(with_size(b".nv.global.init", MOST)) == (MOST, 808)
    big = b".version 8.0 .global .u64 a[0x7fffffffffffffff][4]; .global .u64 b;"
    assert reader.read(big) == (MOST, 0)


def test_sections_may_lie_over_each_other(reader: Reader) -> None:
    """Each counts with its size, wherever it lies: it has no contents to read."""
    code = bytearray(CODE)
    for name in (b".nv.global", b".nv.global.init", b".nv.constant3"):
        struct.pack_into("<QQ", code, section(CODE, name) + 24, 0, 2**40)
    assert reader.read(bytes(code)) == (3 * 2**40, 808)


@pytest.mark.parametrize(
    "broken",
    [
        *(b"", b"\x7fELF", b"\0" * 100, b"\x50\xed\x55\xba", b"MZ\x90\0" + b"\0" * 96, CODE[:-1]),
        with_size(b".shstrtab", 2**40),
        with_size(b".shstrtab", MOST),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 8),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 0xFFFF, 0),
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + bytes(64),
        struct.pack("<IIQQ", 0x466243B1, 1, 8, 0),  # a wrapper that points to nothing
        images.fatbin(images.entry(b"no code", flags=images.PLAIN)),
        images.fatbin(images.entry(bytes(2000), flags=images.LZ4))[:-900],
    ],
)
def test_what_is_no_module_is_not_read(reader: Reader, broken: bytes) -> None:
    assert reader.read(broken) is None


@pytest.mark.parametrize("flags", [images.LZ4, images.ZSTD])
@pytest.mark.parametrize("claimed", [0, 5, 2001, 2**29, 2**29 + 1, 2**63])
def test_a_size_that_is_not_the_unpacked_one_is_not_read(
    reader: Reader, flags: int, claimed: int
) -> None:
    part = bytearray(images.entry(CODE.ljust(4000, b"\0"), flags=flags))
    part[56:64] = struct.pack("<Q", claimed)
    assert reader.read(images.fatbin(bytes(part))) is None


# ---- hostile bytes ----


def valid() -> list[bytes]:
    text = images.entry(PTX, images.PTX_ENTRY, 80)
    return [
        *(CODE, images.cubin(KERNELS, VARIABLES, 90, True), PTX),
        images.fatbin(images.entry(CODE), text),
        images.fatbin(text, images.entry(CODE, flags=images.LZ4)),
        images.fatbin(images.entry(CODE, flags=images.ZSTD)),
    ]


@given(damaged(valid()))
@examples(3000)
def test_damaged_modules_harm_nobody(reader: Reader, data: bytes) -> None:
    reader.read(data)


PIECES = [
    *(b".entry ", b"a", b"b ", b"(", b")", b"{", b"}", b"[", b"]", b",", b";", b"=", b'"'),
    *(b"//", b"/*", b"*/", b"\n", b"\0", b".param ", b".align ", b".b8 ", b".u64 ", b".global "),
    *(b".const ", b".shared ", b".extern ", b"4", b" 99999999999999999999 ", b"-1 ", b"0x"),
    *(b".attribute(.managed) ", b".v4 ", b".f16x2 ", b".func ", b".b128 "),
]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
@examples(2000)
def test_text_of_pieces_harms_nobody(reader: Reader, text: bytes) -> None:
    assert reader.read(b".version 8.0 " + text) is not None
