"""Device cgroups of version 1: rules are written to devices.allow and devices.deny.

The refused devices of a cgroup cannot be read. So the rules are written each time; a rule that is
there already changes nothing. A child can only have what its parent has, and loses what its parent
loses. So the parents come first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass

from enforcer.daemon.devices.places import GONE, Tree
from enforcer.daemon.devices.port import Device, DevicesError, Rules


@dataclass
class Single:
    """The cgroups of one job."""

    _done: tuple[frozenset[str], Rules] | None = None

    def apply(self, tree: Tree, rules: Rules) -> bool:
        """Write the rules; whether cgroups or rules are others than last time.

        Raises DevicesError.
        """
        for directory in tree:
            _write(directory, "devices.allow", sorted(rules.allow))
            _write(directory, "devices.deny", sorted(rules.deny))
        before, self._done = self._done, (frozenset(tree), rules)
        return before != self._done

    def refusal(self, tree: Tree) -> str:
        """Why no rules can be written; empty if they can."""
        for name in ("devices.allow", "devices.deny"):
            path = f"{next(iter(tree))}/{name}"
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            except OSError as error:
                return f"{path} cannot be opened for writing: {error.strerror}"
        return ""


def _write(directory: str, name: str, devices: Iterable[Device]) -> None:
    """Write one rule per call, as the kernel wants it. A cgroup that is gone is no fault."""
    path = f"{directory}/{name}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DevicesError(f"{path} cannot be opened for writing: {error.strerror}") from None
    try:
        for device in devices:
            _one(fd, path, device)
    finally:
        os.close(fd)


def _one(fd: int, path: str, device: Device) -> None:
    try:
        os.write(fd, f"c {device.major}:{device.minor} rwm".encode())
    except OSError as error:
        if error.errno in GONE:
            return
        why = error.strerror
        if error.errno == errno.EPERM:
            why = "the cgroup above does not have it, or qgpud has no CAP_SYS_ADMIN"
        raise DevicesError(
            f"the kernel does not take device {device.major}:{device.minor} at {path}: {why}"
        ) from None
