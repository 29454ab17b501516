"""Rows of /proc/self/mounts and mountinfo. Users mount as well (FUSE), at paths of their choice.

The kernel escapes blanks, tabs, newlines and backslashes there, and nothing else. So a row ends at
a newline and a value at a blank alone: Python's split() and splitlines() know many more of both.
"""

from __future__ import annotations

import os
import re

_ESCAPE = re.compile(rb"\\([0-7]{3})")


def rows(table: bytes) -> list[list[str]]:
    """The values of each row."""
    return [
        [os.fsdecode(_ESCAPE.sub(_byte, value)) for value in line.split(b" ")]
        for line in table.split(b"\n")
        if line
    ]


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 0xFF])
