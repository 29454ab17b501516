"""The sections `classes` and `reclaim` of qgpu.yaml: what a class reserves, and how its memory is
taken back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from gres.config.schema import (
    CLASSES,
    AbsPath,
    Dimension,
    Isolation,
    JobClass,
    Policy,
    Section,
    Time,
    between,
)
from gres.paths import PATHS
from gres.units import Duration

Memory = Literal["reserved", "reclaimable"]
Unable = Literal["requeue", "stop"]

MAX_RECLAIMABLE = 200  # percent of a card's usable memory, where qgpu.yaml says nothing
HOUR = Duration(3600 * 10**9)

Deadline = Annotated[Time, AfterValidator(between(Duration(10**9), HOUR))]
Hysteresis = Annotated[Time, AfterValidator(between(Duration(0), HOUR))]


class ClassSettings(Section):
    """What a class reserves on a card, its policy, and its count-gres units per card.

    `memory` reclaimable: memory books nothing, and qgpud takes it back when a job that reserves
    needs it. `max_reclaimable` is what caps of such jobs may sum up to per card, in percent of its
    usable memory; None where memory is reserved.
    """

    reserves: list[Dimension] = Field(min_length=1)
    policy: Policy = "burst-share"
    isolation: Isolation = "governed"
    overcommit: int = Field(default=100, ge=1, le=100_000)
    memory: Memory = "reserved"
    max_reclaimable: int | None = Field(default=None, ge=1, le=10_000)

    @model_validator(mode="before")
    @classmethod
    def _limit(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("memory") == "reclaimable":
            return {"max_reclaimable": MAX_RECLAIMABLE, **value}
        return value

    @field_validator("reserves")
    @classmethod
    def _memory(cls, value: list[Dimension]) -> list[Dimension]:
        if "memory" not in value:
            raise ValueError(
                "memory must be among the reserved dimensions, else caps could exceed the card"
            )
        return value

    @model_validator(mode="after")
    def _limit_of_what(self) -> ClassSettings:
        if self.memory == "reserved" and self.max_reclaimable is not None:
            raise ValueError(
                "max_reclaimable is given, but memory is reserved, so none is reclaimable; leave it"
                " out, or write memory: reclaimable"
            )
        return self


class ReclaimSettings(Section):
    """How memory of reclaimable jobs is taken back.

    * `deadline`: the Prolog of a job that reserves waits so long for its memory; then the job is
      requeued
    * `operation`: time for one job to leave or to return; then it is given up
    * `hysteresis`: room must last so long before a job returns
    * `unable`: what becomes of a job whose memory cannot be moved
    * `helper`: the program that moves it
    * `move`: whether a job also returns to another free card of its node
    """

    deadline: Deadline = Duration(60 * 10**9)
    operation: Deadline = Duration(60 * 10**9)
    hysteresis: Hysteresis = Duration(10 * 10**9)
    unable: Unable = "requeue"
    helper: AbsPath = PATHS.checkpoint
    move: bool = False


_DEFAULTS: dict[JobClass, dict[str, object]] = {
    "online": {"reserves": ["compute", "memory"], "overcommit": 100},
    "offline": {"reserves": ["memory"], "overcommit": 400},
}


def _with_defaults(value: object) -> object:
    """The section as it was read; each class takes what it leaves out from its own defaults."""
    if not isinstance(value, dict):
        return value
    known = {name: value.get(name, {}) for name in CLASSES} | value
    return {
        name: {**_defaults(name, item), **item}
        if name in CLASSES and isinstance(item, dict)
        else item
        for name, item in known.items()
    }


def _defaults(name: JobClass, item: dict[str, object]) -> dict[str, object]:
    """Jobs with the memory of their share reach `max_reclaimable` and the count at once: then it is
    Slurm that lets the next one wait.
    """
    if item.get("memory") != "reclaimable":
        return _DEFAULTS[name]
    return {**_DEFAULTS[name], "overcommit": item.get("max_reclaimable", MAX_RECLAIMABLE)}


def _only_offline(classes: dict[JobClass, ClassSettings]) -> dict[JobClass, ClassSettings]:
    if classes["online"].memory == "reclaimable":
        raise ValueError(
            "online has memory: reclaimable, but memory is taken back for online jobs, from"
            " offline ones; leave it out, or write it for offline"
        )
    return classes


Classes = Annotated[
    dict[JobClass, ClassSettings],
    BeforeValidator(_with_defaults),
    AfterValidator(_only_offline),
]
