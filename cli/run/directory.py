"""The directory of one `qgpu run --start`, and the removal of abandoned ones.

Its owner holds a lock on it while it lives, so the next start recognises a killed owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "qgpu-run-"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")  # as mkdtemp makes them
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a daemon that holds one still serves from there
DAEMON_LOCKS = ("run/arbiter.lock", "run/qgpud.lock")


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """A new directory, removed at the end; those that others left go first. Raises OSError."""
    base = Path("/run" if os.access("/run", os.W_OK) else tempfile.gettempdir())
    remove_left(base)
    path, fd = _make(base)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _make(base: Path) -> tuple[Path, int]:
    """Make a directory and lock it; again if another start removed it before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, _OPEN)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    path.chmod(0o755)
                    return path, fd
            os.close(fd)


def remove_left(base: Path) -> None:
    """Remove the directories of starts that were killed."""
    with os.scandir(base) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_left(base / name)


def _remove_if_left(path: Path) -> None:
    """Remove an abandoned directory: no links, nothing writable by others, nothing in use. Raises
    OSError.
    """
    fd = os.open(path, _OPEN)
    try:
        info = os.fstat(fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not any(_held(fd, name) for name in DAEMON_LOCKS):
            shutil.rmtree(path)
    finally:
        os.close(fd)


def _held(directory: int, name: str) -> bool:
    try:
        fd = os.open(
            name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
        )
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
