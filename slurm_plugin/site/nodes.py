"""NodeName and PartitionName lines: DEFAULT lines, bracket lists, and the lines of gres.conf for
one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gres.config.hostlist import HostlistError, expand
from slurm_plugin.site.conf import Conf, Entry, Fault, Value, shown


@dataclass(frozen=True)
class NodeLine:
    """A NodeName line: its names, and its keys with those of preceding DEFAULT lines."""

    entry: Entry
    names: tuple[str, ...]
    words: dict[str, Value]

    def get(self, key: str) -> str:
        """Text of a key; empty if neither the line nor a DEFAULT has it."""
        found = self.words.get(key.lower())
        return "" if found is None else found.value


def _merged(conf: Conf, key: str) -> Iterable[tuple[Entry, dict[str, Value]]]:
    """Lines that begin with `key`, with the values of the DEFAULT lines before them."""
    defaults: dict[str, Value] = {}
    for entry in conf.lines(key):
        own = {value.name: value for value in entry.rest}
        if entry.head.value.upper() == "DEFAULT":
            defaults = {**defaults, **own}
        else:
            yield entry, {**defaults, **own}


@lru_cache(maxsize=1024)
def _expanded(text: str) -> dict[str, None]:
    """Names in order, as a dict for fast search: a line may have thousands of nodes."""
    return dict.fromkeys(expand(text))


def names_in(text: str) -> Mapping[str, None]:
    """The names of a bracket list of qgpu.yaml, which is valid."""
    return _expanded(text)


def names_of(value: Value) -> tuple[Mapping[str, None], Fault | None]:
    """The names of a bracket list, in order; if unreadable, none and a fault."""
    try:
        return _expanded(value.value), None
    except HostlistError as error:
        return {}, Fault(value.file, value.line, f"{value.key}={shown(value.value, 40)}: {error}")


def node_lines(conf: Conf) -> tuple[list[NodeLine], list[Fault]]:
    """All NodeName lines of slurm.conf except DEFAULT ones, and the unreadable lists."""
    found: list[NodeLine] = []
    faults: list[Fault] = []
    for entry, words in _merged(conf, "NodeName"):
        names, fault = names_of(entry.head)
        if fault:
            faults.append(fault)
        found.append(NodeLine(entry, tuple(names), words))
    return found, faults


def node_line(conf: Conf, name: str) -> NodeLine | None:
    """The line of one node; None if slurm.conf does not name it."""
    return next((line for line in node_lines(conf)[0] if name in line.names), None)


def partitions(conf: Conf) -> list[NodeLine]:
    """PartitionName lines with their defaults; `names` are the partition's names."""
    return [
        NodeLine(entry, tuple(entry.head.items), words)
        for entry, words in _merged(conf, "PartitionName")
    ]


def gres_lines(conf: Conf, node: str) -> tuple[list[Entry], list[Fault]]:
    """The lines of gres.conf for a node, and the unreadable lists."""
    found: list[Entry] = []
    faults: list[Fault] = []
    for entry in conf.lines("Name", "NodeName"):
        named = entry.words.get("nodename")
        if named and entry.head.name != "nodename":
            text = "NodeName must be the first word of its line, or Slurm does not read it"
            faults.append(Fault(named.file, named.line, text))
        if "name" not in entry.words:
            continue
        names, fault = names_of(named) if named else ({node: None}, None)
        if fault:
            faults.append(fault)
        if node in names:
            found.append(entry)
    return found, faults
