"""Sources of Slurm's configuration files: this machine, a tree below another root, or texts."""

from __future__ import annotations

import errno
import glob as shell
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

MAX_BYTES = 16 << 20  # bytes of one file, so that a wrong path cannot exhaust memory


@dataclass(frozen=True)
class Disk:
    """A Source that reads files. `root` precedes each path: `/` is this machine."""

    root: str = "/"

    def real(self, path: str) -> str:
        """The path on this machine."""
        return path if self.root == "/" else f"{self.root.rstrip('/')}/{path.lstrip('/')}"

    def read(self, path: str) -> str:
        """Text of a regular file of at most 16 MiB. Raises OSError, ValueError with a sentence."""
        fd = os.open(self.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("it is not a regular file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(fd)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
        return data.decode("utf-8", "replace")

    def glob(self, pattern: str) -> list[str]:
        """Paths that match a shell pattern, sorted, without the root."""
        found = sorted(shell.glob(self.real(pattern)))  # noqa: PTH207 - no absolute ones
        cut = 0 if self.root == "/" else len(self.root.rstrip("/"))
        return [path[cut:] for path in found]


@dataclass(frozen=True)
class Texts:
    """A Source of texts by absolute path."""

    files: Mapping[str, str]

    def read(self, path: str) -> str:
        """One of the texts. Raises FileNotFoundError."""
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.files[path]

    def glob(self, pattern: str) -> list[str]:
        """The paths that match; as in a shell a `*` matches no slash."""
        depth = pattern.count("/")
        return sorted(
            path for path in self.files if path.count("/") == depth and fnmatchcase(path, pattern)
        )
