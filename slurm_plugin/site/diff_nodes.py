"""Compares Gres= of NodeName lines with qgpu.yaml. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gres.config.hostlist import HostlistError, expand, fold
from gres.config.site import Config
from slurm_plugin.render import gres_by_node
from slurm_plugin.site.conf import Value
from slurm_plugin.site.difference import Difference, replaced
from slurm_plugin.site.found import Site
from slurm_plugin.site.nodes import NodeLine, node_lines, partitions

SHARES = ("shard", "qgpu", "vram")
OURS = ("gpu", *SHARES)
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)B?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
# Keys with one value per node of the line.
_PER_NODE = ("nodeaddr", "nodehostname", "port", "bcastaddr")


def count_of(text: str) -> int | None:
    """Slurm's count with its suffix, in units of 1024; None if it is none."""
    found = _COUNT.fullmatch(text)
    return int(found[1][:15]) << 10 * _POWER[found[2].upper()] if found else None


def parse_gres(text: str) -> dict[tuple[str, str], int]:
    """Counts of a Gres= value by name and type; without a count 1, malformed -1."""
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
    """Whether our gres are equal; a shard may lack the type, as in gres.conf of newer Slurm."""

    def ours(text: str) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for (name, kind), count in parse_gres(text).items():
            if name in (*OURS, "mps"):
                key = (name, "" if name == "shard" else kind)
                found[key] = found.get(key, 0) + count
        return found

    return ours(have) == ours(wanted)


def _others(gres: str) -> list[str]:
    """Entries of other gres, such as nic:1, as written."""
    entries = [entry.strip() for entry in gres.split(",")]
    return [e for e in entries if e and e.split(":")[0].lower() not in (*OURS, "mps")]


def _without_shares(gres: str) -> list[str]:
    entries = [entry.strip() for entry in gres.split(",")]
    return [e for e in entries if e and e.split(":")[0].lower() not in SHARES]


def _line(line: NodeLine, names: str, gres: str) -> str:
    """The NodeName line with another Gres=, other keys unchanged."""
    rest = [value.written() for value in line.entry.rest if value.name != "gres"]
    whole = ",".join([gres, *_others(line.get("Gres"))])
    return " ".join([f"{line.entry.head.key}={names}", *rest, f"Gres={whole}"])


def _of_each(line: NodeLine, value: Value) -> dict[str, str] | None:
    """A key's value by node; None for one common value. Raises
    HostlistError if they do not match.
    """
    values = expand(value.value)
    if len(values) == 1 or value.name not in _PER_NODE:
        return None
    if len(values) != len(line.names):
        raise HostlistError(f"{value.key}={value.value} has not one value for each node")
    return dict(zip(line.names, values, strict=True))


def _part(line: NodeLine, names: list[str], gres: str) -> str:
    """A line for some nodes; nodes not in qgpu.yaml (`gres` is empty) keep all but shares.

    Raises HostlistError.
    """
    words = [f"{line.entry.head.key}={fold(names)}"]
    for value in line.entry.rest:
        if value.name == "gres":
            continue
        each = _of_each(line, value)
        words.append(value.written(fold(each[name] for name in names) if each else None))
    entries = [gres, *_others(line.get("Gres"))] if gres else _without_shares(line.get("Gres"))
    return " ".join([*words, *([f"Gres={','.join(entries)}"] if entries else [])])


def _known(gres: dict[str, str], names: tuple[str, ...]) -> dict[str, list[str]]:
    """The nodes of a line by their wanted Gres=; those not in qgpu.yaml under an empty one."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(gres.get(name, ""), []).append(name)
    return found


def _line_differences(by_node: dict[str, str], line: NodeLine) -> Iterator[Difference]:
    wanted = _known(by_node, line.names)
    head, have = line.entry.head, line.get("Gres")
    unknown = wanted.pop("", [])
    why = "slurmctld counts a node's cards and shares by this line"
    if unknown and any(name in SHARES for name, _ in parse_gres(have)):
        why = "no node has shares that qgpu.yaml does not name"
        needed = "these nodes under nodes in qgpu.yaml, or a line without shards"
        yield replaced(head, "Gres", _split(line, wanted, unknown)[0], needed, why, "all")
    elif len(wanted) == 1 and not unknown:
        gres = next(iter(wanted))
        if not _same(have, gres):
            yield replaced(head, "Gres", _line(line, head.value, gres), f"Gres={gres}", why, "all")
    elif wanted:
        yield replaced(head, "Gres", *_split(line, wanted, unknown), why, "all")


def _split(line: NodeLine, wanted: dict[str, list[str]], unknown: list[str]) -> tuple[str, str]:
    """The lines that replace this one, and the need; nodes not in qgpu.yaml keep their values."""
    parts = [
        *((names, gres) for gres, names in wanted.items()),
        *([(unknown, "")] if unknown else []),
    ]
    needed = "a line of their own for nodes of each kind"
    try:
        return "\n".join(_part(line, names, gres) for names, gres in parts), needed
    except HostlistError as error:
        return "", f"{needed}; {error}"


def _unnamed_nodes(config: Config, site: Site, lines: list[NodeLine]) -> Iterator[Difference]:
    """Nodes with cards in a managed partition, but not in qgpu.yaml."""
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
            several = fold(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            needed = (
                f"{several} under nodes in qgpu.yaml (one of them prints its lines models: and"
                " nodes: by the command), or managed_partitions without their partition"
            )
            ask = "qgpu setup --init --dry-run"
            has = f"{head.key}={head.value}"
            yield Difference(
                "nodes", head.file, head.line, has, needed, "run", ask, why, "", "warn"
            )


def node_differences(config: Config, site: Site, node: str | None = None) -> Iterator[Difference]:
    """All NodeName lines, or that of one node."""
    lines, _ = node_lines(site.slurm)
    wanted = gres_by_node(config)
    for line in lines:
        if node is None or node in line.names:
            yield from _line_differences(wanted, line)
    if node is None:
        yield from _unnamed_nodes(config, site, lines)
    named = {name for line in lines for name in line.names}
    for group in config.nodes:
        absent = [n for n in expand(group.names) if n not in named and (node is None or n == node)]
        if absent and site.slurm.exists:
            names = group.names if len(absent) == len(expand(group.names)) else ",".join(absent)
            yield Difference(
                "NodeName",
                site.slurm.path,
                0,
                "",
                f"a NodeName line of {names}",
                "add",
                f"NodeName={names} Gres={wanted[absent[0]]}",
                "qgpu.yaml has these nodes; add CPUs and"
                " memory as slurmd -C prints them, and a partition",
                "all",
            )
