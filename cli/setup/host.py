"""What setup sees of a host: its slurm.conf, its Slurm's version, its name, where fragments go."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.doctor.host import Host
from cli.doctor.known import CACHES, USUAL
from cli.setup.place import PlaceError
from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.site.conf import Conf
from slurm_plugin.site.found import Places
from slurm_plugin.site.nodes import names_of, node_lines
from slurm_plugin.site.sources import Disk


@dataclass(frozen=True)
class Here:
    """This host, or a tree below another root. `found`: it has a slurm.conf. `configless`: that is
    a copy which came from slurmctld, or there is none yet.
    """

    root: str
    places: Places
    found: bool
    configless: bool
    version: str  # version of this machine's Slurm, "" if there is none
    name: str

    @property
    def disk(self) -> Disk:
        """Its files."""
        return Disk(self.root)

    def real(self, path: str) -> Path:
        """A path of the host on this machine."""
        return Path(self.disk.real(path))

    def node(self, config: Config, slurm: Conf) -> str | None:
        """This host's name in qgpu.yaml, which is its NodeName in slurm.conf; None if it is no node
        there.
        """
        names = [self.name, *_named(slurm, self.name)]
        return next((name for name in names if name in config.node_names()), None)


def _named(slurm: Conf, host: str) -> list[str]:
    """The node whose NodeHostname is this host, if it is one only."""
    found: list[str] = []
    for line in node_lines(slurm)[0]:
        hosts = (
            list(names_of(line.words["nodehostname"])[0]) if "nodehostname" in line.words else []
        )
        found += [name for name, other in zip(line.names, hosts, strict=False) if other == host]
    return found if len(found) == 1 else []


def find_slurm_conf(root: str, environ: Mapping[str, str]) -> str | None:
    """slurm.conf: SLURM_CONF (of this machine only), the usual places, the copies that slurmd
    fetched.
    """
    disk = Disk(root)
    named = environ.get("SLURM_CONF") if root == "/" else None
    if named:
        return named
    return next((path for path in (*USUAL, *CACHES) if Path(disk.real(path)).is_file()), None)


def look(root: str, slurm_conf: str | None, name: str | None) -> Here:
    """The host as it is. Raises PlaceError: a slurm.conf that is named is not there."""
    host = Host()
    named = slurm_conf or (os.environ.get("SLURM_CONF") if root == "/" else None)
    if named and not Path(Disk(root).real(named)).is_file():
        raise PlaceError(
            f"there is no {named}, which --slurm-conf or SLURM_CONF names; name slurm.conf itself"
        )
    found = slurm_conf or find_slurm_conf(root, os.environ)
    conf = found or f"{PATHS.slurm_config_dir}/slurm.conf"
    said = [host.said(program, "-V").out.strip() for program in ("slurmctld", "slurmd", "scontrol")]
    version = next(filter(None, said), "")
    # A named slurm.conf keeps its fragments beside it, so that two clusters of one machine stay
    # apart.
    usual = conf in CACHES or posixpath.dirname(conf) == PATHS.slurm_config_dir
    fragments = PATHS.fragments_dir if usual else f"{posixpath.dirname(conf)}/qgpu"
    there = found is not None and Path(Disk(root).real(found)).is_file()
    configless = conf in CACHES or not there
    return Here(root, Places(conf, fragments), there, configless, version, name or host.name)
