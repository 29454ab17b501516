"""The device program of a cgroup of a moved job: our rules, and after them Slurm's own program.

    r0 = MARK; r0 = number of our instructions
    char device, and one of ours? then its answer
    the instructions of Slurm's program, as they are

So whatever Slurm refuses besides stays refused, and its program need not be understood. It is
carried over as the kernel shows it after verification. That is the same as before for this kind of
program: the kernel does not rewrite what reads a device request (no helpers, no maps). Jumps in it
are relative, and it finds its argument in r1, which our part only reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from enforcer.daemon.devices.port import Device, DevicesError, Rules

NAME = "qgpu_moved"  # what `bpftool` shows; nothing depends on it
MARK = 0x71677075
SIZE = 8  # bytes of an instruction
MOST = 4096  # rules of one program: the first jump has 16 bits
_INSTRUCTION = struct.Struct("<BBhi")
_CHAR = 2  # BPF_DEVCG_DEV_CHAR
_SET, _LOAD, _AND, _UNLESS, _EXIT = 0xB7, 0x61, 0x54, 0x55, 0x95
_CALL, _WIDE = 0x85, 0x18  # a call; a constant of 64 bits, in two instructions
_HEAD, _PER_DEVICE = 7, 4  # instructions


def _head(count: int) -> list[tuple[int, int, int, int]]:
    """(code, registers, offset, constant) up to the first rule; count: all our instructions."""
    return [
        (_SET, 0, 0, MARK),
        (_SET, 0, 0, count),
        (_LOAD, 0x12, 0, 0),  # r2: type and access
        (_AND, 2, 0, 0xFFFF),
        (_LOAD, 0x13, 4, 0),  # r3: major
        (_LOAD, 0x14, 8, 0),  # r4: minor
        (_UNLESS, 2, count - _HEAD, _CHAR),
    ]


def _rule(device: Device, answer: int) -> list[tuple[int, int, int, int]]:
    return [
        (_UNLESS, 3, 3, device.major),
        (_UNLESS, 4, 2, device.minor),
        (_SET, 0, 0, answer),
        (_EXIT, 0, 0, 0),
    ]


def compose(rules: Rules, base: bytes) -> bytes:
    """A program of these rules before `base`. Raises DevicesError if they are too many."""
    answers = [(one, 1) for one in sorted(rules.allow)] + [(one, 0) for one in sorted(rules.deny)]
    if len(answers) > MOST:
        raise DevicesError(f"a job's rules name {len(answers)} devices; the limit is {MOST}")
    text = _head(_HEAD + _PER_DEVICE * len(answers))
    for device, answer in answers:
        text += _rule(device, answer)
    return b"".join(_INSTRUCTION.pack(*one) for one in text) + base


def split(code: bytes) -> tuple[Rules | None, bytes]:
    """The rules that `compose` put before a program, and that program; None: it put none there."""
    text = list(_INSTRUCTION.iter_unpack(code[: len(code) // SIZE * SIZE]))
    if len(text) < _HEAD or text[0] != (_SET, 0, 0, MARK):
        return None, code
    count = text[1][3]
    if count < _HEAD or count > len(text):
        return None, code
    rules = _read(text[_HEAD:count])
    ours, base = code[: count * SIZE], code[count * SIZE :]
    return (rules, base) if compose(rules, b"") == ours else (None, code)


def _read(text: list[tuple[int, ...]]) -> Rules:
    """The rules in these instructions; nonsense for others, which the caller then sees."""
    parts = [text[at : at + _PER_DEVICE] for at in range(0, len(text), _PER_DEVICE)]
    found = [
        (Device(part[0][3], part[1][3]), part[2][3]) for part in parts if len(part) == _PER_DEVICE
    ]
    allow = (device for device, answer in found if answer)
    return Rules.of(allow, (device for device, answer in found if not answer))


def obstacle(base: bytes, maps: int) -> str:
    """Why this program cannot be carried over; empty if it can."""
    if maps or any(code == _WIDE and registers >> 4 for code, registers in _codes(base)):
        return "its device program uses maps"
    if any(code == _CALL for code, _ in _codes(base)):
        return "its device program calls functions of the kernel"
    return "" if base else "its device program is empty"


def _codes(base: bytes) -> Iterator[tuple[int, int]]:
    """Code and registers of each instruction."""
    for code, registers, _, _ in _INSTRUCTION.iter_unpack(base[: len(base) // SIZE * SIZE]):
        yield code, registers
