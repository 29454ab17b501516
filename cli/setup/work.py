"""The work of `qgpu setup`: which files, where to, and the site as it is with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from cli.setup.host import Here
from cli.setup.place import Done, PlaceError, folder, link, unlink
from gres.config.site import Config
from slurm_plugin.fragments import LINKED, NEEDED, Fragment, fragments, names_for
from slurm_plugin.site.difference import PACKAGE, Difference, Role
from slurm_plugin.site.differences import differences
from slurm_plugin.site.found import FLAT, INCLUDED, Overlay, Site, read_site, without_fragments

SHIPPED = (
    "slurm.conf",
    "gres.conf",
    "cgroup.conf",
)  # what configless Slurm hands out with its includes


def _links(here: Here, names: Collection[str], flat: bool) -> list[tuple[str, str]]:
    """Name beside slurm.conf and target of each link: relative, so that it holds under another
    root.
    """
    if here.configless:
        return []
    pairs = [(name, name) for name in LINKED if name in names]
    pairs += [(f"{FLAT}{name}", name) for name in SHIPPED if flat and name in names]
    directory = here.places.directory
    return [
        (beside, os.path.relpath(here.places.fragment(name), directory)) for beside, name in pairs
    ]


@dataclass
class Work:
    """One run. `configless`: None means by slurm.conf. `dry`: nothing is written."""

    here: Here
    config: Config
    roles: tuple[Role, ...]
    configless: bool | None
    lua_dir: str
    dry: bool
    again: str  # this command, as setup_command() spells it

    @cached_property
    def bare(self) -> Site:
        """The site without our fragments."""
        return without_fragments(self.here.places, self.here.disk, self.config.slurm.version)

    @property
    def flat(self) -> bool:
        """Whether fragments also get names without a slash, which configless Slurm hands out."""
        return self.bare.configless if self.configless is None else self.configless

    @cached_property
    def files(self) -> list[Fragment]:
        """This host's fragments."""
        names = names_for(self.config, self.roles, self.here.configless)
        return fragments(self.config, names, self.bare, self.lua_dir, self.here.places.fragments)

    def place(self, replace_edited: bool) -> list[Done]:
        """Write the fragments and links. Raises PlaceError."""
        places = self.here.places
        with folder(self.here.real(places.fragments), places.fragments, self.dry) as ours:
            done = [ours.put(file, replace_edited) for file in self.files]
        for name, target in _links(self.here, [file.name for file in self.files], self.flat):
            path = f"{places.directory}/{name}"
            made = link(self.here.real(path), path, target, self.dry)
            done += [made] if made else []
        return done

    def site(self) -> Site:
        """The site with the fragments; a dry run has not written them."""
        overlay: dict[str, str | None] = {}
        for file in self.files if self.dry else ():
            overlay[self.here.places.fragment(file.name)] = file.text
            if self.flat and file.name in INCLUDED:
                overlay[self.here.places.flat(file.name)] = file.text
            beside = self.here.places.main(file.name)
            if (
                file.name in LINKED
                and not self.here.configless
                and not self.here.real(beside).exists()
            ):
                overlay[beside] = file.text
        return read_site(
            self.here.places, Overlay(self.here.disk, overlay), self.config.slurm.version
        )

    def left(self, site: Site, yaml: str) -> list[Difference]:
        """The manual steps; none are known for a host without slurm.conf."""
        node = self.here.node(self.config, self.bare.slurm)
        unnamed = "node" in self.roles and node is None
        return [
            *([self._no_node(yaml)] if unnamed else []),
            *(self._packages() if self.here.root == "/" else []),
            *(self._differences(site, node, yaml) if self.here.found else []),
        ]

    def _packages(self) -> list[Difference]:
        """Packages of this role that are not installed."""
        lua, hook = f"{self.lua_dir}/qgpu_job_submit.lua", self.config.hook.client
        needed = (
            ("controller", lua, "qgpu-controller", "slurmctld does not start without it"),
            ("node", hook, "qgpu-node", "each job drains the node without it"),
            ("node", self.config.spank, "qgpu-slurm-plugins", "no job with a card starts"),
        )
        return [
            Difference(PACKAGE, path, 0, "", f"the package {name}", "add", "", why)
            for role, path, name, why in needed
            if role in self.roles and not self.here.real(path).exists()
        ]

    def _no_node(self, yaml: str) -> Difference:
        names = ", ".join(self.config.node_names()[:4])
        needed = f"this host, {self.here.name}, under nodes (it has {names})"
        why = "qgpud serves only nodes that it names; --node says the name where it is another"
        return Difference("nodes", yaml, 0, "", needed, "add", "", why)

    def _differences(self, site: Site, node: str | None, yaml: str) -> list[Difference]:
        return differences(
            self.config,
            site,
            self.roles,
            node=node,
            slurm_version=self.here.version if self.here.root == "/" else None,
            flat=self.flat,
            lua_dir=self.lua_dir,
            yaml=yaml,
            again=self.again,
        )


def remove(here: Here, dry: bool) -> list[Done]:
    """Take our fragments and links away, unless Slurm still reads them. Raises PlaceError."""
    site = read_site(here.places, here.disk, "23.02")
    read = [site.main(name) for name in INCLUDED if site.includes(name)]
    if read:
        raise PlaceError(
            f"Slurm would not start: take the include of qgpu's fragment out of {', '.join(read)},"
            " restart slurmctld and slurmd, then run this again"
        )
    done: list[Done | None] = []
    if here.real(here.places.fragments).is_dir():
        with folder(here.real(here.places.fragments), here.places.fragments, dry) as ours:
            done += [ours.remove(name) for name in NEEDED]
        if not dry:
            with contextlib.suppress(OSError):  # not empty: what the site keeps there stays
                here.real(here.places.fragments).rmdir()
    for name, target in _links(here, list(NEEDED), True):
        path = f"{here.places.directory}/{name}"
        done.append(unlink(here.real(path), path, target, dry))
    return [entry for entry in done if entry]
