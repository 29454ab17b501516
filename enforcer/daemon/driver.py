"""Where the real libcuda.so.1 is on this node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NAME = "libcuda.so.1"
USUAL = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
)


class BrokenNodeError(RuntimeError):
    """The node is not fit for GPU jobs; the text is a sentence for its administrator."""


def find_driver(configured: str, shim: str, search: Iterable[str] | None = None) -> str:
    """Absolute path of the driver's library: `configured`, or the first found where `configured` is "auto".

    The daemon's LD_LIBRARY_PATH is searched first, so that a driver installed elsewhere is found as
    programs find it. Never the shim itself. Raises BrokenNodeError.
    """
    if configured != "auto":
        if not Path(configured).is_file():
            raise BrokenNodeError(f"driver.libcuda in qgpu.yaml is {configured}, which is not there")
        return configured
    for directory in search_path() if search is None else search:
        candidate = Path(directory) / NAME
        if candidate.is_file() and not _same(candidate, shim):
            return str(candidate)
    raise BrokenNodeError(
        f"{NAME} was not found: is the NVIDIA driver installed? Else set driver.libcuda in qgpu.yaml"
    )


def search_path() -> list[str]:
    """Directories of the loader that can be trusted: absolute ones of LD_LIBRARY_PATH, then the usual."""
    own = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry.startswith("/")]
    return [*own, *USUAL]


def _same(candidate: Path, shim: str) -> bool:
    try:
        return candidate.samefile(shim)
    except OSError:
        return False
