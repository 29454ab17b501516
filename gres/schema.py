"""The sections of qgpu.yaml as types (docs/specs/config.md); gres/config.py joins and reads them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from gres.hostlist import expand
from gres.units import Duration, parse_duration, parse_mib

JobClass = Literal["online", "offline"]
Dimension = Literal["compute", "memory"]
Policy = Literal["best-effort", "fixed-share", "burst-share"]
TagField = Literal["comment", "extra"]
CLASSES: tuple[JobClass, ...] = ("online", "offline")

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

Time = Annotated[Duration, BeforeValidator(parse_duration)]
MibDown = Annotated[int, BeforeValidator(parse_mib)]
MibUp = Annotated[int, BeforeValidator(lambda value: parse_mib(value, up=True))]


def _absolute(value: str) -> str:
    if not value.startswith("/") or re.search(r"[\s'\"\\$`;&|<>(){}*?!\x00-\x1f\x7f]", value):
        raise ValueError(f"'{value}' must be an absolute path without blanks, quotes or shell characters")
    if ".." in value.split("/"):
        raise ValueError(f"'{value}' must not contain '..'")
    if re.search(r"%(?!n)", value):
        raise ValueError(f"'{value}' has a % that is not %n (the node's name)")
    return value


def _word(value: str) -> str:
    if not _WORD.fullmatch(value) or len(value) > 48:
        raise ValueError(
            f"'{value}' must be a name of letters, digits, '_', '.' or '-' that starts with a letter"
        )
    return value


AbsPath = Annotated[
    str, Field(max_length=255), BeforeValidator(lambda v: _absolute(v) if isinstance(v, str) else v)
]
Word = Annotated[str, BeforeValidator(lambda v: _word(v) if isinstance(v, str) else v)]


class Section(BaseModel):
    """Strict and frozen: unknown keys are errors, nothing is coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class SlurmSettings(Section):
    """Which Slurm this is; `tag_field: auto` means comment before 23.02 and extra from then on."""

    version: str = "22.05"
    tag_field: Literal["auto", "comment", "extra"] = "auto"

    @field_validator("version")
    @classmethod
    def _version(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+)?", value):
            raise ValueError(f"'{value}' is not a Slurm version; write it quoted, for example \"24.11\"")
        return value

    @model_validator(mode="after")
    def _extra_exists(self) -> SlurmSettings:
        if self.tag_field == "extra" and self.version < "23.02":
            raise ValueError(f"tag_field extra does not exist in Slurm {self.version}; use comment or auto")
        return self


class DriverSettings(Section):
    """Where the real driver libraries are; auto searches the usual places."""

    libcuda: Literal["auto"] | AbsPath = "auto"
    nvml: Literal["auto"] | AbsPath = "auto"


class HookSettings(Section):
    """The compiled prolog/epilog client, how long it waits, whether it drains a broken node with a reason."""

    client: AbsPath = "/usr/libexec/qgpu/qgpu-hook"
    deadline: Time = Duration(10 * 10**9)
    drain_command: bool = True
    scontrol: AbsPath = "/usr/bin/scontrol"


class ClassSettings(Section):
    """What a class reserves on a card, how its members divide it, and its count-gres units per card."""

    reserves: list[Dimension] = Field(min_length=1)
    policy: Policy = "burst-share"
    overcommit: int = Field(default=100, ge=1, le=100_000)

    @field_validator("policy")
    @classmethod
    def _implemented(cls, value: Policy) -> Policy:
        if value == "fixed-share":
            raise ValueError("fixed-share is not in this version; use burst-share or best-effort")
        return value

    @field_validator("reserves")
    @classmethod
    def _memory(cls, value: list[Dimension]) -> list[Dimension]:
        if "memory" not in value:
            raise ValueError("memory must be among the reserved dimensions, else caps could exceed the card")
        return value


class ModelSettings(Section):
    """One model of card: its memory and what is kept back for contexts, in MiB."""

    memory: MibDown
    reserve: MibUp = 0

    @property
    def usable(self) -> int:
        """MiB that jobs can share."""
        return self.memory - self.reserve

    @model_validator(mode="after")
    def _positive(self) -> ModelSettings:
        if self.usable < 100:
            raise ValueError(
                f"memory {self.memory} MiB less reserve {self.reserve} MiB leaves too little to share"
            )
        return self


class NodeGroup(Section):
    """Nodes that are alike: names and device files as bracket lists."""

    names: str
    model: Word
    count: int = Field(ge=1, le=64)
    files: AbsPath

    @model_validator(mode="after")
    def _lists(self) -> NodeGroup:
        found = len(expand(self.files))
        if found != self.count:
            raise ValueError(f"files '{self.files}' names {found} device files, but count is {self.count}")
        for name in expand(self.names):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
                raise ValueError(f"'{name}' is not a node name")
        return self


class Limits(Section):
    """Smallest and largest share in percent, smallest qgpu_mem in MiB."""

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


class EnforcerSettings(Section):
    """What qgpud and the arbiter do on a node."""

    idle_release: Time = Duration(100 * 10**6)
    window: Time = Duration(500 * 10**3)
    slice: Time = Duration(2 * 10**6)
    lease: Time = Duration(10 * 10**9)
    grace: Time = Duration(2 * 10**9)
    arbiter: AbsPath = "/usr/libexec/qgpu/qgpu-arbiter"
    nvml_interval: Time = Duration(10**9)
    ledger_interval: Time = Duration(2 * 10**9)
    isolation: Literal["governed", "none"] = "governed"


class LoggingSettings(Section):
    """Least severe level that is written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
