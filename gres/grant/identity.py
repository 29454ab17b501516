"""Identifies a card: Slurm's index on a node -> device file -> minor number.

SLURM_JOB_GPUS follows the order of gres.conf, which `qgpu render` writes from qgpu.yaml; CUDA and
NVML have other orders. NVML finds a card by the minor number of its device file, and gives the
UUID. The two capability files identify a MIG instance (gres/config/mig.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gres.config.mig import Capability, Instance, MigError, Place, instance_of, read_minors
from gres.config.site import CardSpec, Node


class IdentityError(ValueError):
    """A card cannot be identified; the text is a sentence that names node and file."""


@dataclass(frozen=True)
class DeviceCard:
    """A configured card with its device number, and its MIG instance if it is one."""

    spec: CardSpec
    major: int
    minor: int
    instance: Instance | None = None

    @property
    def place(self) -> Place:
        """NVML's key of the card."""
        return Place(self.minor, self.instance)


def device_number(path: str) -> tuple[int, int]:
    """Major and minor of a character device. Raises IdentityError; a symbolic link is no device."""
    try:
        info = os.lstat(path)
    except OSError as error:
        raise IdentityError(
            f"the device file {path} cannot be examined: {error.strerror}"
        ) from None
    if not stat.S_ISCHR(info.st_mode):
        raise IdentityError(f"{path} is not a character device")
    return os.major(info.st_rdev), os.minor(info.st_rdev)


def _device_card(spec: CardSpec, minors: Callable[[], Mapping[int, Capability]]) -> DeviceCard:
    major, minor = device_number(spec.path)
    if not spec.caps:
        return DeviceCard(spec, major, minor)
    gi, ci = (device_number(path)[1] for path in spec.caps)
    try:
        return DeviceCard(spec, major, minor, instance_of(minors(), minor, gi, ci))
    except MigError as error:
        raise IdentityError(f"card {spec.index} ({','.join(spec.paths)}): {error}") from None


def identify(
    node: Node, indexes: Iterable[int], minors: Callable[[], Mapping[int, Capability]] = read_minors
) -> tuple[DeviceCard, ...]:
    """The cards of `node` with these indexes, in this order. `minors` reads the driver's capability
    numbers.

    Raises IdentityError for an index that is not configured and for two files that are one device.
    """
    cards: list[DeviceCard] = []
    for index in indexes:
        if not 0 <= index < len(node.cards):
            raise IdentityError(
                f"Slurm gave card {index}, but qgpu.yaml names {len(node.cards)} card(s) for"
                f" {node.name}"
            )
        spec = node.cards[index]
        found = _device_card(spec, minors)
        if any((card.major, card.place) == (found.major, found.place) for card in cards):
            raise IdentityError(
                f"{spec.path} on {node.name} is the same device as another card's file"
            )
        cards.append(found)
    return tuple(cards)
