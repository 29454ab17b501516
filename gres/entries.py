"""One TRES string of a job, such as `gres:qgpu:30,gres:craynetwork:1`, taken apart without judging it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

OWN = ("qgpu", "qgpu_mem")
SHARED = ("shard", "mps")
_PREFIX = re.compile(r"(?:gres[:/])*")
_SPLIT = re.compile(r"[:=]")


@dataclass(frozen=True)
class Entry:
    """One entry: its text without Slurm's prefix (`gres:`, `gres/`), its name, the parts behind it."""

    text: str
    name: str
    parts: tuple[str, ...]


@dataclass
class Entries:
    """The entries of one string by what they are; `rest` belongs to others and is never touched."""

    qgpu: list[Entry] = field(default_factory=list)
    mem: list[Entry] = field(default_factory=list)
    shared: list[Entry] = field(default_factory=list)
    gpu: list[Entry] = field(default_factory=list)
    rest: list[Entry] = field(default_factory=list)


def parse_entry(text: str) -> Entry:
    """One entry; the prefix may be missing, as in what Lua is given by some versions, or doubled."""
    match = _PREFIX.match(text)
    text = text[match.end() :] if match else text
    name, *parts = _SPLIT.split(text)
    return Entry(text, name, tuple(parts))


def _no_card(entry: Entry) -> bool:
    """`gpu:0`: asks for nothing, and must not be promised a card."""
    return entry.name == "gpu" and re.fullmatch("0+", entry.parts[-1] if entry.parts else "") is not None


def parse_entries(text: str | None) -> Entries:
    """All entries of a string; empty ones between commas are dropped, as Slurm does."""
    entries = Entries()
    for part in (text or "").split(","):
        entry = parse_entry(part)
        if entry.text and not _no_card(entry):
            groups = {"qgpu": entries.qgpu, "qgpu_mem": entries.mem, "gpu": entries.gpu}
            groups |= dict.fromkeys(SHARED, entries.shared)
            groups.get(entry.name, entries.rest).append(entry)
    return entries
