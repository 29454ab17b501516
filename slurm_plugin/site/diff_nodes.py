"""Gres= of NodeName lines against qgpu.yaml. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gres.config import Config
from gres.hostlist import expand
from slurm_plugin.render import gres_by_node
from slurm_plugin.site.conf import Value
from slurm_plugin.site.difference import Difference, replaced
from slurm_plugin.site.found import Site
from slurm_plugin.site.nodes import NodeLine, node_lines, partitions

OURS = ("gpu", "shard", "qgpu", "qgpu_mem")
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)B?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
# Keys with one value per node of the line: a line that has one cannot be split by its names alone.
_PER_NODE = ("nodeaddr", "nodehostname", "port", "bcastaddr")


def count_of(text: str) -> int | None:
    """Slurm's count with its suffix, in units of 1024; None if it is none."""
    found = _COUNT.fullmatch(text)
    return int(found[1][:15]) << 10 * _POWER[found[2].upper()] if found else None


def parse_gres(text: str) -> dict[tuple[str, str], int]:
    """Counts of a Gres= value by name and type; an entry without a count is one, what is malformed counts as -1."""
    counts: dict[tuple[str, str], int] = {}
    for entry in filter(None, (item.strip() for item in text.split(","))):
        name, *rest = entry.split(":")
        last = count_of(rest[-1]) if rest else 1
        if rest and last is not None:
            rest = rest[:-1]
        key = (name.lower(), ":".join(rest))
        counts[key] = counts.get(key, 0) + (1 if last is None else last)
    return counts


def _same(have: str, wanted: str) -> bool:
    """Whether our gres are the same; a shard may be without type, as in gres.conf of newer Slurm."""

    def ours(text: str) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for (name, kind), count in parse_gres(text).items():
            if name in (*OURS, "mps"):
                key = (name, "" if name == "shard" else kind)
                found[key] = found.get(key, 0) + count
        return found

    return ours(have) == ours(wanted)


def _others(gres: str) -> list[str]:
    """Entries of other gres, such as nic:1, as they are written."""
    entries = [entry.strip() for entry in gres.split(",")]
    return [e for e in entries if e and e.split(":")[0].lower() not in (*OURS, "mps")]


def _written(value: Value, text: str | None = None) -> str:
    text = value.value if text is None else text
    quoted = f'"{text}"' if re.search(r"\s", text) else text
    return f"{value.key}{value.operator}={quoted}"


def _line(line: NodeLine, names: str, gres: str) -> str:
    """The NodeName line with another Gres=, all other keys as they are."""
    rest = [_written(value) for value in line.entry.rest if value.name != "gres"]
    whole = ",".join([gres, *_others(line.get("Gres"))])
    return " ".join([f"{line.entry.head.key}={names}", *rest, f"Gres={whole}"])


def _known(gres: dict[str, str], names: tuple[str, ...]) -> dict[str, list[str]]:
    """The nodes of a line by what their Gres= should be; those that qgpu.yaml does not name under an empty one."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(gres.get(name, ""), []).append(name)
    return found


def _line_differences(gres: dict[str, str], line: NodeLine) -> Iterator[Difference]:
    wanted = _known(gres, line.names)
    head, have = line.entry.head, line.get("Gres")
    unknown = wanted.pop("", [])
    if unknown and any(name in ("shard", "qgpu", "qgpu_mem") for name, _ in parse_gres(have)):
        why = "no node has shares that qgpu.yaml does not name"
        needed = "these nodes under nodes in qgpu.yaml, or a line without shards"
        yield replaced(head, "Gres", _written(head), needed, why, "all")
        return
    if not wanted or (not unknown and len(wanted) == 1 and _same(have, next(iter(wanted)))):
        return
    why = "slurmctld counts a node's cards and shares by this line"
    parts = [(",".join(names), gres) for gres, names in wanted.items()]
    if len(parts) == 1 and not unknown:
        write = _line(line, head.value, parts[0][1])
        yield replaced(head, "Gres", write, f"Gres={parts[0][1]}", why, "all")
        return
    if all(_same(have, gres) for _, gres in parts) and not unknown:
        return
    split = "a line of their own for nodes of each kind"
    write = "; ".join(_line(line, names, gres) for names, gres in parts)
    if any(key in line.words for key in _PER_NODE):
        split += ", with their part of NodeAddr, NodeHostname and Port"
    yield replaced(head, "Gres", write, split, why, "all")


def _strangers(config: Config, site: Site, lines: list[NodeLine]) -> Iterator[Difference]:
    """Nodes with cards in a managed partition that qgpu.yaml does not name."""
    configured = set(config.node_names())
    every = "*" in config.managed_partitions
    managed = every or any(
        set(part.names) & set(config.managed_partitions) for part in partitions(site.slurm)
    )
    for line in lines if managed and every else []:
        names = [name for name in line.names if name not in configured]
        if names and any(name == "gpu" for name, _ in parse_gres(line.get("Gres"))):
            head = line.entry.head
            why = "jobs in managed partitions get shares, which these nodes cannot give"
            needed = f"{', '.join(names[:4])} under nodes in qgpu.yaml, or managed_partitions without their partition"
            yield replaced(head, "nodes", _written(head), needed, why, "", "warn")


def node_differences(config: Config, site: Site, node: str | None = None) -> Iterator[Difference]:
    """All NodeName lines, or that of one node."""
    lines, _ = node_lines(site.slurm)
    wanted = gres_by_node(config)
    for line in lines:
        if node is None or node in line.names:
            yield from _line_differences(wanted, line)
    if node is None:
        yield from _strangers(config, site, lines)
    named = {name for line in lines for name in line.names}
    for group in config.nodes:
        absent = [n for n in expand(group.names) if n not in named and (node is None or n == node)]
        if absent and site.slurm.exists:
            names = group.names if len(absent) == len(expand(group.names)) else ",".join(absent)
            yield Difference(
                "NodeName", site.slurm.path, 0, "", f"a NodeName line of {names}", "add",
                f"NodeName={names} Gres={wanted[absent[0]]}", "qgpu.yaml has these nodes; add CPUs and"
                " memory as slurmd -C prints them, and a partition", "all",
            )  # fmt: skip
