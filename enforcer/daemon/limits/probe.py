"""Finds which cards of a node take memory limits per cgroup, by trying.

qgpud sets on its own cgroup, which never holds GPU memory, the limit that the cgroup has already.
That changes nothing, and fails where a real limit would: on a card in MIG mode, without permission,
with a library without the call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.nvml.port import Nvml, NvmlError
from gres.mounttable import rows

FIRST_DRIVER = 615  # first major version with limits per cgroup


def cgroup2_root(mounts: Path = Path("/proc/self/mounts")) -> Path | None:
    """Where cgroup version 2 is mounted; None beside version 1, where it
    has no memory controller.
    """
    try:
        found = rows(mounts.read_bytes())
    except OSError:
        return None
    if any(len(row) > 2 and row[2] == "cgroup" for row in found):
        return None
    return next((Path(row[1]) for row in found if len(row) > 2 and row[2] == "cgroup2"), None)


def own_cgroup(root: Path, told: Path = Path("/proc/self/cgroup")) -> Path:
    """This process's directory below `root`; `root` itself if that directory is not known."""
    try:
        lines = [line.split(":", 2) for line in os.fsdecode(told.read_bytes()).split("\n")]
    except OSError:
        return root
    path = next((row[2] for row in lines if len(row) == 3 and row[:2] == ["0", ""]), "/")
    own = root / path.strip("/")
    return own if ".." not in own.parts and own.is_dir() else root


@dataclass(frozen=True)
class Probe:
    """What a node offers.

    `nowhere`: why no card takes limits. `refusals`: why each card does not, empty if it does.
    `later`: it may change soon, because the driver is absent.
    """

    nowhere: str = ""
    refusals: Mapping[str, str] = field(default_factory=dict)
    later: bool = False

    def why(self, uuid: str) -> str:
        """Why that card takes no limits; empty if it does."""
        return self.nowhere or self.refusals.get(uuid, f"the driver has not named card {uuid} yet")

    def knows(self, uuids: Iterable[str]) -> bool:
        """Whether asking again about these cards is useless: they take limits, or no card ever
        will.
        """
        return bool(self.nowhere) or not any(self.why(uuid) for uuid in uuids)

    @property
    def anywhere(self) -> bool:
        """Whether some card takes limits."""
        return not self.nowhere and not all(self.refusals.values())

    @property
    def refusal(self) -> str:
        """Why not all cards take limits; empty if they do."""
        if self.nowhere:
            return self.nowhere
        return "; ".join(f"card {uuid}: {why}" for uuid, why in self.refusals.items() if why)


def probe(nvml: Nvml, root: Path | None) -> Probe:
    """Ask the driver and change nothing. Raises NvmlError only if the driver does not answer."""
    if root is None:
        return Probe(
            "the limits of the driver need cgroup version 2 alone, this node has version 1"
        )
    version = nvml.driver_version()
    match = re.match(r"[0-9]+", version)
    if match is None or int(match[0]) < FIRST_DRIVER:
        return Probe(
            f"driver {version} has no limits per cgroup; {FIRST_DRIVER} is the first that has"
        )
    cards = nvml.cards()
    if not cards:
        return Probe("the driver sees no card", later=True)
    own = str(own_cgroup(root))
    return Probe(refusals={card.uuid: _refusal(nvml, card.uuid, own, version) for card in cards})


def _refusal(nvml: Nvml, uuid: str, cgroup: str, version: str) -> str:
    try:
        found = nvml.memory_limits(uuid, cgroup)
        nvml.set_memory_limits(uuid, cgroup, found.soft, found.hard)
    except NvmlError as error:
        return f"driver {version} refuses limits per cgroup: {error}"
    return ""
