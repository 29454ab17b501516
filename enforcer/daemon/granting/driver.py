"""Where the real libcuda.so.1 is on this node."""

from __future__ import annotations

import os
import platform
import re
import subprocess
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


RUN_S = 2.0  # most seconds for `ldconfig -p`, which reads one file
# What `ldconfig -p` says of libraries for this machine's programs.
_ABI = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}


class BrokenNodeError(RuntimeError):
    """The node is not fit for GPU jobs; the text is a sentence for its administrator."""


def find_driver(configured: str, shim: str, search: Iterable[str] | None = None) -> str:
    """Absolute path of the driver's library: `configured`, or the first found where `configured` is
    "auto".

    The daemon's LD_LIBRARY_PATH and the loader's cache (ld.so.conf.d) are searched first, so that a
    driver installed elsewhere is found as programs find it. Never the shim itself. Raises
    BrokenNodeError.
    """
    if configured != "auto":
        if not Path(configured).is_file():
            raise BrokenNodeError(
                f"driver.libcuda in qgpu.yaml is {configured}, which is not there"
            )
        return configured
    for directory in search_path() if search is None else search:
        candidate = Path(directory) / NAME
        if candidate.is_file() and not _same(candidate, shim):
            return str(candidate)
    raise BrokenNodeError(
        f"{NAME} was not found: is the NVIDIA driver installed? Else set driver.libcuda in "
        "qgpu.yaml"
    )


def search_path() -> list[str]:
    """Directories of the loader that can be trusted: absolute ones of LD_LIBRARY_PATH, its
    cache's, then the usual.
    """
    own = [
        entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry.startswith("/")
    ]
    return [*own, *cached(_LOADER.listing()), *USUAL]


def cached(listing: str) -> list[str]:
    """Directories in which the loader's cache has the driver's library; `listing` is what
    `ldconfig -p` prints.
    """
    abi = re.escape(_ABI.get(platform.machine(), "libc6"))
    found = re.finditer(rf"^\s*{re.escape(NAME)} \({abi}[^)]*\) => (/.*)$", listing, re.MULTILINE)
    return [str(Path(match[1]).parent) for match in found]


class LoaderCache:
    """What `ldconfig -p` prints, run again only after the loader's cache file has changed.

    A Prolog may wait for one run, so a run gets a fifth of the hook's default deadline. If it
    fails, the last listing stands, and the next caller tries again.
    """

    def __init__(self, file: str = "/etc/ld.so.cache", program: str = "/sbin/ldconfig") -> None:
        self._file, self._command = file, [program, "-p"]
        self._key: tuple[int, ...] = ()
        self._listing = ""

    def listing(self) -> str:
        """Empty where there is no cache."""
        try:
            info = Path(self._file).stat()
            key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
            if key != self._key:
                self._listing, self._key = self._run(), key
        except FileNotFoundError:
            return ""
        except (OSError, subprocess.SubprocessError):
            pass
        return self._listing

    def _run(self) -> str:
        return subprocess.run(
            self._command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=True,
        ).stdout


_LOADER = LoaderCache()


def _same(candidate: Path, shim: str) -> bool:
    try:
        return candidate.samefile(shim)
    except OSError:
        return False
