"""What setup sees of a host: its slurm.conf, its Slurm's version, its name, where fragments go."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.doctor.host import Host
from cli.doctor.known import CACHES, USUAL
from gres.config import Config
from gres.paths import PATHS
from slurm_plugin.site.found import Places
from slurm_plugin.site.sources import Disk

LUA = ("job_submit.lua", "cli_filter.lua")


@dataclass(frozen=True)
class Here:
    """This host, or a tree below another root. `configless`: its slurm.conf is a copy that came from slurmctld, or it
    has none."""

    root: str
    places: Places
    configless: bool
    version: str  # what this machine's Slurm says, "" if there is none
    name: str

    @property
    def disk(self) -> Disk:
        """Its files."""
        return Disk(self.root)

    def real(self, path: str) -> Path:
        """A path of the host on this machine."""
        return Path(self.disk.real(path))

    def node(self, config: Config) -> str | None:
        """This host's name in qgpu.yaml; None if it is no node there."""
        return self.name if self.name in config.node_names() else None


def find_slurm_conf(root: str, environ: Mapping[str, str]) -> str | None:
    """slurm.conf: SLURM_CONF (of this machine only), the usual places, the copies that slurmd fetched."""
    disk = Disk(root)
    named = environ.get("SLURM_CONF") if root == "/" else None
    if named:
        return named
    return next((path for path in (*USUAL, *CACHES) if Path(disk.real(path)).is_file()), None)


def look(root: str, slurm_conf: str | None, name: str | None) -> Here:
    """The host as it is."""
    host = Host()
    found = slurm_conf or find_slurm_conf(root, os.environ)
    conf = found or f"{PATHS.slurm_config_dir}/slurm.conf"
    said = [host.said(program, "-V").out.strip() for program in ("slurmctld", "slurmd", "scontrol")]
    version = next(filter(None, said), "")
    # A named slurm.conf keeps its fragments beside it, so that two clusters of one machine stay apart.
    usual = conf in CACHES or posixpath.dirname(conf) == PATHS.slurm_config_dir
    fragments = PATHS.fragments_dir if usual else f"{posixpath.dirname(conf)}/qgpu"
    return Here(root, Places(conf, fragments), conf in CACHES, version, name or host.name)
