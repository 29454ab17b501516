"""Makes what the ledger committed safe against a power cut, without anybody waiting for a disk."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


class Syncer:
    """Puts the write-ahead log on the disk in a thread of its own, so that no hook waits for a disk."""

    def __init__(self, wal: Path) -> None:
        self._wal = wal
        self._wanted = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    def kick(self) -> None:
        """What is committed now shall be on the disk soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ledger-sync", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait() and not self._stop:
            self._wanted.clear()
            with contextlib.suppress(OSError):  # gone: a checkpoint put everything into the file itself
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
