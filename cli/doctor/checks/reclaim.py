"""Checks of what memory that is taken back needs of Slurm and qgpu.yaml."""

from __future__ import annotations

import os
from typing import cast

from cli.doctor.checks import site
from cli.doctor.checks.controller import rows
from cli.doctor.files import setting
from cli.doctor.known import Known, words
from cli.doctor.result import Check
from gres.config.hostlist import expand
from gres.config.site import CLASSES
from gres.units import format_mib
from slurm_plugin.render import host_default

NAME = "host memory"


def host_memory(known: Known) -> Check:
    """Whether Slurm counts the host memory to which GPU memory of reclaimable jobs goes."""
    config = known.need
    if not config.reclaiming:
        return Check(NAME, "ok", "no class is reclaimable")
    told = setting(known, "SelectTypeParameters")
    if not any("memory" in word for word in words(told)):
        text = (
            f"SelectTypeParameters is {told or 'not set'}, so Slurm counts no host memory: jobs"
            " whose GPU memory is taken back may need more than their node has"
        )
        todo = "write CR_Core_Memory there, and restart slurmctld"
        return Check(NAME, "warn", text, todo)
    return _isolated(known) or _too_large(known) or _crowded(known) or _by_default(known)


def checkpoints(known: Known) -> Check:
    """Whether memory of reclaimable jobs can be moved on this node, and how that went."""
    config = known.need
    if not config.reclaiming:
        return Check("checkpoints", "ok", "no class is reclaimable")
    helper = config.reclaim.helper
    if not os.access(helper, os.X_OK):
        text = f"{helper} is missing: nothing that is reclaimable can be taken back"
        return Check("checkpoints", "fail", text, "install it, or name it as reclaim.helper")
    doubt = known.host.distrust(helper)
    if doubt:
        return Check("checkpoints", "fail", f"{doubt}: qgpud does not run it", doubt.todo)
    if known.daemon.get("moves"):
        text = f"reclaim.move is set, but no job can be moved: {known.daemon['moves']}"
        return Check("checkpoints", "warn", text, "add the drop-in, and restart qgpud")
    return _moved(cast("dict[str, int] | None", known.daemon.get("reclaim")))


def _moved(told: dict[str, int] | None) -> Check:
    """What qgpud did since it started."""
    if told is None:
        return Check("checkpoints", "warn", "qgpud does not tell of them", "restart qgpud")
    text = (
        f"{told['leaves']} left, {told['returns']} returned, {told['away']} away now with"
        f" {format_mib(told['away_bytes'] >> 20)} in host memory; {told['claims']} wait to start"
    )
    if told.get("not_moved"):
        text += f"; {told['not_moved']} were not taken by another card"
        todo = "qgpud's log has the reasons: event=not-moved"
        return Check("checkpoints", "warn", text, todo)
    if told["unable"]:
        text += f"; {told['unable']} could not be moved and were ended"
        todo = "qgpud's log has the reasons: event=reclaim step=unable"
        return Check("checkpoints", "warn", text, todo)
    return Check("checkpoints", "ok", text)


def _isolated(known: Known) -> Check | None:
    config = known.need
    free = [
        name
        for name in CLASSES
        if config.reclaims(name)
        and "none" in (config.enforcer.isolation, config.classes[name].isolation)
    ]
    if not free:
        return None
    text = (
        f"{free[0]} jobs book no memory and have isolation none: without gates it cannot be taken"
        " back"
    )
    return Check(
        NAME, "warn", text, "write memory: reserved for that class, or isolation: governed"
    )


def _too_large(known: Known) -> Check | None:
    """`nodes[].host_memory` above what slurmctld has for the node."""
    if not known.answers:
        return None
    said = known.host.said("scontrol", "-o", "show", "node")
    have = {row.get("NodeName", ""): row.get("RealMemory", "") for row in rows(said.out)}
    for group in known.need.nodes:
        for name in expand(group.names):
            real = have.get(name, "")
            if group.host_memory and real.isdigit() and int(real) < group.host_memory:
                text = f"{name} has RealMemory={real}, qgpu.yaml says {group.host_memory} MiB"
                return Check(NAME, "warn", text, f"write host_memory: {real}MiB for it")
    return None


def _crowded(known: Known) -> Check | None:
    """Jobs that book one shard each all fit the first card."""
    config = known.need
    spread = config.slurm.placement == "spread" or config.reclaim.move
    if spread or config.slurm.version < "23.11":
        return None
    if all(group.count == 1 for group in config.nodes):
        return None
    text = "placement is binpack: Slurm puts all reclaimable jobs on the first card of a node"
    todo = f"write placement: spread under slurm in qgpu.yaml, and {site.again(known)}"
    return Check(NAME, "warn", text, todo)


def _by_default(known: Known) -> Check:
    memory = host_default(lambda key: setting(known, key))
    if memory.mib == 0:
        text = (
            "slurm.conf has no DefMemPerNode or DefMemPerCPU: a job without --mem has all memory"
            " of its node, and no other starts there"
        )
        return Check(NAME, "warn", text, "write for example DefMemPerCPU=2048 in slurm.conf")
    what = "CPU" if memory.per == "cpu" else "node"
    return Check(NAME, "ok", f"counted by Slurm; without --mem {memory.mib} MiB per {what}")
