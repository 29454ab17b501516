"""Compares plugstack.conf and the Lua scripts: whether Slurm loads
ours. Pure, but for the Source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gres.config.site import Config
from slurm_plugin.site.conf import Value
from slurm_plugin.site.diff_settings import include
from slurm_plugin.site.difference import SYNTAX, Difference, removed, replaced, stale
from slurm_plugin.site.found import Site
from slurm_plugin.submission import syntax_error

_FREE = "without it no job of a share starts"
_OPTIONS = "without it sbatch, salloc and srun know no --vram and no --qgpu-cards here"


def plugstack_line(config: Config) -> str:
    """Our line of plugstack.conf."""
    return f"optional {config.spank} run_dir={config.run_dir}"


def plugstack_differences(
    config: Config, site: Site, node: str | None = None, tasks: bool = True
) -> Iterator[Difference]:
    """Whether our SPANK plugin is loaded once, from the right file, with the right run_dir.
    `tasks`: jobs run by this file, which else serves submissions alone.
    """
    missing = _FREE if tasks else _OPTIONS
    run_dir = config.run_dir.replace("%n", node) if node else config.run_dir
    base = config.spank.rpartition("/")[2]
    found = [line for line in site.plugstack.plugins if line.plugin.rpartition("/")[2] == base]
    if not found:
        if site.includes("plugstack.conf"):
            yield stale("spank", site.places.fragment("plugstack.conf"), config.spank, missing)
        else:
            yield include(site, "plugstack.conf", False, "the include of qgpu's fragment", missing)
        return
    ours = {line.place: line for line in found if site.places.ours(line.file)}
    # Our fragment's line stays, because `qgpu setup` would write it again.
    line = next(iter(ours.values()), found[0])
    why = f"{line.place} loads it already, and Slurm refuses a second time"
    for other in found:
        if other.place != line.place and other.place not in ours:
            value = Value(other.kind, other.plugin, other.file, other.line)
            yield removed(value, "the plugin once", why, "", "warn")
    if len(ours) > 1:
        yield replace(stale("spank", line.file, "the plugin once", why), severity="warn")
    given = line.argument("run_dir")
    wrong = line.plugin not in (config.spank, base) or given not in (run_dir, config.run_dir)
    if wrong and site.places.ours(line.file):
        yield stale("spank", line.file, plugstack_line(config), "qgpu.yaml has changed since")
    elif wrong:
        value = Value(line.kind, " ".join([line.plugin, *line.arguments]), line.file, line.line)
        why = "the plugin must be the installed one, and must find qgpud"
        yield replaced(value, "spank", plugstack_line(config), plugstack_line(config), why, "")


def _script(
    config: Config, site: Site, name: str, words: tuple[str, ...], lines: str, why: str
) -> Iterator[Difference]:
    """A Lua script of the site, which Slurm finds only beside slurm.conf."""
    path, ours = site.places.main(name), site.places.fragment(name)
    text = site.text(path)
    if text is None:
        yield stale(name, path, f"a link to {ours}", why)
        return
    line, fault = syntax_error(text)
    code = re.sub(r"--[^\n]*", "", text)
    missing = next((word for word in words if word not in code), "")
    if (line or missing) and text == site.text(ours):
        needed = f"the call {missing}" if missing else f"text that Lua reads (line {line}: {fault})"
        yield stale(name, ours, needed, why)
    elif line:
        has = f"Lua cannot read it: {fault}"
        yield Difference(SYNTAX, path, line, has, "Lua", "replace", "", why, "")
    elif missing:
        has, needed = f"no {missing}", "functions that call qgpu's module"
        yield Difference(name, path, 0, has, needed, "add", lines, why, "")


def lua_differences(
    config: Config, site: Site, lua_dir: str, controller: bool
) -> Iterator[Difference]:
    """job_submit.lua on the controller, cli_filter.lua where slurm.conf names it."""
    tables = site.places.fragment("qgpu_tables.lua")
    if controller:
        yield from _script(
            config,
            site,
            "job_submit.lua",
            (
                "qgpu_job_submit.lua",
                ".submit(",
                ".modify(",
                "slurm_job_submit",
                "slurm_job_modify",
            ),
            f'local qgpu = dofile("{lua_dir}/qgpu_job_submit.lua")("{tables}"), then call'
            " qgpu.submit(job_desc, part_list, uid) in slurm_job_submit and"
            " qgpu.modify(job_desc, job_rec, part_list, uid) in slurm_job_modify, and return what"
            " they return",
            "without it shares are booked without a card",
        )
    value = site.slurm.get("CliFilterPlugins")
    named = value is not None and "lua" in [
        item.removeprefix("cli_filter/").lower() for item in value.items
    ]
    if not named:
        return
    path = site.places.main("cli_filter.lua")
    if not config.slurm.cli_filter:
        if site.text(path) is None and value is not None:
            why = f"{path} is not there, so no sbatch and no srun works on this host"
            yield removed(value, "no CliFilterPlugins=lua without its script", why, "reconfigure")
        return
    yield from _script(
        config,
        site,
        "cli_filter.lua",
        (
            "qgpu_cli_filter.lua",
            ".pre_submit(",
            "slurm_cli_setup_defaults",
            "slurm_cli_pre_submit",
            "slurm_cli_post_submit",
        ),
        f'local qgpu = dofile("{lua_dir}/qgpu_cli_filter.lua"); qgpu.tables = "{tables}", then'
        " return qgpu.pre_submit(options, offset) in slurm_cli_pre_submit, beside"
        " slurm_cli_setup_defaults and slurm_cli_post_submit, which Slurm wants too",
        "slurm.conf names it, so without it no sbatch and no srun works on this host",
    )
