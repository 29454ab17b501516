"""The settings that qgpu needs in slurm.conf and cgroup.conf: one
table for fragments and checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gres.config.site import Config
from slurm_plugin.site.conf import Conf, Value

Restart = Literal["", "reconfigure", "slurmd", "slurmctld", "all"]
SEVERAL_SCRIPTS = "24.05"  # since then Prolog= and Epilog= may have several lines


@dataclass(frozen=True)
class Setting:
    """One key.

    * `list`: each of `items` must be among the site's
    * `one`: the value must be the only item
    * `script`: one of the named scripts must be ours, or call ours

    `prefix` may precede an item.
    """

    key: str
    kind: Literal["list", "one", "script"]
    items: tuple[str, ...]
    why: str
    restart: Restart = "all"
    prefix: str = ""
    default: str = ""  # Slurm's default
    ordered: bool = False  # the items must come in this order

    @property
    def value(self) -> str:
        """The value for a site without the key."""
        return ",".join(self.items)

    def bare(self, item: str) -> str:
        """An item as Slurm compares it: without its prefix, in small letters but for paths."""
        word = item.removeprefix(self.prefix) if self.prefix else item
        return word if self.kind == "script" else word.lower()

    def missing(self, have: list[str]) -> list[str]:
        """The items that are not among the site's."""
        bare = [self.bare(item) for item in have]
        return [item for item in self.items if self.bare(item) not in bare]

    def in_order(self, have: list[str]) -> bool:
        """Whether the site has our items in our order, if that matters."""
        wanted = [self.bare(item) for item in self.items]
        found = [bare for item in have if (bare := self.bare(item)) in wanted]
        return not self.ordered or found == wanted

    def merged(self, have: list[str]) -> str:
        """The value to write: the site's items and the missing ones."""
        if self.kind != "list":
            return self.value
        if not self.ordered:
            return ",".join([*have, *self.missing(have)])
        wanted = {self.bare(item) for item in self.items}
        return ",".join([*[item for item in have if self.bare(item) not in wanted], *self.items])


def _select_parameters(config: Config) -> list[Setting]:
    multi, spread = config.slurm.multi_card, config.slurm.placement == "spread"
    if not multi and not spread:
        return []
    items = [
        "CR_Core_Memory",
        *(["MULTIPLE_SHARING_GRES_PJ"] * multi),
        *(["LL_SHARED_GRES"] * spread),
    ]
    why = (
        "parts of several cards need it"
        if multi
        else "shares go to the card with the most left by it"
    )
    return [Setting("SelectTypeParameters", "list", tuple(items), why, restart="slurmctld")]


def _plugins(config: Config) -> list[Setting]:
    lua = [
        Setting(
            "JobSubmitPlugins",
            "list",
            ("lua",),
            "without it shares are booked without a card",
            "slurmctld",
            prefix="job_submit/",
        )
    ]
    if config.slurm.cli_filter:
        why = "srun asks for cards in steps by it; qgpu.yaml says slurm: {cli_filter: true}"
        lua.append(
            Setting("CliFilterPlugins", "list", ("lua",), why, "reconfigure", prefix="cli_filter/")
        )
    return lua


def slurm_settings(config: Config, etc_dir: str) -> list[Setting]:
    """Keys of slurm.conf, in the order in which they are rendered.
    `etc_dir` has prolog and epilog.
    """
    native = config.slurm.native_gres
    types = ("gpu", "qgpu", "vram", "shard") if native else ("gpu", "shard", "qgpu", "vram")
    tres = ("gpu", "shard", "qgpu", "qgpu:online", "qgpu:offline", "vram")
    return [
        Setting(
            "GresTypes",
            "list",
            types,
            "Slurm knows no shares without them",
            ordered=native,
            prefix="gres/",
        ),
        Setting(
            "SelectType",
            "one",
            ("select/cons_tres",),
            "only it gives parts of a card; a change from select/linear loses all jobs",
            prefix="select/",
            default="select/cons_tres" if config.slurm.version >= "23.02" else "",
        ),
        *_select_parameters(config),
        Setting(
            "AccountingStorageTRES",
            "list",
            tuple(f"gres/{name}" for name in tres),
            "limits and accounting per class count by them",
            "slurmctld",
        ),
        *_plugins(config),
        Setting(
            "TaskPlugin",
            "list",
            ("task/cgroup",),
            "it keeps a job from the cards of others",
            "slurmd",
            prefix="task/",
        ),
        Setting(
            "ProctrackType",
            "one",
            ("proctrack/cgroup",),
            "qgpud finds a job's processes by it",
            "all",
            prefix="proctrack/",
            default="proctrack/cgroup",
        ),
        Setting(
            "PrologFlags",
            "list",
            ("Alloc", "Contain"),
            "a grant is made before the first step",
            "all",
        ),
        Setting("Prolog", "script", (f"{etc_dir}/prolog",), "qgpud makes the grant in it"),
        Setting("Epilog", "script", (f"{etc_dir}/epilog",), "qgpud takes the grant back in it"),
    ]


def cgroup_settings() -> list[Setting]:
    """Keys of cgroup.conf."""
    why = "without it every job can open every card, also one that asked for none"
    return [Setting("ConstrainDevices", "one", ("yes",), why, "slurmd")]


def implied_flags(have: list[str]) -> list[str]:
    """PrologFlags with those that others imply."""
    flags = {item.lower() for item in have}
    if "x11" in flags:
        flags |= {"contain"}
    if flags & {"contain", "deferbatch", "nohold"}:
        flags |= {"alloc"}
    return sorted(flags)


def to_render(settings: list[Setting], site: Conf | None, version: str) -> list[Setting]:
    """The settings for the fragment: those that the site does not set, as Slurm reports repeated
    keys.

    Without a site all of them. A default of Slurm is rendered only without a site.
    """
    if site is None:
        return settings
    several = version >= SEVERAL_SCRIPTS
    return [
        setting
        for setting in settings
        if (setting.kind == "script" and several and not _same(site.all(setting.key), setting))
        or (site.get(setting.key) is None and not setting.default)
    ]


def _same(values: list[Value], setting: Setting) -> bool:
    return any(value.value == setting.value for value in values)
