"""A site's configuration as a whole: its files, our fragments among them, and its own settings."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.site.conf import Conf, Source, parse
from slurm_plugin.site.plugstack import Plugstack, parse_plugstack

# configless Slurm ships only includes without a slash, so qgpu/gres.conf is also qgpu_gres.conf
FLAT = "qgpu_"
INCLUDED = ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf")


@dataclass(frozen=True)
class Overlay:
    """A Source with some files replaced; None hides a file."""

    below: Source
    files: Mapping[str, str | None]

    def read(self, path: str) -> str:
        """The file on top, else the one below. Raises what the source below raises."""
        if path not in self.files:
            return self.below.read(path)
        text = self.files[path]
        if text is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        return text

    def glob(self, pattern: str) -> Sequence[str]:
        """Paths below, and the exact one."""
        found = {path for path in self.below.glob(pattern) if self.files.get(path, "") is not None}
        return sorted(found | ({pattern} if self.files.get(pattern) is not None else set()))


@dataclass(frozen=True)
class Places:
    """The paths of the site's files and our fragments. `slurm_conf` is the main file."""

    slurm_conf: str
    fragments: str

    @property
    def directory(self) -> str:
        """The directory of slurm.conf, in which Slurm looks for all other files."""
        return posixpath.dirname(self.slurm_conf)

    def main(self, name: str) -> str:
        """The site's slurm.conf, gres.conf and so on."""
        return self.slurm_conf if name == "slurm.conf" else f"{self.directory}/{name}"

    def fragment(self, name: str) -> str:
        """Our fragment."""
        return f"{self.fragments}/{name}"

    def flat(self, name: str) -> str:
        """The fragment's second name, beside slurm.conf."""
        return f"{self.directory}/{FLAT}{name}"

    def ours(self, path: str) -> bool:
        """Whether a file is one of our fragments, by either name."""
        return any(path in (self.fragment(name), self.flat(name)) for name in INCLUDED)


@dataclass(frozen=True)
class Site:
    """What Slurm reads on this host."""

    places: Places
    source: Source
    version: str
    slurm: Conf
    gres: Conf
    cgroup: Conf
    plugstack: Plugstack

    def conf(self, name: str) -> Conf:
        """slurm.conf, gres.conf or cgroup.conf."""
        return {"slurm.conf": self.slurm, "gres.conf": self.gres, "cgroup.conf": self.cgroup}[name]

    def main(self, name: str) -> str:
        """The site's own file of that name, as Slurm finds it."""
        return self.plugstack.path if name == "plugstack.conf" else self.places.main(name)

    def includes(self, name: str) -> bool:
        """Whether our fragment is read."""
        files = self.plugstack.files if name == "plugstack.conf" else self.conf(name).files
        return any(path in (self.places.fragment(name), self.places.flat(name)) for path in files)

    @property
    def configless(self) -> bool:
        """Whether slurmctld ships its files to hosts that have none."""
        parameters = self.slurm.get("SlurmctldParameters")
        return parameters is not None and "enable_configless" in [
            item.lower() for item in parameters.items
        ]

    def text(self, path: str) -> str | None:
        """A file's text; None if it cannot be read."""
        try:
            return self.source.read(path)
        except (OSError, ValueError):
            return None


def read_site(places: Places, source: Source, version: str) -> Site:
    """Read all files. Nothing is raised: unreadable files are faults."""
    slurm = parse(places.slurm_conf, source, version)
    stack = slurm.text("PlugStackConfig") or places.main("plugstack.conf")
    return Site(
        places,
        source,
        version,
        slurm,
        parse(places.main("gres.conf"), source, version),
        parse(places.main("cgroup.conf"), source, version),
        parse_plugstack(stack, source),
    )


def without_fragments(places: Places, source: Source, version: str) -> Site:
    """The site as if our fragments were empty: its own settings."""
    empty: dict[str, str | None] = {
        path: "" for name in INCLUDED for path in (places.fragment(name), places.flat(name))
    }
    return read_site(places, Overlay(source, empty), version)
