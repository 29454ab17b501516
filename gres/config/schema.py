"""The sections of qgpu.yaml as types (docs/specs/config.md); gres/config/site.py joins and reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from gres.config.hostlist import core_list, expand
from gres.config.links import check_links
from gres.config.mig import check_instances
from gres.config.sentences import shown
from gres.paths import PATHS
from gres.units import Duration, UnitError, parse_duration, parse_mib

JobClass = Literal["online", "offline"]
Dimension = Literal["compute", "memory"]
Policy = Literal["best-effort", "fixed-share", "burst-share"]
Isolation = Literal["governed", "none"]
TagField = Literal["comment", "extra"]
Injection = Literal["auto", "preload", "mount"]
Managed = Literal["full", "resident"]
Switch = Literal["auto", "on", "off"]
HardwareMethod = Literal["auto", "schedule", "disable", "timeslice"]
HardwareActor = Literal["auto", "arbiter", "shim"]
CLASSES: tuple[JobClass, ...] = ("online", "offline")

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

Time = Annotated[Duration, BeforeValidator(parse_duration)]
MibDown = Annotated[int, BeforeValidator(parse_mib)]
MibUp = Annotated[int, BeforeValidator(lambda value: parse_mib(value, up=True))]


def between(low: Duration, high: Duration) -> Callable[[Duration], Duration]:
    """Check the arbiter's limits (docs/specs/control.md), with a
    sentence in place of its EINVAL.
    """

    def check(value: Duration) -> Duration:
        if not low <= value <= high:
            raise ValueError(
                f"{value} is outside {low} to {high}; write for example"
                f" {low if value < low else high}"
            )
        return value

    return check


def _idle_release(value: object) -> Duration | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        return between(Duration(0), Duration(60 * 10**9))(parse_duration(value))
    except UnitError:
        raise ValueError(
            f"'{shown(value)}' is not a duration; write auto, or for example 100ms"
        ) from None


def _online_share(value: object) -> str:
    if value is False or value == "off":  # YAML reads a bare off as a truth value
        return "off"
    found = re.fullmatch(r"0*([1-9][0-9]?|100)%", str(value))
    if not found:
        raise ValueError(f"'{shown(value)}' is neither off nor 1% to 100%; write for example 5%")
    return f"{found[1]}%"


Slice = Annotated[Time, AfterValidator(between(Duration(100_000), Duration(10**9)))]
Window = Annotated[Time, AfterValidator(between(Duration(50_000), Duration(10**9)))]
# Checked before the union is tried, so that a bad word is one sentence and not one per member.
IdleRelease = Annotated[Duration | Literal["auto"], BeforeValidator(_idle_release)]
OnlineDelay = Annotated[Time, AfterValidator(between(Duration(100_000), Duration(10**8)))]
OnlineShare = Annotated[str, BeforeValidator(_online_share)]
Lease = Annotated[Time, AfterValidator(between(Duration(10**8), Duration(600 * 10**9)))]
Grace = Annotated[Time, AfterValidator(between(Duration(0), Duration(600 * 10**9)))]
BusyWindow = Annotated[Time, AfterValidator(between(Duration(2 * 10**9), Duration(600 * 10**9)))]
Exemption = Annotated[Time, AfterValidator(between(Duration(0), Duration(86_400 * 10**9)))]
# YAML reads a bare on or off as a truth value.
OnOff = Annotated[Switch, BeforeValidator(lambda v: ("off", "on")[v] if isinstance(v, bool) else v)]


def _absolute(value: str) -> str:
    if not value.startswith("/") or re.search(r"[\s'\"\\$`;&|<>(){}*?!\x00-\x1f\x7f]", value):
        raise ValueError(
            f"'{value}' must be an absolute path without blanks, quotes or shell characters"
        )
    if ".." in value.split("/"):
        raise ValueError(f"'{value}' must not contain '..'")
    if re.search(r"%(?!n)", value):
        raise ValueError(f"'{value}' has a % that is not %n (the node's name)")
    return value


def _word(value: str) -> str:
    if not _WORD.fullmatch(value) or len(value) > 48:
        raise ValueError(
            f"'{value}' must be a name of letters, digits, '_', '.' or '-' that starts with a"
            " letter"
        )
    return value


AbsPath = Annotated[
    str, Field(max_length=255), BeforeValidator(lambda v: _absolute(v) if isinstance(v, str) else v)
]
Word = Annotated[str, BeforeValidator(lambda v: _word(v) if isinstance(v, str) else v)]


Cores = Annotated[str, BeforeValidator(lambda v: core_list(v) if isinstance(v, str) else v)]


class Section(BaseModel):
    """Strict and frozen: unknown keys are errors, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class SlurmSettings(Section):
    """The site's Slurm.

    * `tag_field`: auto means comment before 23.02, extra from then on
    * `native_gres`: our GRES plugins are installed, so a share counts only as slurmctld allocated
      it
    * `placement`: shares fill the first fitting card of a node, or go to the card with most left
    * `multi_card`: a job may have equal parts of several cards of a node
    * `cli_filter`: each host has cli_filter.lua, so slurm.conf may name it; a host without it can
      run neither sbatch nor srun
    """

    version: str = "22.05"
    tag_field: Literal["auto", "comment", "extra"] = "auto"
    cli_filter: bool = False
    native_gres: bool = False
    multi_card: bool = False
    placement: Literal["binpack", "spread"] = "binpack"

    @field_validator("version")
    @classmethod
    def _version(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+)?", value):
            raise ValueError(
                f"'{value}' is not a Slurm version; write it quoted, for example \"24.11\""
            )
        return value

    @model_validator(mode="after")
    def _extra_exists(self) -> SlurmSettings:
        if self.tag_field == "extra" and self.version < "23.02":
            raise ValueError(
                f"tag_field extra does not exist in Slurm {self.version}; use comment or auto"
            )
        return self

    @model_validator(mode="after")
    def _spread_exists(self) -> SlurmSettings:
        if self.placement == "spread" and self.version < "23.11":
            raise ValueError(
                f"placement spread needs Slurm 23.11 or later, this is {self.version}, which always"
                " fills the first card that fits; write placement: binpack"
            )
        return self

    @model_validator(mode="after")
    def _multi_card_exists(self) -> SlurmSettings:
        if self.multi_card and self.version < "24.05":
            raise ValueError(
                f"multi_card needs Slurm 24.05 or later, this is {self.version}; write multi_card:"
                " false"
            )
        return self


