"""System calls that an old kernel, or a strict sandbox, does not have."""

from __future__ import annotations

import sys
from pathlib import Path

MEMBARRIER, EPOLL_PWAIT2 = 324, 441
# Runs a command under a filter that answers one system call with ENOSYS; exits with 77 where
# filters are not allowed.
FILTER = """
import ctypes, os, struct, sys
def step(code, jump_true, jump_false, value):
    return struct.pack("<HBBI", code, jump_true, jump_false, value)
code = step(0x20, 0, 0, 0) + step(0x15, 0, 1, int(sys.argv[1]))
code += step(0x06, 0, 0, 0x00050000 | 38) + step(0x06, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(code, len(code))
program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(text))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.c_char_p(program), 0, 0): sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""


def without(directory: Path, number: int) -> tuple[str, ...]:
    """What to write before a command so that it runs without that system call."""
    script = directory / "filter.py"
    script.write_text(FILTER)
    return sys.executable, str(script), str(number)
