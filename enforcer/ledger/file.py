"""The ledger's file: made with its mode before SQLite opens it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MODE = 0o640  # users ask qgpud, which follows PrivateData


def make(path: Path) -> None:
    """Create the file with its mode before SQLite does (its helper files take the same)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        os.fchmod(fd, MODE)
    finally:
        os.close(fd)
    for helper in ("-wal", "-shm"):  # an older release left them open to all
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + helper).chmod(MODE)
