"""Requests beside one that does not start now: a smaller share, less memory, another class. Each is
tried before it is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from gres.config.site import Config
from gres.grant.tag import Tag

_SHARE = re.compile(r"(?<![\w/:])(qgpu:(?:[^:,]+:)?)\d+(?=,|$)")
_MEMORY = re.compile(r"(?<![\w/:])vram:[^,]*")
PARTS = (0.75, 0.5, 0.25)  # of the share or memory; three tries of each, largest first


def shares(gres: str, share: int, least: int) -> Iterator[str]:
    """--gres with a smaller share; memory that is named stays."""
    for part in PARTS:
        smaller = int(share * part)
        changed, found = _SHARE.subn(rf"\g<1>{smaller}", gres)
        if found == 1 and smaller >= least:
            yield f"--gres={changed}"


def memories(gres: str, mem: int, least: int) -> Iterator[str]:
    """--gres with less memory, in whole GiB, and the same share."""
    rest = _MEMORY.sub("", gres).strip(",")
    for part in PARTS:
        gib = int(mem * part) >> 10
        if gib and gib << 10 >= least and _SHARE.search(gres):
            yield f"--gres={rest},vram:{gib}G"


def classes(tag: Tag, config: Config) -> Iterator[str]:
    """--qos of the other class."""
    for qos, job_class in sorted(config.qos.items()):
        if job_class != tag.job_class:
            yield f"--qos={qos}"


def neighbours(
    found: Mapping[str, str], tag: Tag, config: Config, starts: Callable[[str], bool]
) -> tuple[str, ...]:
    """The first of each kind that starts now; `starts` tries one."""
    gres = found.get("gres", "")
    if tag.whole or "vram" in found or "qgpu-cards" in found or not gres:
        kinds = [] if tag.whole else [classes(tag, config)]
    else:
        limits = config.limits
        kinds = [
            shares(gres, tag.share, limits.min_share),
            memories(gres, tag.mem, limits.min_mem),
            classes(tag, config),
        ]
    named = [next((one for one in kind if starts(one)), None) for kind in kinds]
    return tuple(one for one in named if one)
