"""Recognises the node's own nvidia-cuda-mps-server, which users may start in their jobs.

It holds the memory of a context and may have no shim. A name proves nothing. So the process must
run the very file that this node has under that name, and that root alone can change.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gres.mounttable import mount_of
from gres.trusted import distrust

NAME = "nvidia-cuda-mps-server"
PROC = Path("/proc")


def is_mps_server(pid: int) -> bool:
    """Whether the process runs the NAME of this node's PATH."""
    path = shutil.which(NAME)
    if path is None or distrust(path) is not None:
        return False
    exe = PROC / str(pid) / "exe"
    try:
        return str(exe.readlink()) == str(Path(path).resolve()) and _same_file(path, exe, pid)
    except OSError:
        return False


def _same_file(path: str, exe: Path, pid: int) -> bool:
    """Whether both are one file. `exe` may be a user's: he binds his FUSE file system to the path.

    stat() asks the file system, and his may never answer. So it is called only where both are on
    one file system. O_PATH and the list of mounts ask none.
    """
    ours = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        theirs = os.open(exe, os.O_PATH | os.O_CLOEXEC)
        try:
            if mount_of(ours).device != mount_of(theirs, pid).device:
                return False
            return os.path.samestat(os.fstat(ours), os.fstat(theirs))
        finally:
            os.close(theirs)
    finally:
        os.close(ours)
