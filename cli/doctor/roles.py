"""Finds the roles of this host: by what runs or is enabled, and by qgpu.yaml and slurm.conf."""

from __future__ import annotations

from pathlib import Path

from cli.doctor.files import conf
from cli.doctor.known import Known
from slurm_plugin.site.difference import ROLES, Role
from slurm_plugin.site.nodes import node_line

__all__ = ["ROLES", "Role", "guess"]
WANTED = Path("/etc/systemd/system/multi-user.target.wants")


def guess(known: Known) -> tuple[Role, ...]:
    """The roles, controller first; a host with neither daemon and no name in qgpu.yaml is a login
    host.
    """
    found: list[Role] = []
    if known.has_slurm and (_runs(known, "slurmctld") or _is_controller(known)):
        found.append("controller")
    if _is_node(known) or _enabled("qgpud"):
        found.append("node")
    return tuple(found) or ("login",)


def _runs(known: Known, daemon: str) -> bool:
    return bool(known.slurm_processes(daemon)) or _enabled(daemon)


def _enabled(unit: str) -> bool:
    """Whether systemd starts that unit at boot: then it should run."""
    return (WANTED / f"{unit}.service").is_symlink()


def _is_node(known: Known) -> bool:
    """Whether qgpu.yaml names this host.

    A cluster of one node has that name on each host; there slurm.conf names the host. A slurmd
    alone makes no node of qgpu: it may have no cards.
    """
    if not known.node:
        return False
    if known.given or known.node == known.host.name or not known.has_slurm:
        return True
    line = node_line(conf(known), known.node)
    return line is not None and line.get("NodeHostname").partition(".")[0] == known.host.name


def _is_controller(known: Known) -> bool:
    """Whether slurm.conf names this host as a controller. SlurmctldHost=name(address)."""
    hosts = [value.value.partition("(")[0] for value in conf(known).all("SlurmctldHost")]
    return known.host.name in (host.partition(".")[0] for host in hosts)
