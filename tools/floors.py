"""Checks the order of native folders: no object may need a symbol, and no source a header, of a
later folder.

usage: floors.py BUILD    after `make native`. Exit status 1 and one line per fault.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class House:
    """Sources and objects of one program or library, and its folders: each may use those before it.

    Sources that lie loose beside the folders may use all of them.
    """

    source: Path
    objects: Path
    floors: tuple[str, ...]
    excepted: tuple[tuple[str, str], ...] = ()  # (object, symbol) that may be of a later folder

    def floor(self, path: str) -> int:
        """Of a file below source or objects."""
        return self.floors.index(path.split("/")[0]) if "/" in path else len(self.floors)


def houses(build: Path) -> list[House]:
    """All that have an order."""
    simulator = ("protocol", "model", "device", "control", "serve", "libcuda", "libnvml")
    arbiter = (
        *("policy", "base", "model", "fds", "hw", "observe"),
        *("gate", "card", "peer", "tenant", "serve"),
    )
    shim = (
        *("base", "driver", "process", "link", "memory", "track"),
        *("window", "gate", "groups", "register", "hooks", "boot"),
    )
    return [
        # The first call of all may come before any constructor of ours: driver/driver.h says why.
        House(
            *(ROOT / "enforcer/native/shim", build / "obj/shim", shim),
            excepted=(("driver/driver.o", "qg_open_driver"),),
        ),
        House(ROOT / "simulator/native", build / "obj/sim", simulator),
        House(ROOT / "enforcer/native/arbiter", build / "obj/arbiter", arbiter),
    ]


def files(place: Path, house: House, *endings: str) -> list[str]:
    """Those below the folders of the order, and the loose ones, relative to place."""
    folders = [path for floor in house.floors for path in (place / floor).rglob("*")]
    found = [
        path.relative_to(place) for path in (*folders, *place.glob("*")) if path.suffix in endings
    ]
    return sorted(path.as_posix() for path in found if has_source(house, path))


def has_source(house: House, path: Path) -> bool:
    """Not so: an object of a source that was renamed or belongs to another folder of the tree."""
    return path.suffix != ".o" or (house.source / path).with_suffix(".c").exists()


def symbols(place: Path, names: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Which object defines each global symbol, and which object needs which."""
    nm = shutil.which("gcc-nm") or "nm"  # gcc-nm also reads objects of -flto
    told = subprocess.run(
        [nm, "-A", "-g", *names], cwd=place, check=True, capture_output=True, text=True
    )
    made: dict[str, str] = {}
    needs: list[tuple[str, str]] = []
    for line in told.stdout.splitlines():
        name, _, rest = line.partition(":")
        *_, kind, symbol = rest.split()
        if kind == "U":
            needs.append((name, symbol))
        else:
            made[symbol] = name
    return made, needs


def object_faults(house: House) -> Iterator[str]:
    """Symbols that are defined on a later floor."""
    names = files(house.objects, house, ".o")
    if not names:
        yield f"{house.objects} has no objects: say 'make native'"
        return
    made, needs = symbols(house.objects, names)
    for name, symbol in needs:
        if (name, symbol) in house.excepted:
            continue
        if symbol in made and house.floor(made[symbol]) > house.floor(name):
            yield f"{name} needs {symbol} of {made[symbol]}, a later floor"


def header_faults(house: House) -> Iterator[str]:
    """Headers of a later floor that a source or header includes."""
    names = files(house.source, house, ".h")
    headers = {name: name for name in names} | {Path(name).name: name for name in names}
    for name in files(house.source, house, ".c", ".h"):
        for header in INCLUDE.findall((house.source / name).read_text(encoding="utf-8")):
            if header in headers and house.floor(headers[header]) > house.floor(name):
                yield f"{name} includes {headers[header]}, a later floor"


def main() -> int:
    """Print the faults; 1 if there are any."""
    found = [
        fault
        for house in houses(Path(sys.argv[1]).resolve())
        for fault in (*object_faults(house), *header_faults(house))
    ]
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
