"""What is known of a daemon that has ended by itself: how, what it said last, and where its core
lies.
"""

from __future__ import annotations

import os
import re
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.sandbox import wait
from cli.sandbox.layout import Layout

_KERNEL = Path("/proc/sys/kernel")
_PT_NOTE = 4
_PRSTATUS, _PRPSINFO = 1, 3
# The first thread's notes, which are what is read here, come first.
_MAX_NOTES = 64 << 10
_MAX_SEGMENTS = 64


@dataclass(frozen=True)
class Core:
    """A core file: of which process, of which program (at most 15 letters), by which signal."""

    path: Path
    pid: int
    program: str
    signum: int


def _notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each whole note."""
    at = 0
    while at + 12 <= len(data):
        name, size, kind = struct.unpack_from("<3I", data, at)
        at += 12 + (name + 3 & ~3)
        if at + size > len(data):
            return
        yield kind, data[at : at + size]
        at += size + 3 & ~3


def _note_segment(fd: int) -> bytes:
    """The beginning of the notes of a 64-bit ELF core, b"" if it is none."""
    head = os.pread(fd, 64, 0)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or head[16:18] != b"\x04\0":
        return b""
    table, size, count = *struct.unpack_from("<Q", head, 32), *struct.unpack_from("<2H", head, 54)
    for number in range(min(count, _MAX_SEGMENTS)):
        entry = os.pread(fd, 56, table + number * size)
        if len(entry) == 56 and struct.unpack_from("<I", entry)[0] == _PT_NOTE:
            start, length = struct.unpack_from("<Q16xQ", entry, 8)
            return os.pread(fd, min(length, _MAX_NOTES), start)
    return b""


def read_core(path: Path) -> Core | None:
    """What a core file says of itself; None if it is no core of a 64-bit program."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found: dict[int, bytes] = {}
        for kind, note in _notes(_note_segment(fd)):
            found.setdefault(kind, note)
        (signum,) = struct.unpack_from("<h", found[_PRSTATUS], 12)
        pid, name = struct.unpack_from("<i12x16s", found[_PRPSINFO], 24)
    except (OSError, KeyError, struct.error, OverflowError):
        return None
    finally:
        os.close(fd)
    return Core(path, pid, name.split(b"\0")[0].decode(errors="replace"), signum)


def core_names(pattern: str) -> str | None:
    """Glob of the names of cores below a process's working directory; None if the kernel's
    core_pattern puts them elsewhere.
    """
    if pattern.startswith("|") or "/" in pattern:
        return None
    # with core_uses_pid the kernel appends the number of the process
    literal = re.sub(r"(%.)+", "\0", f"{pattern}%p")
    return re.sub(r"([*?[])", r"[\1]", literal).replace("\0", "*")


def _pattern() -> str:
    try:
        return (_KERNEL / "core_pattern").read_text().rstrip("\n")
    except OSError:
        return "core"


def find_core(layout: Layout, name: str, pid: int) -> Core | None:
    """The core of that process, in the directory that the daemon was started in."""
    names = core_names(_pattern())
    if names is None:
        return None
    cores = (read_core(path) for path in sorted(layout.core_dir(name).glob(names)))
    return next((core for core in cores if core is not None and core.pid == pid), None)


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def how(status: int | None, core: Core | None) -> str:
    """The end in words. `status` is Popen's: None is unknown, -N is signal N."""
    if status is not None:
        return f"exit status {status}" if status >= 0 else f"killed by {_signal(-status)}"
    if core is not None:
        return f"killed by {_signal(core.signum)}, as its core says"
    return "its exit status is not known, as the program that started it has ended"


def _core_words(status: int | None, core: Core | None) -> list[str]:
    if core is not None:
        return [f"its core is {core.path}"]
    if status is not None and status < 0 and core_names(_pattern()) is None:
        return [f"a core, if there is one, went where the kernel's core_pattern says: {_pattern()}"]
    return []


def logs(layout: Layout, name: str, since: float) -> list[Path]:
    """Where the daemon logs, and where it printed something after `since` (seconds since 1970)."""
    log = layout.log(name)
    printed = [layout.log(f"{name}.out"), log.with_name(f"{log.name}.out")]
    recent = [path for path in printed if path.exists() and path.stat().st_mtime >= since]
    return [path for path in (log,) if path.exists()] + recent


def words(layout: Layout, name: str, pid: int, status: int | None, since: float) -> str:
    """Some lines on the daemon that was process `pid` and was started at `since`."""
    core = find_core(layout, name, pid)
    lines = [f"{name} ended by itself: {how(status, core)}", *_core_words(status, core)]
    for path in logs(layout, name, since):
        lines += [f"the end of {path}:", wait.tail(path)]
    return "\n".join(lines)
