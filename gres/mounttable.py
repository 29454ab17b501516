"""Rows of /proc/self/mounts and mountinfo. Users mount as well (FUSE), at paths of their choice.

The kernel escapes blanks, tabs, newlines and backslashes there, and nothing else. So a row ends at
a newline and a value at a blank alone: Python's split() and splitlines() know many more of both.

A user's FUSE server may never answer. So it says of an open file which mount it is on without a
question to the file system, as stat() and statfs() ask one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(rb"\\([0-7]{3})")
_MOUNT = re.compile(rb"^mnt_id:\s+([0-9]+)$", re.MULTILINE)
_USER = re.compile(r"(?:^|,)user_id=([0-9]+)(?:,|$)")
PROC = Path("/proc")


@dataclass(frozen=True)
class Mount:
    """Where a file is. `device` names the file system, with "major:minor"."""

    device: str
    kind: str
    options: str

    @property
    def fuse_user(self) -> int | None:
        """The user whose program is the file system; None where that is the kernel."""
        if not self.kind.startswith("fuse"):
            return None
        match = _USER.search(self.options)
        return int(match[1]) if match else -1


def rows(table: bytes) -> list[list[str]]:
    """The values of each row."""
    return [
        [os.fsdecode(_ESCAPE.sub(_byte, value)) for value in line.split(b" ")]
        for line in table.split(b"\n")
        if line
    ]


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 0xFF])


def number_of(fd: int) -> int:
    """The number of the mount that an open file is on. Raises OSError."""
    match = _MOUNT.search((PROC / f"self/fdinfo/{fd}").read_bytes())
    if match is None:
        raise OSError(f"descriptor {fd} is on no mount")
    return int(match[1])


def mount_of(fd: int, pid: int | str = "self") -> Mount:
    """The mount that an open file is on, which the process `pid` sees. Raises OSError."""
    number = number_of(fd)
    # Only this row is taken apart: a host of containers has thousands.
    row = re.search(rb"^%d .*$" % number, _table(pid), re.MULTILINE)
    values = rows(row[0])[0] if row else []
    # The optional fields before "-" may be none or several.
    after = values.index("-", 6) + 1 if "-" in values[6:] else len(values)
    if len(values) < after + 3:
        raise OSError(f"mount {number} is not listed")
    return Mount(values[2], values[after], values[after + 2])


def _table(pid: int | str) -> bytes:
    return (PROC / str(pid) / "mountinfo").read_bytes()
