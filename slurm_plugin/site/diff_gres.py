"""Compares gres.conf with qgpu.yaml: the nodes' lines with those that we render. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gres.config.hostlist import HostlistError, expand
from gres.config.site import Config
from slurm_plugin.render import render
from slurm_plugin.site.conf import Conf, Entry, Value, parse
from slurm_plugin.site.diff_nodes import OURS, count_of
from slurm_plugin.site.diff_settings import include
from slurm_plugin.site.difference import AGAIN, Difference, removed, replaced, stale
from slurm_plugin.site.found import Site
from slurm_plugin.site.nodes import gres_lines, names_in, names_of
from slurm_plugin.site.sources import Texts

NAMES = (*OURS, "mps")
WHY = "slurmd counts the cards and their hundred parts by these lines"


@dataclass(frozen=True, order=True)
class Part:
    """One item that slurmd counts: a card with its file, the shards of a card, or a plain count."""

    name: str
    kind: str
    files: tuple[str, ...]
    count: int | None

    def __str__(self) -> str:
        words = [
            self.name,
            self.kind,
            ",".join(self.files),
            "" if self.count is None else f"Count={self.count}",
        ]
        return " ".join(filter(None, words))


def parts_of(lines: Iterable[Entry]) -> list[Part]:
    """The parts of a node's lines, in order. Raises HostlistError."""
    found: list[Part] = []
    for line in lines:
        name, kind = line.get("Name").lower(), line.get("Type")
        count = count_of(line.get("Count")) if line.get("Count") else None
        several, files = line.get("MultipleFiles"), line.get("File") or line.get("Files")
        if name not in NAMES:
            continue
        if several:
            found.append(Part(name, kind, tuple(expand(several)), count))
        elif files:
            found += [Part(name, kind, (path,), count) for path in expand(files)]
        else:
            found.append(Part(name, kind, (), count))
    return found


def rendered(config: Config) -> Conf:
    """gres.conf as we render it, read back."""
    return parse("/gres.conf", Texts({"/gres.conf": render("gres.conf", config)}))


def parts_fault(have: list[Part], wanted: list[Part]) -> str:
    """The first difference of a node's lines from what we render; empty if none."""
    cards = [",".join(part.files) for part in have if part.name == "gpu"]
    ours = [",".join(part.files) for part in wanted if part.name == "gpu"]
    if cards != ours:
        return f"its gpu files are {cards or 'none'}, those of qgpu.yaml {ours}, in this order"
    for part in wanted:
        if part in have:
            continue
        near = [other for other in have if (other.name, other.files) == (part.name, part.files)]
        if part.name in ("qgpu", "vram"):
            near = [other for other in near if other.kind == part.kind]
        return f"there is no line for {part}" + (f", but one for {near[0]}" if near else "")
    extra = [part for part in have if part not in wanted]
    return f"there is a line for {extra[0]}, which qgpu.yaml does not have" if extra else ""


def _auto(site: Site) -> Value | None:
    """AutoDetect of all nodes, unless it is off."""
    value = site.gres.get("AutoDetect")
    return value if value is not None and value.value.lower() != "off" else None


def _own_auto(site: Site, node: str) -> Iterator[tuple[Entry, Value]]:
    """Lines of one node with an AutoDetect of its own."""
    for entry in site.gres.lines("NodeName"):
        value = entry.words.get("autodetect")
        if value is not None and node in names_of(entry.head)[0]:
            yield entry, value


def gres_node_fault(wanted: Conf, have: Conf, node: str) -> str:
    """The fault of a node's lines as a whole; empty if none. `wanted`: see `rendered`."""
    try:
        return parts_fault(
            parts_of(gres_lines(have, node)[0]), parts_of(gres_lines(wanted, node)[0])
        )
    except HostlistError as error:
        return str(error)


def _foreign(config: Config, site: Site, nodes: list[str]) -> Iterator[Difference]:
    """The site's own lines for our cards, which would be counted beside ours."""
    seen: set[tuple[str, int]] = set()
    ours = set(config.node_names())
    for node in nodes:
        own = [line for line in gres_lines(site.gres, node)[0] if line.get("Name").lower() in NAMES]
        auto = [entry for entry, value in _own_auto(site, node) if value.value.lower() != "off"]
        for line in [*own, *auto]:
            head = line.head
            if site.places.ours(head.file) or (head.file, head.line) in seen:
                continue
            seen.add((head.file, head.line))
            yield _narrower(line, ours)


