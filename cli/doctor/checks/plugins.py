"""Checks of the plugins that Slurm loads: qgpu's SPANK plugin and its native GRES plugins."""

from __future__ import annotations

from pathlib import Path

from cli.doctor.checks import site
from cli.doctor.elf import Plugin, plugin_of
from cli.doctor.files import plugstack, setting
from cli.doctor.known import NO_SLURM, Known
from cli.doctor.result import Check
from slurm_plugin import releases

GRES_PLUGINS = ("gres_qgpu.so", "gres_vram.so")
AGAIN = "install qgpu-slurm-plugins {}"


def text_of(number: int) -> str:
    """ "22.05.8" of Slurm's number."""
    return f"{number >> 16 & 255}.{number >> 8 & 255:02d}.{number & 255}"


def number_of(version: releases.Version | None) -> int | None:
    """Slurm's number of a version."""
    return None if version is None else version[0] << 16 | version[1] << 8 | version[2]


def spank(known: Known) -> Check:
    """Whether tasks get their grant: the plugin is whole, for this Slurm, and in the stack with
    this run_dir.
    """
    if not known.has_slurm:
        return Check("spank", "ok", NO_SLURM)
    path = known.need.spank
    if doubt := known.host.distrust(path):
        return Check("spank", "fail", f"{path}: not read, since {doubt}", doubt.todo)
    try:
        plugin = _plugin(known, path)
    except ValueError as error:
        return Check(
            "spank",
            "fail",
            f"{path}: {error}",
            AGAIN.format("again, or correct spank in qgpu.yaml"),
        )
    wanted = number_of(known.slurm_version)
    if plugin.kind != "spank":
        text = f"{path} is a plugin of type '{plugin.kind}', not spank"
        return Check("spank", "fail", text, AGAIN.format("again"))
    # Slurm compares the first two parts of the version for SPANK plugins.
    if wanted is not None and plugin.number >> 8 & 0xFFFF != wanted >> 8 & 0xFFFF:
        here = text_of(wanted)
        text = (
            f"{path} is for Slurm {text_of(plugin.number)}, this is {here}: slurmstepd does not"
            " load it"
        )
        return Check("spank", "fail", text, AGAIN.format(f"for Slurm {here[:5]}"))
    ok = Check(
        "spank",
        "ok",
        f"{path}, for Slurm {text_of(plugin.number)[:5]}, is in {plugstack(known).path}",
    )
    return site.fault(known, "spank", "plugstack.conf") or ok


def _plugin(known: Known, path: str) -> Plugin:
    """Raises ValueError with the end of a sentence."""
    if doubt := known.host.distrust(path):
        raise ValueError(f"not read, since {doubt}")
    if not Path(path).is_file():
        raise ValueError("is not there")
    data = known.host.read_bytes(path)
    if data is None:
        raise ValueError("cannot be read")
    return plugin_of(data)


def native_plugins(known: Known) -> Check:
    """Whether slurmctld's own word about shares can reach the nodes."""
    name = "gres plugins"
    if not known.has_slurm:
        return Check(name, "ok", NO_SLURM)
    if not known.need.slurm.native_gres:
        return Check(
            name, "ok", "not used: the tag of job_submit.lua carries class, share and memory"
        )
    dirs = setting(known, "PluginDir")
    wanted = number_of(known.slurm_version)
    off = "make -C gres/native SLURM_SRC=... install, or native_gres: false in qgpu.yaml until then"
    for file in GRES_PLUGINS:
        paths = [
            f"{each}/{file}" for each in dirs.split(":") if each and Path(each, file).is_file()
        ]
        if not paths:
            return Check(name, "fail", f"{file} is not in {dirs or 'PluginDir'}", off)
        try:
            have = _plugin(known, paths[0]).number
        except ValueError as error:
            return Check(name, "fail", f"{paths[0]}: {error}", off)
        if wanted is None:
            text = f"{paths[0]} is for Slurm {text_of(have)}; this Slurm does not say its own"
            return Check(name, "warn", text)
        if have & 0xFFFFFF != wanted:
            text = (
                f"{paths[0]} is for Slurm {text_of(have)}, this is {text_of(wanted)}: new shares do"
                " not start"
            )
            return Check(name, "fail", text, off)
    return Check(name, "ok", f"both are there, for Slurm {text_of(wanted or 0)}")


def spank_option(known: Known) -> Check:
    """On a host where jobs are submitted the plugin brings --vram and --qgpu-cards."""
    check = spank(known)
    if check.status == "fail":
        text = f"{check.text}; sbatch here does not know --vram"
        return Check("spank", "warn", text, check.todo)
    return check
