"""bpf(2), as far as the device programs of cgroups of version 2 need it.

Each call raises OSError. CAP_SYS_ADMIN is enough for all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ALLOW = struct.pack("<BBhi BBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)  # r0 = 1; exit
OVERRIDE, MULTI = 1, 2  # BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_MULTI
_IDS = 64  # programs of one cgroup: the kernel's own limit
_NUMBER = {"x86_64": 321, "aarch64": 280}  # of the system call bpf(2)
_LOAD, _ATTACH, _FD_BY_ID, _INFO, _QUERY = 5, 8, 13, 15, 16
_DEVICE_PROGRAM, _DEVICE_HOOK = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
_ATTRIBUTES = 128  # bytes; the kernel wants those that it does not know to be zero
_INSTRUCTIONS_AT, _LENGTH_AT, _MAPS_AT, _INFO_SIZE = 32, 20, 52, 232  # of struct bpf_prog_info
_libc = ctypes.CDLL(None, use_errno=True)
Buffer = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class Program:
    """A loaded program: its instructions after verification, and how many maps it uses.

    `code` is None if the kernel hides it.
    """

    kind: int
    maps: int
    code: bytes | None

    @property
    def for_devices(self) -> bool:
        """Whether it decides about devices."""
        return self.kind == _DEVICE_PROGRAM


def _call(command: int, attributes: bytes) -> tuple[int, Buffer]:
    """Result of the call, and the attributes as the kernel left them."""
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) on {platform.machine()} is not known")
    room = ctypes.create_string_buffer(attributes, _ATTRIBUTES)
    done: int = _libc.syscall(number, command, room, len(room))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done, room


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def loaded(code: bytes, name: str = "") -> Iterator[int]:
    """A descriptor of this device program, once the kernel has verified it."""
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    places = ctypes.addressof(text), ctypes.addressof(licence)
    head = struct.pack("=IIQQ", _DEVICE_PROGRAM, len(code) // 8, *places)
    # log_level, log_size, log_buf, kern_version, prog_flags, prog_name
    named = head + struct.pack("=IIQII16s", 0, 0, 0, 0, 0, name.encode()[:15])
    with _closing(_call(_LOAD, named)[0]) as fd:
        yield fd


def attach(cgroup: int, program: int, flags: int = 0) -> None:
    """Attach a program to an open cgroup: in place of the one that is there with these flags."""
    _call(_ATTACH, struct.pack("=IIII", cgroup, program, _DEVICE_HOOK, flags))


def attached(cgroup: int) -> tuple[tuple[int, ...], int]:
    """The ids of the device programs of an open cgroup itself, and the flags of its programs."""
    ids = (ctypes.c_uint32 * _IDS)()
    asked = struct.pack("=IIIIQI", cgroup, _DEVICE_HOOK, 0, 0, ctypes.addressof(ids), len(ids))
    _, room = _call(_QUERY, asked)
    (flags,) = struct.unpack_from("=I", room, 12)
    (count,) = struct.unpack_from("=I", room, 24)
    return tuple(ids[:count]), flags


def program(number: int) -> Program:
    """The program with this id."""
    fd, _ = _call(_FD_BY_ID, struct.pack("=I", number))
    with _closing(fd):
        first = _info(fd, b"")
        (length,) = struct.unpack_from("=I", first, _LENGTH_AT)
        text = ctypes.create_string_buffer(max(length, 1))
        asked = bytearray(_INFO_SIZE)
        struct.pack_into("=I", asked, _LENGTH_AT, length)
        struct.pack_into("=Q", asked, _INSTRUCTIONS_AT, ctypes.addressof(text))
        told = _info(fd, bytes(asked))
    kind, maps = (struct.unpack_from("=I", told, at)[0] for at in (0, _MAPS_AT))
    (given,) = struct.unpack_from("=Q", told, _INSTRUCTIONS_AT)
    return Program(kind, maps, text.raw[:length] if given and length else None)


def _info(fd: int, asked: bytes) -> Buffer:
    room = ctypes.create_string_buffer(asked, _INFO_SIZE)
    _call(_INFO, struct.pack("=IIQ", fd, len(room), ctypes.addressof(room)))
    return room


def constrain(cgroup: Path) -> None:
    """Attach a program that allows every device; it ends with the cgroup."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with _closing(os.open(cgroup, flags)) as directory, loaded(ALLOW) as fd:
        attach(directory, fd)
