"""Device cgroups of version 2: the BPF program of each cgroup that has one is replaced.

Slurm attaches one program to a cgroup, without flags or with BPF_F_ALLOW_OVERRIDE (seen with
24.11). Of such programs the one nearest to the process decides alone. So each is replaced, with
the flags that it has, and cgroups without one stay so. The new one has our rules before the
instructions of the old one (see `program`). Replacing is one step: no process is ever without.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from enforcer.daemon.devices import bpf, program
from enforcer.daemon.devices.places import GONE, Tree
from enforcer.daemon.devices.port import DevicesError, Rules

_NOBODY = Rules(frozenset(), frozenset())


@dataclass
class Unified:
    """The cgroups of one job."""

    _ours: dict[str, tuple[int, Rules]] = field(default_factory=dict)  # program and its rules

    def apply(self, tree: Tree, rules: Rules) -> bool:
        """Replace the programs that have other rules; whether there was one. Raises DevicesError.

        While nothing changes this is one question to the kernel per cgroup.
        """
        self._ours = {path: known for path, known in self._ours.items() if path in tree}
        changed = [_at(path, functools.partial(self._settle, path, rules=rules)) for path in tree]
        return any(changed)

    def refusal(self, tree: Tree) -> str:
        """Why programs cannot be replaced; empty if they can."""
        try:
            found = [_at(path, functools.partial(self._try, path)) for path in tree]
        except DevicesError as error:
            return str(error)
        return "" if any(found) else NO_PROGRAM

    def _try(self, path: str, cgroup: int) -> bool:
        """Whether the cgroup has a program. One that could replace it is loaded, not attached."""
        number, _ = _program_of(path, cgroup)
        if number:
            _, base = _parts(path, number)
            with bpf.loaded(program.compose(_NOBODY, base), program.NAME):
                pass
        return number != 0

    def _settle(self, path: str, cgroup: int, rules: Rules) -> bool:
        number, flags = _program_of(path, cgroup)
        if not number or self._ours.get(path) == (number, rules):
            return False
        before, base = _parts(path, number)
        if before != rules:
            with bpf.loaded(program.compose(rules, base), program.NAME) as fd:
                bpf.attach(cgroup, fd, flags)
                number, _ = _program_of(path, cgroup)
        self._ours[path] = (number, rules)
        return before != rules


NO_PROGRAM = (
    "none of its cgroups has a device program: Slurm does not constrain devices here"
    " (ConstrainDevices=yes in cgroup.conf would)"
)


def _at(path: str, work: Callable[[int], bool]) -> bool:
    """What `work` says of the open cgroup; False if that is gone. Raises DevicesError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        cgroup = os.open(path, flags)
        try:
            return work(cgroup)
        finally:
            os.close(cgroup)
    except OSError as error:
        if error.errno in GONE:
            return False
        why = error.strerror or str(error)
        raise DevicesError(f"the device program of {path} cannot be replaced: {why}") from None


def _program_of(path: str, cgroup: int) -> tuple[int, int]:
    """The id of the cgroup's own program, 0 if it has none, and the flags of its attachment."""
    numbers, flags = bpf.attached(cgroup)
    if not numbers:
        return 0, flags
    if flags & bpf.MULTI or len(numbers) > 1:
        raise DevicesError(
            f"the cgroup {path} has device programs of which each must allow a device"
            " (BPF_F_ALLOW_MULTI); Slurm attaches one alone, and only such a one can be replaced"
        )
    return numbers[0], flags


def _parts(path: str, number: int) -> tuple[Rules | None, bytes]:
    """Our rules in this program, and the rest, which is as Slurm wrote it."""
    found = bpf.program(number)
    if found.code is None:
        raise DevicesError(
            f"the kernel does not show the device program of {path}: with net.core.bpf_jit_harden=2"
            " it does so only for a process with CAP_SYSLOG"
        )
    rules, base = program.split(found.code)
    if why := program.obstacle(base, found.maps):
        raise DevicesError(f"the cgroup {path} cannot be changed: {why}, so it is not Slurm's")
    return rules, base
