"""Releases of Slurm whose faults affect shares of a card, from Slurm's CHANGELOG and source.

`qgpu doctor` shows `faults_of` a version. A severe fault breaks a promise of qgpu. For the others
qgpu has a work-around, or the site needs one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int, int]
OLDEST: Version = (22, 5, 0)


@dataclass(frozen=True)
class Fault:
    """Versions from `first` up to `mended`, exclusive."""

    first: Version
    mended: Version
    severe: bool
    text: str


FAULTS = (
    Fault((25, 5, 0), (25, 5, 1), True, "slurmctld gives the same gres to several jobs"),
    Fault((23, 2, 0), (23, 2, 2), True, "a restart of slurmctld cancels running jobs with shards"),
    Fault(
        (22, 5, 0),
        (23, 11, 5),
        False,
        "slurmctld may give a whole card away while shares hold it; qgpu books whole cards as"
        " shards instead",
    ),
    Fault(
        (22, 5, 0), (23, 2, 7), False, "--gpu-bind fails with shards; qgpu's job_submit refuses it"
    ),
    Fault((23, 11, 0), (23, 11, 7), False, "a share with --exclusive can crash slurmctld"),
    Fault(
        (25, 5, 0),
        (25, 5, 2),
        False,
        "shards per task are placed wrongly: keep slurm.multi_card false",
    ),
    Fault((25, 5, 0), (25, 5, 3), False, "Cores= that do not exist in gres.conf crash slurmctld"),
    Fault(
        (25, 11, 0),
        (25, 11, 1),
        False,
        "running jobs of older slurmds end when a slurmd registers again",
    ),
    Fault(
        (24, 11, 0),
        (24, 11, 3),
        False,
        "slurmd -G prints nothing, so doctor cannot read a node's gres",
    ),
)


def parse(text: str) -> Version | None:
    """The version in a text such as "slurm-wlm 22.05.8" or "24.11"; None if there is none."""
    match = re.search(r"\b([0-9]{2})\.([0-9]{2})(?:\.([0-9]{1,3}))?\b", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def shown(version: Version) -> str:
    """ "22.05.8"."""
    return f"{version[0]}.{version[1]:02d}.{version[2]}"


def faults_of(version: Version) -> list[Fault]:
    """The known faults of a version, severe ones first."""
    found = [fault for fault in FAULTS if fault.first <= version < fault.mended]
    return sorted(found, key=lambda fault: not fault.severe)
