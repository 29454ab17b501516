"""Renders fragments of Slurm's configuration from qgpu.yaml with jinja2.

`qgpu render` and the sandbox call `render(name, config)`. Undefined variables are errors. Keyword
arguments are paths that qgpu.yaml does not hold: `etc_dir` (prolog, epilog), `lua_dir` (our Lua
modules), `tables` (the rendered qgpu_tables.lua). `slurm_site` and `cgroup_site` are a site's own
files without our fragments; what they set is left out of slurm.conf and cgroup.conf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2

from gres.config.hostlist import expand
from gres.config.site import Config, NodeGroup, for_node
from gres.paths import PATHS
from gres.request.messages import MESSAGES
from gres.request.tables import SCHEMA, HostDefault, tables_of
from gres.units import format_mib
from gres.version import VERSION
from slurm_plugin.site.conf import Conf
from slurm_plugin.site.settings import cgroup_settings, slurm_settings, to_render

NAMES = (
    "gres.conf",
    "slurm.conf",
    "cgroup.conf",
    "plugstack.conf",
    "qgpu_tables.lua",
    "prolog",
    "epilog",
    "job_submit.lua",
    "cli_filter.lua",
)
ETC_DIR = PATHS.fragments_dir


class RenderError(ValueError):
    """There is no such fragment; the text is a sentence."""


@dataclass(frozen=True)
class GresGroup:
    """Nodes with equal lines in gres.conf and slurm.conf.

    `mem` is a Slurm count with its unit. `files` is the bracket list of whole cards, None for MIG
    instances. `cores` and `links`: Cores= and Links= of each card, if known.
    """

    names: str
    model: str
    files: str | None
    cards: tuple[tuple[str, ...], ...]
    counts: dict[str, int]
    mem: str
    cores: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def near(self) -> list[str]:
        """What each card's line says of cores and links: a leading blank and the words, or
        nothing.
        """
        return [
            "".join(
                f" {key}={values[n]}"
                for key, values in (("Cores", self.cores), ("Links", self.links))
                if values
            )
            for n in range(len(self.cards))
        ]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """File of each line of whole cards, and what it says of cores and links; one line for all
        if nothing is known of them.
        """
        if not any(self.near):
            return [(self.files or "", "")]
        return [(path, near) for (path, *_), near in zip(self.cards, self.near, strict=True)]

    @property
    def gres(self) -> str:
        """Value of Gres= on the NodeName line."""
        cards = len(self.cards)
        counts = "".join(f",qgpu:{name}:{count}" for name, count in self.counts.items())
        return f"gpu:{self.model}:{cards},shard:{self.model}:{100 * cards}{counts},vram:{self.mem}"


def _group(config: Config, group: NodeGroup, names: str, node: str) -> GresGroup:
    counts: dict[str, int] = {
        name: settings.overcommit * group.count for name, settings in config.classes.items()
    }
    # caps of reclaimable jobs come on top of the reserved ones
    usable = config.models[group.model].usable * group.count
    mem = format_mib(usable * (100 + config.max_reclaimable) // 100)
    files = None if group.files is None else for_node(group.files, node)
    cards = tuple(group.card_files(node))
    cores, links = tuple(group.cores or ()), tuple(group.links or ())
    return GresGroup(names, group.model, files, cards, counts, mem, cores, links)


def gres_groups(config: Config) -> list[GresGroup]:
    """One group per entry of `nodes`, or per node if device files depend on the node's name."""
    groups: list[GresGroup] = []
    for group in config.nodes:
        if "%n" in "".join([group.files or "", *(group.instances or ())]):
            groups += [_group(config, group, name, name) for name in expand(group.names)]
        else:
            groups.append(_group(config, group, group.names, ""))
    return groups


def gres_by_node(config: Config) -> dict[str, str]:
    """Value of Gres= for every node."""
    return {name: group.gres for group in gres_groups(config) for name in expand(group.names)}


def node_gres(config: Config, name: str) -> str:
    """Value of Gres= for one node. Raises ConfigError (through `config.node`) if it is not
    configured.
    """
    config.node(name)
    return next(group.gres for group in gres_groups(config) if name in expand(group.names))


def lua_literal(value: object) -> str:
    """A Lua constant of None, bool, int or str; quoting keeps each byte of a string."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raw = str(value).encode("utf-8", "surrogateescape")
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}" for byte in raw
    )
    return f'"{plain}"'


@cache
def _environment() -> jinja2.Environment:
    """Compiles each template once."""

    def source(name: str) -> str | None:
        path = files("configs") / "templates" / name
        return path.read_text() if path.is_file() else None

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # no HTML here: values are checked by the schema, Lua strings by the filter
        autoescape=False,
    )
    environment.filters["lua"] = lua_literal
    return environment


def host_default(text_of: Callable[[str], str]) -> HostDefault:
    """What slurm.conf gives a job without --mem; `text_of` gives the text of a key."""
    node, cpu = (text_of(key).partition(" ")[0] for key in ("DefMemPerNode", "DefMemPerCPU"))
    if node.isdigit():
        return HostDefault("node", int(node))
    return HostDefault("cpu", int(cpu)) if cpu.isdigit() else HostDefault()


def render(
    name: str,
    config: Config,
    *,
    slurm_site: Conf | None = None,
    cgroup_site: Conf | None = None,
    memory: HostDefault | None = None,
    **extra: object,
) -> str:
    """Text of the fragment `name` (one of NAMES). Raises RenderError for another name.

    `memory`: what a job without --mem gets, where it is known otherwise than from `slurm_site`.
    """
    if name not in NAMES:
        raise RenderError(f"there is no fragment '{name}'; write one of {', '.join(NAMES)}")
    version = config.slurm.version
    settings = slurm_settings(config, str(extra.get("etc_dir", ETC_DIR)))
    values: dict[str, object] = {
        "config": config,
        "version": VERSION,
        "settings": to_render(settings, slurm_site, version),
        "cgroup_settings": to_render(cgroup_settings(), cgroup_site, version),
        "groups": gres_groups(config),
        "t": tables_of(config, memory or (host_default(slurm_site.text) if slurm_site else None)),
        "schema": SCHEMA,
        "messages": MESSAGES,
        "etc_dir": ETC_DIR,
        "lua_dir": PATHS.lua_dir,
        "tables": f"{extra.get('etc_dir', ETC_DIR)}/qgpu_tables.lua",
    }
    return _environment().get_template(f"{name}.j2").render({**values, **extra})
