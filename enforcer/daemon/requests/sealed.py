"""The grant in memory that no process can change, as SPANK hands it to tasks."""

from __future__ import annotations

import fcntl
import os

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed_copy(blob: bytes) -> int:
    """A descriptor of it; the caller closes it."""
    fd = os.memfd_create("qgpu-grant", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, blob)
    os.fchmod(fd, 0o444)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd
