"""Slurm's configuration as this host has it: the files with their includes, and what slurmctld has
in effect.
"""

from __future__ import annotations

import errno
import os
import posixpath
from dataclasses import dataclass

from cli.doctor.host import Host
from cli.doctor.known import Known
from slurm_plugin.site.conf import Conf, parse
from slurm_plugin.site.plugstack import Plugstack, parse_plugstack
from slurm_plugin.site.sources import Disk


@dataclass(frozen=True)
class HostSource:
    """Files of this machine; root trusts only those that no other user can replace."""

    host: Host
    owners: tuple[int, ...] = ()

    def read(self, path: str) -> str:
        """Text of a regular file. Raises OSError, ValueError with a sentence."""
        doubt = self.host.distrust(path, *self.owners) if self.host.uid == 0 else None
        if doubt:
            raise ValueError(f"it is not read, since {doubt}")
        text = self.host.read(path, *self.owners)
        if text is None:
            known = errno.EACCES if os.path.lexists(path) else errno.ENOENT
            raise OSError(known, os.strerror(known))
        return text

    def glob(self, pattern: str) -> list[str]:
        """Paths that match a shell pattern, sorted."""
        return Disk().glob(pattern)


def version_text(known: Known) -> str:
    """Slurm's version for the parser, whose rules for includes changed with 23.02."""
    version = known.slurm_version
    return "23.02" if version is None else f"{version[0]}.{version[1]:02d}"


def conf(known: Known, name: str = "slurm.conf") -> Conf:
    """slurm.conf, or another of Slurm's files beside it, with its includes; empty where there is
    none.
    """
    path = known.slurm_conf
    if path is None:
        return Conf(name, version_text(known))
    if name not in known.files:
        source = HostSource(known.host, (known.slurm_uid,))
        known.files[name] = parse(str(path.with_name(name)), source, version_text(known))
    return known.files[name]


def plugstack(known: Known) -> Plugstack:
    """The stack of SPANK plugins that this host's slurm.conf names."""
    path = known.slurm_conf
    if path is None:
        return Plugstack("plugstack.conf")
    named = conf(known).text("PlugStackConfig") or "plugstack.conf"
    where = posixpath.join(path.parent, named)
    return parse_plugstack(where, HostSource(known.host, (known.slurm_uid,)))


def setting(known: Known, key: str) -> str:
    """A setting in effect by slurmctld, or by the file if slurmctld does not answer."""
    return known.effective.get(key.lower()) or conf(known).text(key)
