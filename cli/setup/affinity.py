"""Finds Slurm's cores near each card of this machine, for Cores= of gres.conf.

Slurm numbers cores by socket, without hyperthreads; the kernel numbers processors. Without
AutoDetect only Cores= gives them to Slurm, and `--gres-flags=enforce-binding` needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gres.config.hostlist import HostlistError, expand

PROC = Path("/proc/driver/nvidia/gpus")
SYS = Path("/sys")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)


def _numbers(text: str) -> list[int]:
    """Processors of a kernel list such as 0-15,32-47."""
    return [int(name) for name in expand(f"[{text.strip()}]")] if text.strip() else []


def ranges(numbers: Iterable[int]) -> str:
    """A list such as 0-15,32-47."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{low}-{high}" if low != high else str(low) for low, high in found)


def core_of_processor(sys: Path = SYS) -> dict[int, int]:
    """Slurm's core number of each processor: sockets in order, in each the cores in order of their
    first processor.
    """
    places: dict[tuple[int, int], int] = {}
    where: dict[int, tuple[int, int]] = {}
    for processor in _numbers((sys / "devices/system/cpu/online").read_text()):
        topology = sys / f"devices/system/cpu/cpu{processor}/topology"
        package = int((topology / "physical_package_id").read_text())
        where[processor] = (package, int((topology / "core_id").read_text()))
        places.setdefault(where[processor], processor)
    first = {
        package: min(p for (k, _), p in places.items() if k == package) for package, _ in places
    }
    ordered = sorted(places, key=lambda place: (first[place[0]], places[place]))
    number = {place: index for index, place in enumerate(ordered)}
    return {processor: number[place] for processor, place in where.items()}


def _bus_of_minor(proc: Path) -> dict[int, str]:
    """PCI address of each card by the minor number of its device file, by the driver."""
    found: dict[int, str] = {}
    for card in sorted(proc.iterdir()) if proc.is_dir() else ():
        minor = _MINOR.search((card / "information").read_text())
        if minor:
            found[int(minor[1])] = card.name.lower()
    return found


def cores_of_cards(minors: Sequence[int], proc: Path = PROC, sys: Path = SYS) -> list[str] | None:
    """Cores= of each card; None if unknown, or if all cards are near all cores."""
    try:
        numbers, buses = core_of_processor(sys), _bus_of_minor(proc)
        near = [
            {
                numbers[p]
                for p in _numbers(
                    (sys / "bus/pci/devices" / buses[minor] / "local_cpulist").read_text()
                )
            }
            for minor in minors
        ]
    except (OSError, ValueError, KeyError, HostlistError):
        return None
    every = set(numbers.values())
    if not all(near) or all(cores == every for cores in near):
        return None
    return [ranges(cores) for cores in near]
