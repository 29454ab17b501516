"""Checks that only root can replace a file: with each directory and link on its path.

It covers what root reads, loads or runs: qgpu.yaml, run_dir, the shims, the SPANK plugin, the
driver's library, programs. The C parts have the same rule (slurm_plugin/common/paths.c).
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_LINKS = 16  # symbolic links on one path, against loops


class UntrustedError(RuntimeError):
    """Others could replace a file; the text is a sentence with the command that repairs it."""


@dataclass(frozen=True)
class Doubt:
    """A file or directory by which another user could replace a trusted file."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"

    @property
    def todo(self) -> str:
        """The command that repairs it."""
        path = shlex.quote(self.path)
        return f"chown root:root {path} && chmod go-w {path}"


def distrust(path: str | Path, owners: Iterable[int] = (0,)) -> Doubt | None:
    """Why a user other than `owners` could replace the file; None if none could, or if it is
    absent.

    Each directory on the path counts, and each symbolic link is followed.
    """
    trusted = set(owners)
    todo = [part for part in str(path).split("/") if part]
    here, links = Path("/"), 0
    while todo:
        step = here / todo.pop(0)
        if step.name == "..":
            here = here.parent
            continue
        try:
            info = step.lstat()
        except OSError:
            return None
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > MAX_LINKS or info.st_uid not in trusted:
                return Doubt(str(step), f"is a link of uid {info.st_uid}")
            target = step.readlink()
            todo = [part for part in str(target).split("/") if part] + todo
            here = Path("/") if target.is_absolute() else here
            continue
        if fault := _open_to_others(step, info, trusted):
            return fault
        here = step
    return None


def _open_to_others(path: Path, info: os.stat_result, trusted: set[int]) -> Doubt | None:
    """Why others can write here; in a sticky directory such as /tmp they cannot replace foreign
    files.
    """
    if info.st_uid not in trusted:
        return Doubt(str(path), f"belongs to uid {info.st_uid}")
    sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
    if info.st_mode & 0o022 and not sticky and not stat.S_ISCHR(info.st_mode):
        return Doubt(str(path), f"has mode {stat.S_IMODE(info.st_mode):04o}")
    return None


def require(path: str | Path, what: str) -> None:
    """Raise UntrustedError if a user other than root or the present one could replace the file
    `what`.

    A daemon of root accepts root alone; a command of SlurmUser also accepts SlurmUser's files.
    """
    doubt = distrust(Path(path).absolute(), {0, os.geteuid()})
    if doubt is not None:
        raise UntrustedError(
            f"{what} {path} is not used, since others than root could change it: {doubt}. Run:"
            f" {doubt.todo}"
        )
