"""MIG instances: the GPU instance and compute instance behind a capability file.

The driver gives each GPU instance and compute instance a file /dev/nvidia-caps/nvidia-capN.
/proc/driver/nvidia-caps/mig-minors explains each N: `gpu0/gi2/access 21`, `gpu0/gi2/ci0/access 22`,
where gpu0 is /dev/nvidia0. NVML reports the same two numbers and the UUID of each instance. Pure,
except for `read_minors`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gres.config.hostlist import expand

# files per MIG instance: card, capability of GPU instance and of compute instance
INSTANCE_FILES = 3
MINORS_FILE = "/proc/driver/nvidia-caps/mig-minors"
CAPS = "/dev/nvidia-caps/nvidia-cap"

_LINE = re.compile(r"gpu([0-9]{1,7})/gi([0-9]{1,4})/(?:ci([0-9]{1,4})/)?access ([0-9]{1,7})")


class MigError(ValueError):
    """Capability files that are no MIG instance; the text is a sentence."""


class Instance(NamedTuple):
    """A compute instance: numbers of its GPU instance on the card, and of itself within that."""

    gi: int
    ci: int


class Place(NamedTuple):
    """The place of a card: the minor number of its device file, and the instance; None: the whole
    card.
    """

    minor: int
    instance: Instance | None


class Capability(NamedTuple):
    """The instance that one capability file opens; `ci` None: the GPU instance itself."""

    gpu: int
    gi: int
    ci: int | None


def parse_minors(text: str) -> dict[int, Capability]:
    """Capabilities by minor number; other lines (config, monitor) are skipped."""
    found = {}
    for match in filter(None, map(_LINE.fullmatch, map(str.strip, text.split("\n")))):
        gpu, gi, ci, minor = match.groups()
        found[int(minor)] = Capability(int(gpu), int(gi), None if ci is None else int(ci))
    return found


def read_minors() -> dict[int, Capability]:
    """The capabilities of this machine or of the simulated driver. Raises MigError."""
    simulated = os.environ.get("QGPU_SIM_DIR")
    path = Path(simulated) / "mig-minors" if simulated else Path(MINORS_FILE)
    try:
        return parse_minors(path.read_text(errors="replace"))
    except OSError as error:
        raise MigError(
            f"{path} cannot be read: {error.strerror}; is the driver loaded, with MIG?"
        ) from None


def instance_of(
    minors: Mapping[int, Capability], gpu: int, gi_minor: int, ci_minor: int
) -> Instance:
    """The instance with these two capability files on the card
    /dev/nvidia{gpu}. Raises MigError.
    """
    gi, ci = minors.get(gi_minor), minors.get(ci_minor)
    if gi is None or ci is None:
        missing = gi_minor if gi is None else ci_minor
        raise MigError(f"nvidia-cap{missing} is not in the driver's mig-minors")
    if gi.ci is not None or ci.ci is None:
        raise MigError(
            f"nvidia-cap{gi_minor} and nvidia-cap{ci_minor} are not a GPU instance and a compute"
            " instance, in this order"
        )
    if (gi.gpu, gi.gi) != (ci.gpu, ci.gi):
        raise MigError(f"nvidia-cap{ci_minor} is not an instance within nvidia-cap{gi_minor}")
    if gi.gpu != gpu:
        raise MigError(f"nvidia-cap{gi_minor} belongs to card {gi.gpu}, not to card {gpu}")
    return Instance(gi.gi, ci.ci)


def caps_of(minors: Mapping[int, Capability], place: Place) -> tuple[int, int]:
    """The inverse: minor numbers of the two capability files of an instance. Raises MigError."""
    if place.instance is None:
        raise MigError(f"card {place.minor} is no MIG instance")
    numbers = {capability: minor for minor, capability in minors.items()}
    gi, ci = place.instance
    try:
        return numbers[Capability(place.minor, gi, None)], numbers[Capability(place.minor, gi, ci)]
    except KeyError:
        raise MigError(
            f"GPU instance {gi} with compute instance {ci} of card {place.minor} is not in the"
            " driver's mig-minors"
        ) from None


def files_of(
    minors: Mapping[int, Capability], place: Place, device: str = "/dev/nvidia", caps: str = CAPS
) -> str:
    """An entry of `nodes[].instances` in qgpu.yaml. Raises MigError."""
    gi, ci = caps_of(minors, place)
    return f"{device}{place.minor},{caps}{gi},{caps}{ci}"


def check_instances(instances: Iterable[str]) -> None:
    """Check `nodes[].instances` of qgpu.yaml. Raises ValueError with a sentence."""
    seen: set[tuple[str, ...]] = set()
    for entry in instances:
        paths = tuple(expand(entry))
        if len(paths) != INSTANCE_FILES or not all(path.startswith("/") for path in paths):
            raise ValueError(
                f"instances has '{entry}', which are not three absolute paths; write for example"
                " /dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22], as qgpu card instances prints"
                " them"
            )
        if paths in seen:
            raise ValueError(f"instances has '{entry}' twice")
        seen.add(paths)
