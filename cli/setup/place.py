"""Writes our fragments: atomically, with owner and mode, and never over foreign files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_plugin.fragments import Fragment, seal_of

What = Literal["wrote", "updated", "kept", "refused", "removed"]
MAX_BYTES = 64 << 20  # bytes read of one file, so that a wrong path cannot exhaust memory
_NEW = ".qgpu-new"


class PlaceError(Exception):
    """A directory cannot be used; the text is a sentence."""


@dataclass(frozen=True)
class Done:
    """What became of one file. `why` is a sentence where it was refused."""

    path: str
    what: What
    why: str = ""
    kept_as: str = ""

    @property
    def changed(self) -> bool:
        """Whether the host has another file now."""
        return self.what in ("wrote", "updated", "removed")


class Folder:
    """A directory of ours, held open. `shown` is its path without the other root."""

    def __init__(self, fd: int, real: Path, shown: str, dry: bool) -> None:
        self.fd, self.real, self.shown, self.dry = fd, real, shown, dry

    def _path(self, name: str) -> str:
        return f"{self.shown}/{name}"

    def look(self, name: str) -> tuple[os.stat_result | None, str | None]:
        """What is there, and its text if it is a regular file of sensible size."""
        if self.fd < 0:
            return None, None
        try:
            info = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None, None
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
            return info, None
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.fd
        )
        with os.fdopen(fd, "rb") as file:
            return info, file.read(MAX_BYTES).decode("utf-8", "replace")

    def put(self, fragment: Fragment, replace_edited: bool) -> Done:
        """Write one fragment, if it is not there already."""
        path = self._path(fragment.name)
        info, text = self.look(fragment.name)
        if info is None:
            self._write(fragment)
            return Done(path, "wrote")
        if text == fragment.text and _sound(info, fragment.mode):
            return Done(path, "kept")
        if text is None:
            return Done(path, "refused", "it is no regular file; move it away and run this again")
        if text in (fragment.text, fragment.body) or seal_of(text) == "ours":
            self._write(fragment)
            return Done(path, "updated")
        if not replace_edited:
            how = (
                "was changed by hand"
                if seal_of(text) == "edited"
                else "was not written by qgpu setup"
            )
            why = (
                f"it {how}; put the change into qgpu.yaml or the site's own files, then say"
                " --replace-edited"
            )
            return Done(path, "refused", why)
        kept_as = self._set_aside(fragment.name)
        self._write(fragment)
        return Done(path, "updated", kept_as=self._path(kept_as))

    def _set_aside(self, name: str) -> str:
        """Keep the edited file under a free name."""
        number = 1
        other = f"{name}.site-edited"
        while self.look(other)[0] is not None:
            number += 1
            other = f"{name}.site-edited.{number}"
        if not self.dry:
            os.rename(name, other, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return other

    def _write(self, fragment: Fragment) -> None:
        try:
            if not self.dry:
                self._exchange(fragment)
        except OSError as error:
            raise PlaceError(
                f"{self._path(fragment.name)} cannot be written: {error.strerror}; it is as it was,"
                " run this again"
            ) from None

    def _exchange(self, fragment: Fragment) -> None:
        new = f".{fragment.name}{_NEW}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self.fd)  # of a run that was interrupted
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(new, flags, 0o600, dir_fd=self.fd)
        with os.fdopen(fd, "wb") as file:
            file.write(fragment.text.encode())
            file.flush()
            os.fchmod(fd, fragment.mode)
            os.fsync(fd)
        os.rename(new, fragment.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

    def remove(self, name: str) -> Done | None:
        """Take a fragment of ours away; None if there is none."""
        info, text = self.look(name)
        if info is None:
            return None
        if text is None or seal_of(text) != "ours":
            return Done(self._path(name), "refused", "it was changed by hand; remove it yourself")
        if not self.dry:
            os.unlink(name, dir_fd=self.fd)
        return Done(self._path(name), "removed")


def _sound(info: os.stat_result, mode: int) -> bool:
    return stat.S_IMODE(info.st_mode) == mode and info.st_uid in (0, os.geteuid())


@contextlib.contextmanager
def folder(real: Path, shown: str, dry: bool) -> Iterator[Folder]:
    """Our directory, made if need be, locked against a second run. Raises PlaceError."""
    fd = _open(real, shown, dry)
    try:
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield Folder(fd, real, shown, dry)
    finally:
        if fd >= 0:
            os.close(fd)


def _make(real: Path) -> None:
    """The directory and those above it, readable for all whatever the umask is."""
    for path in [*reversed(real.parents), real]:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o755)
            path.chmod(0o755)


def _open(real: Path, shown: str, dry: bool) -> int:
    if dry and not real.exists():
        return -1
    try:
        if not dry:
            _make(real)
        fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PlaceError(
            f"{shown} cannot be used: {error.strerror}; it must be a directory"
        ) from None
    info = os.fstat(fd)
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        os.close(fd)
        mode = f"{stat.S_IMODE(info.st_mode):04o}"
        raise PlaceError(
            f"{shown} belongs to uid {info.st_uid} with mode {mode}: others could change what root"
            f" runs; chown root:root {shown} && chmod 755 {shown}"
        )
    return fd


def link(real: Path, shown: str, target: str, dry: bool) -> Done | None:
    """A relative link beside slurm.conf to a fragment, where nothing of that name is there; None if
    something is.
    """
    if real.is_symlink() and str(real.readlink()) == target:
        return Done(shown, "kept")
    if real.is_symlink() or real.exists():
        return None
    if not dry:
        try:
            real.symlink_to(target)
        except OSError as error:
            return Done(shown, "refused", f"the link cannot be made: {error.strerror}")
    return Done(shown, "wrote")


def unlink(real: Path, shown: str, target: str, dry: bool) -> Done | None:
    """Take such a link away."""
    if not (real.is_symlink() and str(real.readlink()) == target):
        return None
    if not dry:
        real.unlink()
    return Done(shown, "removed")
