"""Makes the copy of the shims that exports no more than this node's driver.

A library may find `cuNAME_v2` by dlsym and call it. A shim for newer drivers would offer names that
answer CUDA_ERROR_NOT_FOUND. So tasks get a copy without them in the state directory. Its name is a
digest of the shims and the names left out, so a copy in use never changes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from enforcer.daemon.injecting.elf import ElfError, exported, without
from enforcer.daemon.log import emit

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
FOLDER = "shim"  # below the state directory
PREFIX = {CUDA: "cu", NVML: "nvml"}  # prefixes of driver names; other names are the shim's own
Signature = tuple[str, int, int, int]


class FitError(RuntimeError):
    """No copy can be made; the text is a sentence."""


@dataclass
class FittedShim:
    """The shim's path for tasks with the present driver."""

    shim: Path
    state_dir: Path
    _of: tuple[Signature, ...] = ()
    _path: str = ""

    def path(self, driver: str) -> str:
        """The copy for this driver; the shim itself where both export the same, or where no copy
        can be made.
        """
        files = (self.shim, self.shim.with_name(NVML), Path(driver), Path(driver).with_name(NVML))
        now = tuple(_signature(file) for file in files)
        if now != self._of or not Path(self._path).exists():
            self._path, self._of = self._fit(driver), now
        return self._path

    def _fit(self, driver: str) -> str:
        try:
            found = str(fit(self.shim, Path(driver), self.state_dir / FOLDER))
        except (
            FitError,
            ElfError,
            OSError,
            ValueError,
        ) as error:  # ValueError: an empty file cannot be mapped
            emit(logging.WARNING, "shim-not-fitted", driver=driver, why=error)
            return str(self.shim)
        emit(logging.INFO, "shim-fitted", driver=driver, shim=found)
        return found


def fit(shim: Path, driver: Path, place: Path) -> Path:
    """Path of a libcuda.so.1 that exports what the driver does, with the job's NVML beside it.

    Raises FitError, ElfError, OSError."""
    pairs = {CUDA: driver, NVML: driver.with_name(NVML)}
    old = {
        name: shim.with_name(name).read_bytes() for name in pairs if shim.with_name(name).exists()
    }
    missing = {name: _missing(old[name], pairs[name], PREFIX[name]) for name in old}
    if not any(missing.values()):
        return shim
    digest = hashlib.sha256()
    for name, data in old.items():
        digest.update(data + "\n".join(sorted(missing[name])).encode() + b"\0")
    folder = place / f"{shim.parent.name}-{digest.hexdigest()[:16]}"
    _reachable(place)
    _put(folder, {name: without(data, missing[name]) for name, data in old.items()})
    return folder / CUDA


def prune(state_dir: Path, used: Collection[str]) -> None:
    """Remove copies that no grant and no next grant names (`used`: paths of shims)."""
    keep = {Path(path).parent for path in used}
    try:
        folders = list((state_dir / FOLDER).iterdir())
    except OSError:
        return
    for folder in folders:
        if folder not in keep:
            shutil.rmtree(folder, ignore_errors=True)


def _missing(shim: bytes, library: Path, prefix: str) -> frozenset[str]:
    if not library.exists():
        return frozenset()  # the job's NVML then searches the real one elsewhere, or there is none
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        there = exported(data)
    if not any(name.startswith(prefix) for name in there):
        raise ElfError(f"{library} exports nothing that begins with {prefix}")
    return frozenset(
        name for name in exported(shim) if name.startswith(prefix) and name not in there
    )


def _signature(file: Path) -> Signature:
    try:
        info = file.stat()
    except OSError:
        return (str(file), 0, 0, 0)
    return (str(file), info.st_ino, info.st_size, info.st_mtime_ns)


def _reachable(place: Path) -> None:
    """Check that users can load libraries there, or programs would start without the shim."""
    place.mkdir(mode=0o755, exist_ok=True)
    for folder in (place, *place.resolve().parents):
        if not folder.stat().st_mode & 0o001:
            raise FitError(
                f"{folder} is closed to users: chmod o+x, or set state_dir to a place that is not"
            )
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise FitError(f"{place} is mounted noexec, so no library can be loaded from it")


def _put(folder: Path, files: dict[str, bytes]) -> None:
    """Write files of root with this content; a file with other content
    is replaced, never changed.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    info = folder.lstat()
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise FitError(f"{folder} can be changed by others: remove it")
    for name, data in files.items():
        path = folder / name
        if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
            continue
        fd, temporary = tempfile.mkstemp(dir=folder, prefix=".")
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o755)
        Path(temporary).replace(path)
