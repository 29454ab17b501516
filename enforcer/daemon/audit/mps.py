"""Recognises the node's own nvidia-cuda-mps-server, which users may start in their jobs.

It holds the memory of a context and may have no shim. A name proves nothing. So the process must
run the very file that this node has under that name, and that root alone can change.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gres.trusted import distrust

NAME = "nvidia-cuda-mps-server"
PROC = Path("/proc")


def is_mps_server(pid: int, proc: Path = PROC) -> bool:
    """Whether the process runs the NAME of this node's PATH."""
    path = shutil.which(NAME)
    if path is None or distrust(path) is not None:
        return False
    exe = proc / str(pid) / "exe"
    try:
        # The text first: stat() asks the file system, and a user's FUSE server may never answer.
        same = str(exe.readlink()) == str(Path(path).resolve())
        return same and os.path.samestat(Path(path).stat(), exe.stat())
    except OSError:
        return False
