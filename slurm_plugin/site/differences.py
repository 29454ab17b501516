"""Lists all differences of a site's Slurm configuration from what qgpu.yaml needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.fragments import seal_of
from slurm_plugin.site.conf import Fault
from slurm_plugin.site.diff_files import lua_differences, plugstack_differences
from slurm_plugin.site.diff_gres import gres_differences
from slurm_plugin.site.diff_nodes import node_differences
from slurm_plugin.site.diff_settings import included_twice, not_shipped, setting_differences
from slurm_plugin.site.diff_slurm import slurm_differences
from slurm_plugin.site.difference import AGAIN, SYNTAX, Difference, Role, stale
from slurm_plugin.site.found import INCLUDED, Site
from slurm_plugin.site.nodes import node_lines
from slurm_plugin.site.settings import cgroup_settings, slurm_settings


def _fault(site: Site, fault: Fault) -> Difference:
    for name in INCLUDED[:-1]:
        for found in site.conf(name).includes:
            lost = site.places.ours(found.target) and site.text(found.target) is None
            if lost and (found.file, found.line) == (fault.file, fault.line):
                needed = f"{found.target}, which it includes"
                return stale("include", fault.file, needed, "Slurm's daemons do not start")
    needed, why = "a line that Slurm reads", "Slurm refuses it"
    if site.places.ours(fault.file):
        has, line = fault.text, fault.line
        return Difference(SYNTAX, fault.file, line, has, needed, "run", AGAIN, why, "all")
    return Difference(SYNTAX, fault.file, fault.line, fault.text, needed, "replace", "", why, "all")


def site_faults(site: Site) -> list[Fault]:
    """Faults that Slurm finds in any file; gres.conf, cgroup.conf or
    plugstack.conf may be missing.
    """
    optional = [*site.gres.faults, *site.cgroup.faults]
    if site.slurm.exists and not (site.slurm.entries or site.slurm.includes or site.slurm.faults):
        return [Fault(site.slurm.path, 0, "it is empty, so Slurm's daemons do not start")]
    found = [*site.slurm.faults, *(f for f in optional if f.line or "no such file" not in f.text)]
    return [*found, *site.plugstack.faults, *node_lines(site.slurm)[1]]


def differences(
    config: Config,
    site: Site,
    roles: Collection[Role],
    *,
    node: str | None = None,
    slurm_version: str | None = None,
    flat: bool = False,
    lua_dir: str = PATHS.lua_dir,
    yaml: str = PATHS.config_file,
    again: str = AGAIN,
) -> list[Difference]:
    """The changes, in the order for an administrator.

    `node`: this host's name if it is only a node. `slurm_version`: of the running Slurm, None if
    unknown. `flat`: include lines for configless Slurm. `again`: the command that writes our
    fragments on this host.
    """
    twice = list(included_twice(site))
    doubled = {name for name in INCLUDED if any(name in each.has for each in twice)}
    again_for = {site.places.fragment(name) for name in doubled}
    found: list[Difference] = []
    for each in _all(config, site, roles, node, slurm_version, flat, lua_dir, yaml):
        if each.write != AGAIN:
            found.append(each)
        elif each.file not in again_for:  # what is read twice looks as if the fragment were old
            found.append(replace(each, write=again + edited_option(site, each.file)))
    return [*twice, *found]


def edited_option(site: Site, path: str) -> str:
    """The option of `qgpu setup` without which it keeps a fragment that was edited by hand."""
    text = site.text(path) if path.startswith(f"{site.places.fragments}/") else None
    return "" if text is None or seal_of(text) == "ours" else " --replace-edited"


def _all(
    config: Config,
    site: Site,
    roles: Collection[Role],
    node: str | None,
    slurm_version: str | None,
    flat: bool,
    lua_dir: str,
    yaml: str,
) -> Iterator[Difference]:
    controller, on_node = "controller" in roles, "node" in roles
    only = None if controller else node
    yield from (_fault(site, fault) for fault in site_faults(site))
    for name in ("slurm.conf", "gres.conf", "cgroup.conf") if flat else ():
        yield from not_shipped(site, name)
    settings = slurm_settings(config, site.places.fragments)
    yield from setting_differences(site, "slurm.conf", settings, flat, on_node)
    yield from slurm_differences(config, site, slurm_version, yaml)
    if controller or on_node:
        yield from node_differences(config, site, only)
        yield from gres_differences(config, site, flat, only)
        yield from setting_differences(site, "cgroup.conf", cgroup_settings(), flat, on_node)
    tasks = on_node or flat
    advice = not tasks and "login" not in roles  # a controller on which people need not submit
    for each in plugstack_differences(config, site, node if on_node else None, tasks):
        yield replace(each, severity="warn") if advice else each
    yield from lua_differences(config, site, lua_dir, controller)
