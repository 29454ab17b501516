"""Secures ledger commits against a power cut, while no caller waits for a disk."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


class Syncer:
    """Writes the write-ahead log to disk in its own thread, so that no hook waits."""

    def __init__(self, wal: Path) -> None:
        self._wal = wal
        self._wanted = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    def kick(self) -> None:
        """Write present commits to disk soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ledger-sync", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait() and not self._stop:
            self._wanted.clear()
            with contextlib.suppress(OSError):  # gone: a checkpoint moved it into the database file
                fd = os.open(self._wal, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)

    def close(self) -> None:
        """End the thread."""
        self._stop = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None
