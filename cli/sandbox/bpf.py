"""Whether a BPF program can constrain the devices of a cgroup of version 2, as Slurm does it."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

_NUMBER = {"x86_64": 321, "aarch64": 280}  # of the system call bpf(2)
_LOAD, _ATTACH = 5, 8  # BPF_PROG_LOAD, BPF_PROG_ATTACH
_DEVICE_PROGRAM, _DEVICE_HOOK = 15, 6  # BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE
_ALLOW = struct.pack("<BBhi BBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)  # r0 = 1; exit
_libc = ctypes.CDLL(None, use_errno=True)


def _call(command: int, attributes: bytes) -> int:
    number = _NUMBER.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) on {platform.machine()} is not known")
    room = ctypes.create_string_buffer(attributes, 128)  # the kernel wants the rest to be zero
    done: int = _libc.syscall(number, command, room, len(room))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def constrain(cgroup: Path) -> None:
    """Attach a program that allows every device; it ends with the cgroup. OSError if it cannot."""
    code = ctypes.create_string_buffer(_ALLOW, len(_ALLOW))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    places = ctypes.addressof(code), ctypes.addressof(licence)
    program = _call(_LOAD, struct.pack("=IIQQ", _DEVICE_PROGRAM, len(_ALLOW) // 8, *places))
    try:
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _call(_ATTACH, struct.pack("=IIII", directory, program, _DEVICE_HOOK, 0))
        finally:
            os.close(directory)
    finally:
        os.close(program)
