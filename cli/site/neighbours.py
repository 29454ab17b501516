"""Requests beside one that does not start now: a smaller share, less memory, another class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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


def neighbours(found: Mapping[str, str], tag: Tag, config: Config) -> list[list[str]]:
    """Of each kind the options to try behind the given ones, the nearest first."""
    gres, limits = found.get("gres", ""), config.limits
    if tag.whole:
        return []
    kinds = [shares(gres, tag.share, limits.min_share), classes(tag, config)]
    if "vram" not in found:
        kinds.insert(1, memories(gres, tag.mem, limits.min_mem))
    return [list(kind) for kind in kinds]
