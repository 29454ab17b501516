"""`qgpu setup --init`: a first qgpu.yaml from slurm.conf, Slurm's version and the cards of this
node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import click
import jinja2
import yaml

from cli.doctor.host import Host
from cli.run.private import device_files
from cli.setup.affinity import cores_of_cards
from cli.setup.host import Here
from cli.setup.place import Folder, folder
from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import CardInfo, NvmlError
from gres.config.site import ConfigError, parse_config
from gres.units import MIB, UnitError, format_mib, parse_mib
from slurm_plugin.fragments import Fragment
from slurm_plugin.site.conf import Conf, parse
from slurm_plugin.site.diff_nodes import parse_gres
from slurm_plugin.site.nodes import NodeLine, node_line, node_lines

F = TypeVar("F", bound=Callable[..., Any])
CLASSES = ("online", "offline")
NAMED = ("NodeName", "Name")  # lines of gres.conf that may say AutoDetect=
LARGE = 32 * 1024  # MiB: from here on 2 GiB are kept back for contexts


@dataclass(frozen=True)
class Given:
    """Cards by the command line, if the machine does not show them."""

    nodes: str | None = None
    cards: int | None = None
    model: str | None = None
    memory: str | None = None


@dataclass(frozen=True)
class Seen:
    """What NVML says of this machine: cards by their minor numbers, and in this order Links= of
    gres.conf of each; none where no link leads from card to card.
    """

    cards: tuple[CardInfo, ...] = ()
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Nodes that are alike."""

    names: str
    model: str
    count: int
    files: str
    cores: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def options(command: F) -> F:
    """The options of --init."""
    for name, kind, text in (
        ("--memory", str, "With --init: memory of one card, for example 80GiB."),
        ("--model", str, "With --init: a name for the model of card, for example h200."),
        ("--cards", click.IntRange(1, 64), "With --init: cards of each node."),
        ("--nodes", str, 'With --init: the nodes with cards, for example "n[1-2]".'),
    ):
        command = click.option(name, default=None, type=kind, help=text)(command)
    return command


def write(here: Here, path: str, dry: bool, given: Given) -> None:
    """Write or print qgpu.yaml. Raises click.ClickException if it exists or lacks a fact."""
    real = here.real(path)
    if not dry and (real.exists() or real.is_symlink()):
        raise click.ClickException(f"{path} is there already; edit it, or move it away first")
    text = first_text(here, given, seen())
    if dry:
        click.echo(text, nl=False)
        return
    with folder(real.parent, str(Path(path).parent), False) as place:
        put(place, real.name, text)
    click.echo(f"wrote     {path}: look through it, then give the same file to every host")


def put(place: Folder, name: str, text: str) -> None:
    """Write the file whole; qgpu.yaml is the site's from then on, so it has no seal."""
    place.put(Fragment(name, text, 0o644), replace_edited=False)


def seen() -> Seen:
    """Cards and links of this machine; none where no driver answers."""
    try:
        nvml = PynvmlNvml()
        cards = tuple(sorted(nvml.cards(), key=lambda card: card.minor))
        found = Seen(cards, _links(nvml, cards))
        nvml.close()
    except NvmlError:
        return Seen()
    return found


def _links(nvml: PynvmlNvml, cards: Sequence[CardInfo]) -> tuple[str, ...]:
    if any(card.instance for card in cards):
        return ()  # MIG instances have none
    try:
        rows = nvml.links([card.uuid for card in cards])
    except NvmlError:
        return ()
    linked = any(number > 0 for row in rows for number in row)
    return tuple(",".join(map(str, row)) for row in rows) if linked else ()


def model_name(product: str) -> str:
    """A name for gres.conf: "NVIDIA H200 NVL" -> h200_nvl."""
    words = re.sub(
        r"[^a-z0-9.]+", "_", product.lower().replace("nvidia", "").replace("tesla", "")
    ).strip("_")
    return words[:40] if words[:1].isalpha() else f"gpu_{words[:36]}".rstrip("_")


