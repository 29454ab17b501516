"""Reads a plugin's file without loading it: symbols of a 64-bit little-endian ELF file."""

from __future__ import annotations

import struct
from dataclasses import dataclass

PT_LOAD, SHT_DYNSYM = 1, 11
MAX_TEXT = 64  # bytes of a plugin's type: Slurm's are far shorter


class _NoSymbolError(ValueError):
    """The file has no such symbol."""


@dataclass(frozen=True)
class Plugin:
    """The version of Slurm that a plugin was built for (Slurm's number), and its type, "spank" for
    SPANK's.
    """

    number: int
    kind: str


def _table(data: bytes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Program and section headers. Raises ValueError, struct.error."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit ELF file")
    phoff, shoff = struct.unpack_from("<QQ", data, 32)
    psize, pnum, ssize, snum = struct.unpack_from("<HHHH", data, 54)
    end = max(phoff + pnum * psize, shoff + snum * ssize)
    if end > len(data):
        raise ValueError(f"it is truncated: {len(data)} of at least {end} bytes are there")
    programs = [struct.unpack_from("<IIQQQQQQ", data, phoff + n * psize) for n in range(pnum)]
    return programs, [
        struct.unpack_from("<IIQQQQIIQQ", data, shoff + n * ssize) for n in range(snum)
    ]


def _offset(data: bytes, name: bytes) -> int:
    """Where the value of a symbol is in the file. Raises ValueError, struct.error, and
    others for a damaged file."""
    programs, sections = _table(data)
    symbols = next(section for section in sections if section[1] == SHT_DYNSYM)
    names = sections[symbols[6]][4]
    for offset in range(symbols[4], symbols[4] + symbols[5], 24):
        at, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, offset)
        if data[names + at : names + at + len(name) + 1] == name + b"\0":
            load = next(p for p in programs if p[0] == PT_LOAD and p[3] <= value < p[3] + p[5])
            return int(load[2] + value - load[3])
    raise _NoSymbolError(f"it names no {name.decode()}")


def _whole(data: bytes) -> None:
    """Raises ValueError for a file that ends before its last section does."""
    programs, sections = _table(data)
    ends = [s[4] + s[5] for s in sections if s[1] != 8] + [p[2] + p[5] for p in programs]
    if max(ends, default=0) > len(data):
        raise ValueError(f"it is truncated: {len(data)} of at least {max(ends)} bytes are there")


def plugin_of(data: bytes) -> Plugin:
    """Version and type of a plugin. Raises ValueError with a sentence's end."""
    try:
        _whole(data)
        number = int(struct.unpack_from("<I", data, _offset(data, b"plugin_version"))[0])
    except (struct.error, StopIteration, IndexError):
        raise ValueError("it is damaged") from None
    try:
        at = _offset(data, b"plugin_type")
        kind = data[at : at + MAX_TEXT].partition(b"\0")[0].decode("ascii", "replace")
    except (_NoSymbolError, struct.error, StopIteration, IndexError):
        kind = ""
    return Plugin(number, kind)


def plugin_version(data: bytes) -> int:
    """The number `plugin_version` alone. Raises ValueError."""
    return plugin_of(data).number
