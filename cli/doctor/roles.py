"""Which roles this host has: by what runs or is enabled here, and by what qgpu.yaml and slurm.conf say."""

from __future__ import annotations

from pathlib import Path

from cli.doctor.files import conf
from cli.doctor.known import Known
from slurm_plugin.site.difference import ROLES, Role

__all__ = ["ROLES", "Role", "guess"]
WANTED = Path("/etc/systemd/system/multi-user.target.wants")


def guess(known: Known) -> tuple[Role, ...]:
    """The roles, controller first; a host with neither daemon and no name in qgpu.yaml is a login host."""
    found: list[Role] = []
    if known.has_slurm and (_runs(known, "slurmctld") or _is_controller(known)):
        found.append("controller")
    if _is_node(known) or _enabled("qgpud") or (known.has_slurm and _runs(known, "slurmd")):
        found.append("node")
    return tuple(found) or ("login",)


def _runs(known: Known, daemon: str) -> bool:
    return bool(known.slurm_processes(daemon)) or _enabled(daemon)


def _enabled(unit: str) -> bool:
    """Whether systemd starts that unit at boot: then it should run."""
    return (WANTED / f"{unit}.service").is_symlink()


def _is_node(known: Known) -> bool:
    return known.config is not None and known.node in known.config.node_names()


def _is_controller(known: Known) -> bool:
    """Whether slurm.conf names this host as a controller. SlurmctldHost=name(address)."""
    hosts = [value.value.partition("(")[0] for value in conf(known).all("SlurmctldHost")]
    return known.host.name in (host.partition(".")[0] for host in hosts)