def _cores(config: Config, site: Site, nodes: list[str]) -> Iterator[Difference]:
    """AutoDetect told Slurm which cores are near a card, and of links; for cards of qgpu.yaml it is
    off.
    """
    auto = _auto(site)
    unknown = [
        g
        for g in config.nodes
        if not (g.cores or g.links) and any(name in nodes for name in names_in(g.names))
    ]
    if auto is None or not unknown:
        return
    yield Difference(
        "cores",
        auto.file,
        auto.line,
        f"{auto.key}={auto.value}",
        f"cores of {unknown[0].names} in qgpu.yaml (one of them prints its lines cores: and links:,"
        " where it has them, by the command)",
        "run",
        "qgpu setup --init --dry-run",
        "AutoDetect is off for the cards of qgpu.yaml, so Slurm does not know which cores are near"
        " them, and which cards have links",
        "",
        "warn",
    )


def _narrower(line: Entry, ours: set[str]) -> Difference:
    """The line without our nodes; removed if no other node is left."""
    named = line.words.get("nodename")
    why = "qgpu's fragment has these cards, and Slurm would count them twice"
    whole = Value(line.head.key, _text(line).partition("=")[2], line.head.file, line.head.line)
    if named is None:
        return removed(
            whole,
            "no such line for nodes of qgpu.yaml",
            f"{why}; others need NodeName= in it",
            "all",
        )
    left = [name for name in names_of(named)[0] if name not in ours]
    if not left:
        return removed(whole, "no such line for nodes of qgpu.yaml", why, "all")
    write = _text(line, ",".join(left))
    return replaced(whole, "Name", write, "no such line for nodes of qgpu.yaml", why, "all")


def _text(line: Entry, names: str | None = None) -> str:
    return line.written({"nodename": ("NodeName", names)} if names is not None else {})


def gres_differences(
    config: Config, site: Site, flat: bool, node: str | None = None
) -> Iterator[Difference]:
    """All nodes of qgpu.yaml, or one."""
    every = config.node_names()
    nodes = every if node is None else [name for name in every if name == node]
    wanted = rendered(config)
    faults = {name: fault for name in nodes if (fault := gres_node_fault(wanted, site.gres, name))}
    for name, fault in faults.items():
        if site.includes("gres.conf") and not any(
            not site.places.ours(line.head.file) for line in gres_lines(site.gres, name)[0]
        ):
            yield stale(
                "gres", site.places.fragment("gres.conf"), f"{name}'s cards", f"{name}: {fault}"
            )
            return
    if faults or site.includes("gres.conf"):
        yield from _foreign(config, site, nodes)
    if faults and not site.includes("gres.conf"):
        name, fault = next(iter(faults.items()))
        yield include(site, "gres.conf", flat, "the include of qgpu's fragment", f"{name}: {fault}")
    yield from _cores(config, site, nodes)
    if not faults:
        yield from _detection(site, nodes)


def _detection(site: Site, nodes: list[str]) -> Iterator[Difference]:
    """AutoDetect that holds for our cards: of a line of theirs, or of all nodes. `_foreign` has the
    lines that stand beside our fragment.
    """
    why = (
        "it may order and name the cards anew, and a step of a share may set the card's clocks"
        " (--gpu-freq)"
    )
    needed = "AutoDetect=off for these nodes"
    own = [each for name in nodes for each in _own_auto(site, name)]
    for entry, value in own:
        if value.value.lower() == "off":
            continue
        has = f"{value.key}={value.value}"
        if not site.includes("gres.conf"):
            write = entry.written({"autodetect": (value.key, "off")})
            yield replaced(value, "AutoDetect", write, needed, why, "all", "warn")
        elif site.places.ours(value.file):
            yield Difference(
                "AutoDetect", value.file, value.line, has, needed, "run", AGAIN, why, "all", "warn"
            )
        return
    auto = _auto(site)
    if auto and nodes and not own:
        line = f"NodeName={nodes[0]} AutoDetect=off"
        has = f"{auto.key}={auto.value}"
        yield Difference("AutoDetect", auto.file, 0, has, needed, "add", line, why, "all", "warn")
