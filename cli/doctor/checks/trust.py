"""Checks that only root can replace what root's programs read and run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cli.doctor.checks.hooks import scripts_of
from cli.doctor.checks.lua import loaded_by
from cli.doctor.files import conf, plugstack
from cli.doctor.known import Known
from cli.doctor.result import Check
from cli.doctor.roles import Role
from gres.paths import PATHS
from gres.trusted import Doubt
from slurm_plugin.site.conf import Conf
from slurm_plugin.site.plugstack import Plugstack

NAMED = 3  # files named in one sentence; more are counted
FILES = ("slurm.conf", "gres.conf", "cgroup.conf")


def files(known: Known, roles: Sequence[Role]) -> Check:
    """One line for all files that the host's roles need."""
    found = doubts(known, roles)
    if not found:
        return Check("files", "ok", "what root reads and runs is writable by root alone")
    named = "; ".join(str(doubt) for doubt in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return Check("files", "fail", named + more, "; ".join(doubt.todo for doubt in found[:NAMED]))


def doubts(known: Known, roles: Sequence[Role]) -> list[Doubt]:
    """Each file or directory through which others could reach what is believed, once."""
    found: dict[str, Doubt] = {}
    for path in _of_root(known, roles):
        doubt = known.host.distrust(path)
        if doubt:
            found.setdefault(doubt.path, doubt)
    for path in _of_slurm(known, roles):
        doubt = known.host.distrust(path, known.slurm_uid)
        if doubt:
            found.setdefault(doubt.path, doubt)
    return list(found.values())


def _of_root(known: Known, roles: Sequence[Role]) -> Iterable[str]:
    """What runs as root, or decides what runs as root."""
    yield known.path
    if known.config is None or "node" not in roles:
        return
    config = known.need
    yield from (config.spank, config.shim, str(Path(config.shim).with_name("libnvidia-ml.so.1")))
    yield from (config.hook.client, config.enforcer.arbiter, config.hook.scontrol)
    yield from (path for path in (config.driver.libcuda, config.driver.nvml) if path != "auto")
    yield from (known.run_dir, f"{known.run_dir}/grants", known.state_dir)


def _of_slurm(known: Known, roles: Sequence[Role]) -> Iterable[str]:
    """What Slurm's daemons read and run. SlurmUser may own it, since it may name other scripts in
    slurm.conf.
    """
    if known.slurm_conf is None:
        return
    if "node" in roles:
        yield from (script for key in ("Prolog", "Epilog") for script in scripts_of(known, key))
    yield str(known.slurm_conf)
    read: list[Conf | Plugstack] = [plugstack(known), *(conf(known, name) for name in FILES)]
    for file in read:
        yield from (file.path, *file.files, *(include.target for include in file.includes))
    yield PATHS.fragments_dir
    if "controller" in roles:
        for name in ("job_submit.lua", "cli_filter.lua"):
            found = loaded_by(known, str(known.slurm_conf.with_name(name)))
            yield from (*found.scripts, *found.tables)
