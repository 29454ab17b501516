"""Checks Slurm's files on this host against qgpu.yaml, by the differences of `qgpu setup`."""

from __future__ import annotations

import posixpath
import re
from typing import Literal

from cli.doctor.files import HostSource, version_text
from cli.doctor.known import CACHES, NO_SLURM, Known
from cli.doctor.result import RESTART_ALL, Check
from gres.paths import PATHS
from slurm_plugin import releases
from slurm_plugin.site.difference import Difference, setup_command
from slurm_plugin.site.differences import differences, edited_option
from slurm_plugin.site.found import Places, Site, read_site

Kind = Literal[
    "slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf", "job_submit.lua", "cli_filter.lua"
]
RESTART = {
    "": "",
    "reconfigure": "; then scontrol reconfigure",
    "slurmd": "; then restart slurmd",
    "slurmctld": "; then restart slurmctld",
    "all": f"; then {RESTART_ALL}",
}


def places_of(slurm_conf: str) -> Places:
    """Where the fragments of a slurm.conf are, as `qgpu setup` chooses it."""
    folder = posixpath.dirname(slurm_conf)
    usual = folder == PATHS.slurm_config_dir or slurm_conf in CACHES
    return Places(slurm_conf, PATHS.fragments_dir if usual else f"{folder}/qgpu")


def site_of(known: Known) -> Site:
    """All of Slurm's files that this host reads."""
    if known.site is None:
        source = HostSource(known.host, (known.slurm_uid,))
        known.site = read_site(places_of(str(known.slurm_conf)), source, version_text(known))
    return known.site


def kind_of(difference: Difference, site: Site) -> Kind:
    """Which of Slurm's files a difference is about; what is included counts to the file that
    includes it.
    """
    path, name = difference.file, posixpath.basename(difference.file)
    for lua in ("job_submit.lua", "cli_filter.lua"):
        if name == lua:
            return lua
    if path in site.plugstack.files or path == site.plugstack.path:
        return "plugstack.conf"
    for kind in ("gres.conf", "cgroup.conf"):
        if path in (*site.conf(kind).files, site.conf(kind).path) or name in (kind, f"qgpu_{kind}"):
            return kind
    return "plugstack.conf" if name == "plugstack.conf" else "slurm.conf"


def found(known: Known, kind: Kind) -> list[Difference]:
    """The differences of one file, those that fail first."""
    if known.differences is None:
        version = releases.shown(known.slurm_version) if known.slurm_version else None
        known.differences = differences(
            known.raw or known.need,
            site_of(known),
            known.roles,
            node=known.node or None,
            slurm_version=version,
            yaml=known.path,
            again=_setup(known),
        )
    mine = [each for each in known.differences if kind_of(each, site_of(known)) == kind]
    # The version has a check of its own, and the processors of a sandbox's nodes are invented.
    passed = ["slurm.version"]
    passed += ["SlurmdParameters"] if "QGPU_SANDBOX" in known.host.environ else []
    mine = [each for each in mine if each.key not in passed]
    return sorted(mine, key=lambda each: each.severity != "fail")


def fault(known: Known, name: str, kind: Kind) -> Check | None:
    """The first difference of a file as a check; None if there is none."""
    mine = found(known, kind)
    if not mine:
        return None
    first = mine[0]
    more = f" (and {len(mine) - 1} more, which qgpu lint names)" if len(mine) > 1 else ""
    return Check(name, first.severity, first.sentence + more, todo_of(first))


def _setup(known: Known) -> str:
    return setup_command(known.roles, known.path, known.node if known.given else None)


def again(known: Known, path: str = "") -> str:
    """The command that writes our fragments here; `path`: the one that it must replace."""
    return f"run: {_setup(known)}{edited_option(site_of(known), path) if path else ''}"


def settle(known: Known, key: str, restart: str = "restart slurmctld") -> str:
    """What to do where slurmctld lacks a setting: what the file needs, or, where that is right, to
    have it read.
    """
    for each in found(known, "slurm.conf"):
        if re.search(rf"\b{key}\b", each.sentence):
            return todo_of(each)
    return f"{known.slurm_conf} has it: {restart}"


def todo_of(difference: Difference) -> str:
    """What to do, and what to restart then."""
    return difference.todo + RESTART[difference.restart]


def slurm_conf(known: Known) -> Check:
    """slurm.conf with all that it includes."""
    if not known.has_slurm:
        return Check("slurm.conf", "ok", NO_SLURM)
    ok = Check("slurm.conf", "ok", f"{known.slurm_conf} has what qgpu.yaml needs")
    return fault(known, "slurm.conf", "slurm.conf") or ok


def gres_conf(known: Known) -> Check:
    """gres.conf: whether Slurm hands out the cards of qgpu.yaml, in their order, with their hundred
    parts.
    """
    if not known.has_slurm:
        return Check("gres.conf", "ok", NO_SLURM)
    ok = Check("gres.conf", "ok", f"{site_of(known).gres.path} has the cards of qgpu.yaml")
    return fault(known, "gres.conf", "gres.conf") or ok
