"""Releases of Slurm whose faults affect shares of a card, from Slurm's CHANGELOG and source.

`qgpu doctor` shows `faults_of` a version. It fails for one that breaks a promise of qgpu, and warns
where qgpu has a work-around or the site needs one. A note is of a rare or short effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, int, int]
Weight = Literal["fail", "warn", "note"]
OLDEST: Version = (22, 5, 0)


@dataclass(frozen=True)
class Fault:
    """Versions from `first` up to `mended`, exclusive. `ticket` of Slurm, 0 where none is known."""

    first: Version
    mended: Version
    weight: Weight
    text: str
    ticket: int = 0


FAULTS = (
    Fault((22, 5, 0), (22, 5, 2), "fail", "a job array with a gres crashes slurmctld"),
    Fault(
        (22, 5, 0),
        (22, 5, 6),
        "fail",
        "shares are sought on several cards, so they are refused or wait",
    ),
    Fault(
        (23, 2, 0),
        (23, 2, 2),
        "fail",
        "a restart of slurmctld cancels running jobs with shards",
        16545,
    ),
    Fault(
        (22, 5, 0),
        (23, 2, 2),
        "note",
        "gres of a requeued job may stay booked",
        16121,
    ),
    Fault((22, 5, 0), (23, 2, 4), "warn", "limits may count a gres twice"),
    Fault(
        (22, 5, 0),
        (23, 2, 4),
        "warn",
        "cgroup v2: the filter of devices may not load, and steps fail",
    ),
    Fault((23, 2, 2), (23, 2, 4), "warn", "a restarted slurmctld ignores new counts in gres.conf"),
    Fault((23, 2, 0), (23, 2, 6), "warn", "jobs may lose a gres when slurmctld restarts", 17184),
    Fault(
        (22, 5, 0), (23, 2, 7), "warn", "--gpu-bind fails with shards; qgpu's job_submit refuses it"
    ),
    Fault(
        (23, 11, 0),
        (23, 11, 2),
        "fail",
        "scontrol reconfigure ends jobs with gpu:1 of no named model",
        17433,
    ),
    Fault(
        (22, 5, 0),
        (23, 11, 5),
        "warn",
        "whole cards are given beside shares; qgpu books shards then",
        19110,
    ),
    Fault((23, 11, 0), (23, 11, 7), "warn", "a share with --exclusive can crash slurmctld"),
    Fault(
        (22, 5, 0),
        (24, 5, 4),
        "warn",
        "with enforce-binding shares are tried on cards in whole use",
        20244,
    ),
    Fault(
        (23, 11, 0),
        (24, 11, 1),
        "warn",
        "after a restart of slurmctld cards with Cores= may not be had",
        21262,
    ),
    Fault(
        (24, 11, 0),
        (24, 11, 1),
        "warn",
        "a job tried on a node with a wrong gres can crash slurmctld",
    ),
    Fault(
        (24, 11, 0),
        (24, 11, 3),
        "warn",
        "slurmd -G prints nothing, so doctor cannot read a node's gres",
    ),
    Fault(
        (22, 5, 0),
        (25, 5, 0),
        "note",
        "backfill may plan shares and whole cards of a node wrongly",
        22235,
    ),
    Fault(
        (22, 5, 0),
        (25, 5, 0),
        "note",
        "a node that lost and regained a card keeps wrong shards",
        22617,
    ),
    Fault((25, 5, 0), (25, 5, 1), "fail", "slurmctld gives the same gres to several jobs"),
    Fault(
        (25, 5, 0),
        (25, 5, 2),
        "warn",
        "shards per task go wrong: keep slurm.multi_card false",
    ),
    Fault((25, 5, 0), (25, 5, 3), "warn", "Cores= that do not exist in gres.conf crash slurmctld"),
    Fault(
        (25, 5, 0),
        (25, 5, 3),
        "warn",
        "jobs outside a reservation may get its cards, and the reverse",
        23043,
    ),
    Fault(
        (25, 11, 0), (25, 11, 1), "warn", "jobs of older slurmds end when a slurmd registers again"
    ),
    Fault(
        (25, 11, 0), (25, 11, 2), "warn", "a reservation may start while jobs still have its cards"
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
    """The known faults of a version, the worst first."""
    found = [fault for fault in FAULTS if fault.first <= version < fault.mended]
    return sorted(found, key=lambda fault: ("fail", "warn", "note").index(fault.weight))


def sound(version: Version) -> Version:
    """The first later release without a fault that doctor warns of."""
    while worse := [fault for fault in faults_of(version) if fault.weight != "note"]:
        version = max(fault.mended for fault in worse)
    return version


def table() -> list[str]:
    """The faults as rows of the table in docs/specs/doctor.md."""
    return [
        f"| {shown(fault.first)} | {shown(fault.mended)} | {fault.weight} | {fault.text}"
        f" | {fault.ticket} |".replace("| 0 |", "| |")
        for fault in FAULTS
    ]
