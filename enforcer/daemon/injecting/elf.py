"""Exported names of a shared library, and copies that export fewer: 64 bit, little endian ELF."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from mmap import mmap

SHT_DYNSYM = 11
WEAK_NOTYPE = 2 << 4  # st_info of an undefined weak name, which needs no definition
LOCAL = 0  # binding of symbols that no other library sees
HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
# symbols of one library, so that a damaged table ends: libcuda has about a thousand
MOST_SYMBOLS = 1 << 20


class ElfError(ValueError):
    """Not a library that this module can read; the text is a sentence."""


@dataclass(frozen=True)
class _Symbol:
    """One entry of .dynsym that others can see; `at` is its offset in the file."""

    name: str
    at: int
    name_offset: int


def exported(data: bytes | mmap) -> frozenset[str]:
    """Names that the library defines for others. Raises ElfError."""
    return frozenset(symbol.name for symbol in _symbols(data))


def without(data: bytes, names: Collection[str]) -> bytes:
    """A copy without these exported names; dlsym and the linker do not find them. Raises ElfError.

    The code stays, and calls inside the library are bound already.
    """
    copy = bytearray(data)
    for symbol in _symbols(data):
        if symbol.name in names:
            SYMBOL.pack_into(copy, symbol.at, symbol.name_offset, WEAK_NOTYPE, 0, 0, 0, 0)
    return bytes(copy)


def _symbols(data: bytes | mmap) -> Iterator[_Symbol]:
    try:
        yield from _entries(data)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ElfError("its table of symbols is damaged") from None


def _entries(data: bytes | mmap) -> Iterator[_Symbol]:
    sections = list(_sections(data))
    tables = [section for section in sections if section[1] == SHT_DYNSYM]
    if len(tables) != 1:
        raise ElfError("it has no table of exported symbols")
    _, _, _, _, offset, size, link, _, _, _ = tables[0]
    _, _, _, _, texts, texts_size, _, _, _, _ = sections[link]
    if size // SYMBOL.size > MOST_SYMBOLS:
        raise ElfError("its table of symbols is damaged")
    for at in range(offset, offset + size, SYMBOL.size):
        name_offset, info, _, index, _, _ = SYMBOL.unpack_from(data, at)
        if index and info >> 4 != LOCAL:
            yield _Symbol(_text(data, texts + name_offset, texts + texts_size), at, name_offset)


def _sections(data: bytes | mmap) -> Iterator[tuple[int, ...]]:
    ident, *_, table, _, _, _, _, size, count, _ = HEAD.unpack_from(data, 0)
    if ident[:6] != b"\x7fELF\x02\x01":
        raise ElfError("it is no 64-bit library")
    if size != SECTION.size:
        raise ElfError("it has no sections")
    for number in range(count):
        yield SECTION.unpack_from(data, table + number * size)


def _text(data: bytes | mmap, start: int, limit: int) -> str:
    end = data.find(b"\0", start, limit)
    if end < 0:
        raise ElfError("its table of symbols is damaged")
    return data[start:end].decode("ascii")