class DriverSettings(Section):
    """Paths of the real driver libraries; auto searches the usual places."""

    libcuda: Literal["auto"] | AbsPath = "auto"
    nvml: Literal["auto"] | AbsPath = "auto"


class HookSettings(Section):
    """The Prolog and Epilog client, its deadline, and whether it drains a broken node with a
    reason.
    """

    client: AbsPath = PATHS.hook
    deadline: Time = Duration(10 * 10**9)
    drain_command: bool = True
    scontrol: AbsPath = "/usr/bin/scontrol"


class CardTuning(Section):
    """Settings per card; null takes the value of the next wider level."""

    policy: dict[JobClass, Policy] = Field(default_factory=dict)
    isolation: dict[JobClass, Isolation] = Field(default_factory=dict)
    slice: Slice | None = None
    window: Window | None = None
    idle_release: IdleRelease | None = None
    online_delay: OnlineDelay | None = None
    online_share: OnlineShare | None = None
    hardware: OnOff | None = None

    @field_validator("policy", "isolation", mode="before")
    @classmethod
    def _both(cls, value: object) -> object:
        """One word counts for both classes."""
        return dict.fromkeys(CLASSES, value) if isinstance(value, str) else value


class CardGroup(CardTuning):
    """Settings of some cards: by node and index, or by UUID. Later entries win."""

    nodes: str | None = None
    cards: list[Annotated[int, Field(ge=0, le=63)]] | None = Field(default=None, min_length=1)
    uuids: list[str] | None = Field(default=None, min_length=1)

    @field_validator("uuids")
    @classmethod
    def _uuids(cls, value: list[str] | None) -> list[str] | None:
        for uuid in value or ():
            if not re.fullmatch(r"(GPU|MIG)-[A-Za-z0-9/-]{1,43}", uuid):
                raise ValueError(
                    f"'{uuid}' is not a UUID of a card; nvidia-smi -L prints them as GPU-..."
                )
        return value

    @model_validator(mode="after")
    def _some_card(self) -> CardGroup:
        if self.uuids is not None and (self.nodes is not None or self.cards is not None):
            raise ValueError(
                "a card is named by uuids, or by nodes and cards, not by both; leave one out"
            )
        if self.uuids is None and self.nodes is None:
            raise ValueError(
                'no card is named; write nodes: "n[1-2]" (with cards: [0, 1] for some), or uuids:'
                " [GPU-...]"
            )
        if self.nodes is not None:
            expand(self.nodes)
        return self

    def names(self, node: str, index: int, uuid: str) -> bool:
        """Whether this entry names that card."""
        if self.uuids is not None:
            return uuid in self.uuids
        return node in expand(self.nodes or "") and (self.cards is None or index in self.cards)