def first_text(here: Here, given: Given, seen: Seen) -> str:
    """The file's text. Raises click.ClickException."""
    conf = parse(here.places.slurm_conf, here.disk)
    version = re.search(r"\b([0-9]{2}\.[0-9]{2})\b", here.version)
    if version is None:
        raise click.ClickException("no program of Slurm says its version here: install Slurm first")
    groups = _groups(here, conf, given, seen if _detected(here) else replace(seen, links=()))
    memory = _memory(given, seen.cards)
    text = _template().render(
        cluster=_cluster(conf),
        version=version[1],
        # A configless host has slurm.conf without the files of setup, and could not submit.
        cli_filter=here.found and not _configless(conf),
        qos=_qos() if here.root == "/" else {},
        models={group.model: format_mib(memory) for group in groups},
        reserve="2GiB" if memory >= LARGE else "512MiB",
        groups=groups,
    )
    try:
        parse_config(text)
    except ConfigError as error:
        raise click.ClickException(f"no qgpu.yaml can be made of it: {error}") from None
    return text


def _configless(conf: Conf) -> bool:
    return "enable_configless" in conf.text("SlurmctldParameters").lower().split(",")


def _detected(here: Here) -> bool:
    """Whether Slurm found links by itself: of its ways of detection, nvml alone does."""
    conf = parse(here.places.main("gres.conf"), here.disk)
    lines = [entry.words.get("autodetect") for key in NAMED for entry in conf.lines(key)]
    found = [conf.get("AutoDetect"), *lines]
    return any(value is not None and value.value.lower() == "nvml" for value in found)


def _template() -> jinja2.Template:
    source = (files("configs") / "templates" / "qgpu.yaml.j2").read_text()
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML; the schema reads it back
    )
    environment.filters["word"] = _word
    return environment.from_string(source)


def _word(name: str) -> str:
    """A name for YAML; `yes` and `on` are names only in quotes."""
    try:
        plain = yaml.safe_load(f"[{name}]") == [name]
    except yaml.YAMLError:
        plain = False
    return name if plain else json.dumps(name)


def _cluster(conf: Conf) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", conf.text("ClusterName", "cluster")).lower()
    return name if name[:1].isalpha() else f"c-{name}"


def _qos() -> dict[str, str]:
    """QOS of slurmdbd that are named after a class; empty where it does not answer."""
    names = Host().said("sacctmgr", "-nP", "show", "qos", "format=name").out.split()
    return {name: name for name in CLASSES if name in names}


def _memory(given: Given, cards: tuple[CardInfo, ...]) -> int:
    """MiB of one card."""
    if given.memory is not None:
        try:
            return parse_mib(given.memory)
        except UnitError as error:
            raise click.ClickException(f"--memory: {error}") from None
    if not cards:
        raise click.ClickException(
            "no NVIDIA driver answers here: run this on a node with cards, or say --memory, for"
            ' example --nodes "n[1-2]" --cards 2 --model h200 --memory 80GiB'
        )
    return min(card.mem_total for card in cards) // MIB


def _gpus(line: NodeLine) -> tuple[str, int] | None:
    """Type and number of a node's cards in slurm.conf."""
    found = [(kind, n) for (name, kind), n in parse_gres(line.get("Gres")).items() if name == "gpu"]
    return found[0] if len(found) == 1 else None


def _groups(here: Here, conf: Conf, given: Given, seen: Seen) -> list[Group]:
    names = {card.name for card in seen.cards}
    if len(names) > 1:
        raise click.ClickException(
            f"this node has cards of {len(names)} models, {' and '.join(sorted(names))}; a node in"
            " qgpu.yaml has one"
        )
    model = given.model or (model_name(names.pop()) if names else "")
    count = given.cards or len(seen.cards)
    if given.nodes is not None:
        return [_group(given.nodes, model, count, seen)]
    told = [(line, gpus) for line in node_lines(conf)[0] if (gpus := _gpus(line))]
    if told:
        return [
            _group(line.entry.head.value, given.model or kind or model, n, seen)
            for line, (kind, n) in told
        ]
    own = node_line(conf, here.name)
    if own is None or not count:
        raise click.ClickException(
            f"{here.places.slurm_conf} names no node with cards, and not this host; say which, for"
            ' example --nodes "n[1-2]" --cards 2 --model h200 --memory 80GiB'
        )
    return [_group(own.entry.head.value, model, count, seen)]


def _group(names: str, model: str, count: int, seen: Seen) -> Group:
    if not model:
        raise click.ClickException(
            "the model of the cards is not known here; say --model, for example --model h200"
        )
    if not count:
        raise click.ClickException(
            "the number of cards is not known here; say --cards, for example --cards 2"
        )
    alike = len(seen.cards) == count
    minors = [card.minor for card in seen.cards] if alike else list(range(count))
    cores = tuple(cores_of_cards(minors) or ())
    return Group(names, model, count, device_files(minors), cores, seen.links if alike else ())
