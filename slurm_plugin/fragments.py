"""The fragments that a host needs, their modes, and the seal by which `qgpu setup` knows its own.
Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.render import render
from slurm_plugin.site.difference import Role
from slurm_plugin.site.found import Site

Seal = Literal["ours", "edited", "foreign"]
_SEAL = re.compile(r"(?:#|--) written by qgpu setup; sha256 ([0-9a-f]{64})\n\Z")
_CONF = ("slurm.conf", "gres.conf", "cgroup.conf")  # a configless host gets these from slurmctld
_BOTH: tuple[Role, ...] = ("controller", "node")
_EVERY: tuple[Role, ...] = ("controller", "node", "login")
# Fragment -> roles that need it. The Lua of cli_filter is for hosts where users submit: all of
# them.
NEEDED: dict[str, tuple[Role, ...]] = {
    "slurm.conf": _EVERY,
    "gres.conf": _BOTH,
    "cgroup.conf": _BOTH,
    "plugstack.conf": _EVERY,
    "prolog": ("node",),
    "epilog": ("node",),
    "job_submit.lua": ("controller",),
    "qgpu_tables.lua": ("controller",),
    "cli_filter.lua": (),
}
WITH_CLI_FILTER = ("cli_filter.lua", "qgpu_tables.lua")
LINKED = ("job_submit.lua", "cli_filter.lua")  # Slurm looks for these beside slurm.conf


@dataclass(frozen=True)
class Fragment:
    """One file: its name, its text with the seal, its mode."""

    name: str
    text: str
    mode: int

    @property
    def body(self) -> str:
        """The text as `qgpu render` prints it."""
        return _SEAL.sub("", self.text)


def sealed(name: str, body: str) -> str:
    """The text with its seal in the last line."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    mark = "--" if name.endswith(".lua") else "#"
    return f"{body}{mark} written by qgpu setup; sha256 {digest}\n"


def seal_of(text: str) -> Seal:
    """Whether a text is unchanged since `qgpu setup` wrote it."""
    found = _SEAL.search(text)
    if found is None:
        return "foreign"
    body = text[: found.start()]
    return "ours" if hashlib.sha256(body.encode()).hexdigest() == found[1] else "edited"


def names_for(config: Config, roles: Collection[Role], configless_host: bool = False) -> list[str]:
    """The fragments of a host with these roles."""
    names = [name for name, needed in NEEDED.items() if set(needed) & set(roles)]
    if config.slurm.cli_filter:
        names += [name for name in WITH_CLI_FILTER if name not in names]
    return [name for name in names if not (configless_host and name in _CONF)]


def fragments(
    config: Config,
    names: Collection[str],
    site: Site | None = None,
    lua_dir: str = PATHS.lua_dir,
    etc_dir: str = PATHS.fragments_dir,
) -> list[Fragment]:
    """The files. `site`: the host's own configuration without our fragments, whose keys are left
    out.

    `etc_dir`: the fragments' final directory.
    """
    slurm, cgroup = (site.slurm, site.cgroup) if site else (None, None)
    return [
        Fragment(
            name,
            sealed(
                name,
                render(
                    name,
                    config,
                    slurm_site=slurm,
                    cgroup_site=cgroup,
                    etc_dir=etc_dir,
                    lua_dir=lua_dir,
                ),
            ),
            0o755 if name in ("prolog", "epilog") else 0o644,
        )
        for name in names
    ]