class ModelSettings(CardTuning):
    """One model of card. In MiB: its memory, what is kept from jobs, a context until measured."""

    memory: MibDown
    reserve: MibUp = 0
    context: Annotated[MibUp, Field(ge=1)] = 512

    @property
    def usable(self) -> int:
        """MiB that jobs can share."""
        return self.memory - self.reserve

    @model_validator(mode="after")
    def _positive(self) -> ModelSettings:
        if self.usable < 100:
            raise ValueError(
                f"memory {self.memory} MiB less reserve {self.reserve} MiB leaves too little to"
                " share"
            )
        return self


class NodeGroup(Section):
    """Equal nodes: names and device files as bracket lists.

    `files` has one file per card. For MIG instances, `instances` has one list per instance: the
    files of card, GPU instance and compute instance. `cores` has Slurm's core numbers near each
    card and `links` its links to each card, for gres.conf. `injection` overrides the cluster's.
    `host_memory` is the MiB of main memory that Slurm can give to jobs of a node.
    """

    names: str
    model: Word
    count: int = Field(ge=1, le=64)
    files: AbsPath | None = None
    instances: list[AbsPath] | None = Field(default=None, min_length=1)
    cores: list[Cores] | None = Field(default=None, min_length=1)
    links: list[str] | None = Field(default=None, min_length=1)
    injection: Injection | None = None
    host_memory: Annotated[MibDown, Field(ge=1)] | None = None

    def card_files(self, node: str) -> list[tuple[str, ...]]:
        """Device files of each card of a node, in Slurm's order; several for a MIG instance."""
        if self.instances is not None:
            return [tuple(expand(entry.replace("%n", node))) for entry in self.instances]
        return [(path,) for path in expand((self.files or "").replace("%n", node))]

    @model_validator(mode="after")
    def _lists(self) -> NodeGroup:
        if (self.files is None) == (self.instances is None):
            raise ValueError(
                'the cards are named by files: "/dev/nvidia[0-3]", or by instances where they are'
                " MIG instances: write one of both"
            )
        found = len(self.card_files(""))
        if found != self.count and self.files is not None:
            raise ValueError(
                f"files '{self.files}' names {found} device files, but count is {self.count}"
            )
        if found != self.count:
            raise ValueError(f"instances has {found} entries, but count is {self.count}")
        if self.cores is not None and len(self.cores) != self.count:
            raise ValueError(
                f"cores has {len(self.cores)} entries, but count is {self.count}; write one per"
                " card"
            )
        check_instances(self.instances or ())
        if self.links is not None and self.instances is not None:
            raise ValueError("links is given, but MIG instances have none; leave it out")
        if self.links is not None:
            check_links(self.links, self.count)
        for name in expand(self.names):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
                raise ValueError(f"'{name}' is not a node name")
        return self


class Limits(Section):
    """Smallest and largest share in percent, smallest vram in MiB."""

    min_share: int = Field(default=1, ge=1, le=100)
    max_share: int = Field(default=100, ge=1, le=100)
    min_mem: MibUp = 64

    @model_validator(mode="after")
    def _order(self) -> Limits:
        if self.min_share > self.max_share:
            raise ValueError(f"min_share {self.min_share} is above max_share {self.max_share}")
        if self.min_mem < 1:
            raise ValueError("min_mem must be at least 1 MiB")
        return self


class SuspendedSettings(Section):
    """What offline jobs of a QOS get for time that online jobs took.

    Their time limit grows by it, up to the partition's. After `max_suspended` in one run they are
    requeued.
    """

    extend_time: bool = False
    max_suspended: Time | None = None

    @model_validator(mode="after")
    def _something(self) -> SuspendedSettings:
        if not self.extend_time and self.max_suspended is None:
            raise ValueError(
                "nothing is asked for; write extend_time: true, or max_suspended: 4h, or both"
            )
        if self.max_suspended is not None and self.max_suspended.seconds < 1:
            raise ValueError(
                f"max_suspended {self.max_suspended} is below 1s; write for example 4h"
            )
        return self


class RunSettings(Section):
    """Users and groups that may use `qgpu run`; root always may."""

    allow_users: list[str] = Field(default_factory=list)
    allow_groups: list[str] = Field(default_factory=list)

    @field_validator("allow_users", "allow_groups")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?", name):
                raise ValueError(
                    f"'{name}' is not the name of a user or group; write for example [alice]"
                )
        return value


class LoggingSettings(Section):
    """Least severe level that is written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
