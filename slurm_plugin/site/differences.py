"""Lists all differences of a site's Slurm configuration from what qgpu.yaml needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.site.conf import Fault
from slurm_plugin.site.diff_files import lua_differences, plugstack_differences
from slurm_plugin.site.diff_gres import gres_differences
from slurm_plugin.site.diff_nodes import node_differences
from slurm_plugin.site.diff_settings import not_shipped, setting_differences
from slurm_plugin.site.diff_slurm import slurm_differences
from slurm_plugin.site.difference import SYNTAX, Difference, Role
from slurm_plugin.site.found import Site
from slurm_plugin.site.nodes import node_lines
from slurm_plugin.site.settings import cgroup_settings, slurm_settings


def _fault(fault: Fault) -> Difference:
    return Difference(
        SYNTAX,
        fault.file,
        fault.line,
        fault.text,
        "a line that Slurm reads",
        "replace",
        "",
        "Slurm refuses it",
        "all",
    )


def site_faults(site: Site) -> list[Fault]:
    """Faults that Slurm finds in any file; gres.conf, cgroup.conf or
    plugstack.conf may be missing.
    """
    optional = [*site.gres.faults, *site.cgroup.faults]
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
) -> list[Difference]:
    """The changes, in the order for an administrator.

    `node`: this host's name if it is only a node. `slurm_version`: of the running Slurm, None if
    unknown. `flat`: include lines for configless Slurm.
    """
    return list(_all(config, site, roles, node, slurm_version, flat, lua_dir, yaml))


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
    yield from (_fault(fault) for fault in site_faults(site))
    for name in ("slurm.conf", "gres.conf", "cgroup.conf") if flat else ():
        yield from not_shipped(site, name)
    settings = slurm_settings(config, site.places.fragments)
    yield from setting_differences(site, "slurm.conf", settings, flat, on_node)
    yield from slurm_differences(config, site, slurm_version, yaml)
    if controller or on_node:
        yield from node_differences(config, site, only)
        yield from gres_differences(config, site, flat, only)
        yield from setting_differences(site, "cgroup.conf", cgroup_settings(), flat, on_node)
    if not controller or on_node or flat:
        yield from plugstack_differences(config, site, node if on_node else None)
    yield from lua_differences(config, site, lua_dir, controller)
