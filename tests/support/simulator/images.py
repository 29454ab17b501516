"""Modules as bytes: machine code (cubin), PTX and fatbins of them, built by hand, so that tests
need no compiler. The numbers are those that nvcc 13.0 and ptxas 12.4 write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

PLAIN, LZ4, ZSTD = 0x11, 0x2011, 0x8011
PTX_ENTRY, ELF_ENTRY = 1, 2
SPECIFIC = 0x100000
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_NOBITS, _SHT_INFO = 1, 2, 3, 8, 0x70000000


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[tuple[int, int], ...] = ()  # offset and size
    registers: int = 32
    shared: int = 0
    bounds: tuple[int, int, int] | None = None
    wide: bool = False  # parameters in the records of large ones

    @property
    def info(self) -> bytes:
        out = b""
        for ordinal, (offset, size) in enumerate(self.params):
            head = struct.pack("<IHH", 0, ordinal, offset)
            if self.wide:
                out += struct.pack("<BBH", 4, 0x45, 12) + head + struct.pack("<I", size)
            else:
                out += struct.pack("<BBH", 4, 0x17, 12) + head
                out += struct.pack("<I", size << 18 | 0x1F000)
        total = max((offset + size for offset, size in self.params), default=0)
        out += struct.pack("<BBH", 3, 0x19, total)
        if self.bounds:
            out += struct.pack("<BBHIII", 4, 0x05, 12, *self.bounds)
        return out


@dataclass(frozen=True)
class Variable:
    name: str
    size: int
    section: str = ".nv.global"  # .nv.global.init, .nv.constant3
    init: bytes = b""
    managed: bool = False


@dataclass
class _Section:
    name: str
    kind: int
    data: bytes = b""
    size: int | None = None
    link: int = 0
    info: int = 0


@dataclass
class _Strings:
    data: bytearray = field(default_factory=lambda: bytearray(1))

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def _symbol(name: int, info: int, other: int, section: int, value: int, size: int) -> bytes:
    return struct.pack("<IBBHQQ", name, info, other, section, value, size)


def _kernels(
    kernels: tuple[Kernel, ...], sections: list[_Section], strings: _Strings, arch: int
) -> bytes:
    """Adds the sections of kernels; their symbols. Records of registers go to section 4."""
    symbols = b""
    for kernel in kernels:
        code = len(sections)
        sections.append(_Section(f".text.{kernel.name}", _SHT_PROGBITS, bytes(16)))
        sections.append(_Section(f".nv.info.{kernel.name}", _SHT_INFO, kernel.info, None, 3, code))
        reserved = 1024 if arch >= 90 else 0
        sections.append(
            _Section(
                f".nv.shared.{kernel.name}", _SHT_NOBITS, b"", kernel.shared + reserved, 0, code
            )
        )
        index = len(symbols) // 24 + 1
        sections[4].data += struct.pack("<BBHII", 4, 0x2F, 8, index, kernel.registers)
        symbols += _symbol(strings.add(kernel.name), 0x12, 0x10, code, 0, 16)
    return symbols


def _variables(
    variables: tuple[Variable, ...], sections: list[_Section], strings: _Strings
) -> bytes:
    symbols = b""
    for name in (".nv.global", ".nv.global.init", ".nv.constant3"):
        mine = [variable for variable in variables if variable.section == name]
        size, data = 0, b""
        for variable in mine:
            other = 4 if variable.managed else 0
            at = strings.add(variable.name)
            symbols += _symbol(at, 0x01, other, len(sections), size, variable.size)
            size += variable.size
            if name != ".nv.global":
                data += variable.init.ljust(variable.size, b"\0")
        if mine and name == ".nv.global":
            sections.append(_Section(name, _SHT_NOBITS, b"", size))
        elif mine:
            sections.append(_Section(name, _SHT_PROGBITS, data))
    return symbols


def cubin(
    kernels: tuple[Kernel, ...],
    variables: tuple[Variable, ...] = (),
    arch: int = 90,
    old: bool = False,
) -> bytes:
    """A cubin as CUDA 13 has it, or the older form."""
    strings, names = _Strings(), _Strings()
    sections = [
        _Section("", 0),
        _Section(".shstrtab", _SHT_STRTAB),
        _Section(".strtab", _SHT_STRTAB),
        _Section(".symtab", _SHT_SYMTAB, b"", None, 2),
        _Section(".nv.info", _SHT_INFO, b"", None, 3),
    ]
    symbols = bytes(24) + _kernels(kernels, sections, strings, arch)
    symbols += _variables(variables, sections, strings)
    sections[2].data, sections[3].data = bytes(strings.data), symbols
    offsets = [names.add(section.name) for section in sections]
    sections[1].data = bytes(names.data)
    body, table = b"", b""
    for at, section in zip(offsets, sections, strict=True):
        size = len(section.data) if section.size is None else section.size
        table += struct.pack(
            "<IIQQQQIIQQ",
            *(at, section.kind, 0, 0, 64 + len(body), size, section.link, section.info, 1, 0),
        )
        body += section.data
    body += bytes(-len(body) % 8)
    flags = arch << 16 | 0x500 | arch if old else 0x06000004 | arch << 8
    ident = b"\x7fELF\2\1\1" + (b"\x33\7" if old else b"\x41\x08") + bytes(7)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(sections), 1
    )
    return head + body + table


def lz4_block(data: bytes) -> bytes:
    """The block format of LZ4 with one run of literals."""
    left = len(data) - 15
    if left < 0:
        return bytes([len(data) << 4]) + data
    return b"\xf0" + b"\xff" * (left // 255) + bytes([left % 255]) + data


def zstd_frame(data: bytes) -> bytes:
    """A frame of blocks that are not compressed."""
    out = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(data))
    pieces = [data[at : at + 65536] for at in range(0, len(data), 65536)] or [b""]
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        out += struct.pack("<I", len(piece) << 3 | last)[:3] + piece
    return out


def entry(data: bytes, kind: int = ELF_ENTRY, arch: int = 90, flags: int = PLAIN) -> bytes:
    """One part of a container."""
    packed = lz4_block(data) if flags & 0x2000 else zstd_frame(data) if flags & 0x8000 else b""
    payload = packed or data
    size = len(payload) + -len(payload) % 8
    head = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, 0x101, 64, size, len(packed), 0, 8, 1, arch, 0, 0, flags, 0),
        len(data) if packed else 0,
    )
    return head + payload.ljust(size, b"\0")


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
