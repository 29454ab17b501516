"""Counts the NVLinks between the cards of a node, as Slurm's own AutoDetect=nvml does.

A link counts if it is active and its other end is another card of the node, by PCI address. Behind
an NVSwitch the other end is the switch, so there all counts are 0, in Slurm as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SELF = -1  # of gres.conf: the card itself


def count_links(nvml: Any, handles: Sequence[Any]) -> list[list[int]]:
    """Links of each card to each card, -1 to itself. Raises pynvml.NVMLError."""
    places = {_bus(nvml.nvmlDeviceGetPciInfo(handle)): n for n, handle in enumerate(handles)}
    rows = [[0] * len(handles) for _ in handles]
    for own, handle in enumerate(handles):
        for other in map(places.get, _remotes(nvml, handle)):
            if other is not None:
                rows[own][other] += 1
        rows[own][own] = SELF
    return rows


def _remotes(nvml: Any, handle: Any) -> list[str]:
    """PCI addresses at the other ends of a card's active links."""
    found = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                found.append(_bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)))
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            continue  # a card with fewer links, or without any
    return found


def _bus(pci: Any) -> str:
    bus = pci.busId
    return str(bus.decode() if isinstance(bus, bytes) else bus).lower()
