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

from gres.mounttable import mount_of, number_of

MAX_LINKS = 16  # symbolic links on one path, against loops
_LINK = "is a link"
_LOOP = "is a loop of links"


class UntrustedError(RuntimeError):
    """Others could replace a file; the text is a sentence with the command that repairs it."""


@dataclass(frozen=True)
class Doubt:
    """A file or directory by which another user could replace a trusted file."""

    path: str
    why: str
    mounted: bool = False

    def __str__(self) -> str:
        return f"{self.path} {self.why}"

    @property
    def todo(self) -> str:
        """What repairs it: a command, but for a loop of links."""
        path = shlex.quote(self.path)
        if self.why == _LOOP:
            return f"remove {path}, and put the file in its place"
        if self.mounted:
            return f"umount {path}"
        if self.why.startswith(_LINK):
            return f"chown -h root:root {path}"
        return f"chown root:root {path} && chmod go-w {path}"


def distrust(path: str | Path, owners: Iterable[int] = (0,)) -> Doubt | None:
    """Why a user other than `owners` could replace the file; None if none could, or if it is
    absent.

    Each directory on the path counts, and each symbolic link is followed. No question goes to a
    file system that is a user's program (FUSE): it may claim any owner, or never answer.
    """
    trusted = set(owners)
    todo = [part for part in str(path).split("/") if part]
    here, links, mount = Path("/"), 0, None
    while todo:
        step = here / todo.pop(0)
        if step.name == "..":
            here = here.parent
            continue
        try:
            fd = os.open(step, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            mount, before = number_of(fd), mount
            if mount != before and (fault := _of_a_users_program(step, fd, trusted)):
                return fault
            info = os.fstat(fd)
            target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(info.st_mode) else None
        except OSError as error:
            return Doubt(str(step), f"cannot be examined: {error.strerror or error}")
        finally:
            os.close(fd)
        if target is not None:
            links += 1
            if info.st_uid not in trusted:
                return Doubt(str(step), f"{_LINK} of uid {info.st_uid}")
            if links > MAX_LINKS:
                return Doubt(str(step), _LOOP)
            todo = [part for part in target.split("/") if part] + todo
            here = Path("/") if target.startswith("/") else here
            continue
        if fault := _open_to_others(step, info, trusted):
            return fault
        here = step
    return None


def _of_a_users_program(path: Path, fd: int, trusted: set[int]) -> Doubt | None:
    """Why the file system that begins here is not trusted. The kernel's own show true owners."""
    user = mount_of(fd).fuse_user
    if user is None or user in trusted:
        return None
    whose = f"uid {user}" if user >= 0 else "an unknown user"
    return Doubt(str(path), f"is on a FUSE file system of {whose}", mounted=True)


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
