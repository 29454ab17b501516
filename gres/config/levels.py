"""Combines the settings of one card: the levels of qgpu.yaml, and live changes on top.

From wide to narrow: `classes` and `enforcer`, `models.M`, the entries of `cards` (later ones win),
and the changes by `qgpu card set`. Pure; qgpud keeps the live changes. docs/specs/config.md lists
the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gres.config.schema import CardTuning, IdleRelease, Switch
from gres.config.site import CLASSES, Config, Isolation, JobClass, Node, Policy
from gres.units import Duration

TIMES = ("slice", "window", "idle_release", "online_delay")
LONG_RELEASE = Duration(100 * 10**6)  # idle_release of those that `auto` does not let in sooner
PER_CLASS = ("policy", "isolation")
PLAIN = (*TIMES, "online_share", "hardware")
KEYS = (*PLAIN, *(f"{name}.{job_class}" for name in PER_CLASS for job_class in CLASSES))


class CardPlanError(ValueError):
    """A live change is invalid; the text is a sentence with the bad word and one that works."""


@dataclass(frozen=True)
class CardPlan:
    """Settings of one card; `sources` names the level of each key's value."""

    slice: Duration
    window: Duration
    idle_release: IdleRelease
    online_delay: Duration
    policy: dict[JobClass, Policy]
    isolation: dict[JobClass, Isolation]
    sources: dict[str, str]
    hardware: Switch = "auto"
    online_share: str = "off"

    def value(self, key: str) -> str:
        """The value of one of KEYS as text that `parse_change` reads."""
        name, _, job_class = key.partition(".")
        return str(getattr(self, name)[job_class] if job_class else getattr(self, name))

    def values(self) -> dict[str, str]:
        """All keys as text."""
        return {key: self.value(key) for key in KEYS}

    def release(self) -> tuple[Duration, Duration]:
        """What the arbiter is told: idle_release, and online_delay, which is 0 unless it is
        `auto`.
        """
        if self.idle_release == "auto":
            return LONG_RELEASE, self.online_delay
        return self.idle_release, Duration(0)

    def share(self) -> int:
        """online_share in percent as the arbiter is told it; 0: no limit."""
        limits = self.idle_release == "auto" and self.online_share != "off"
        return int(self.online_share.removesuffix("%")) if limits else 0

    def governed(self, job_class: JobClass | None) -> bool:
        """Whether gate and cap hold for jobs of a class on this card."""
        return job_class is None or self.isolation[job_class] == "governed"


def _flat(tuning: CardTuning) -> dict[str, str]:
    """The keys that a level sets, as text."""
    found = {
        name: str(getattr(tuning, name)) for name in PLAIN if getattr(tuning, name) is not None
    }
    for name in PER_CLASS:
        found |= {
            f"{name}.{job_class}": value for job_class, value in getattr(tuning, name).items()
        }
    return found


def _wide(config: Config) -> dict[str, str]:
    found = {name: str(getattr(config.enforcer, name)) for name in (*TIMES, "online_share")}
    found["hardware"] = config.enforcer.hardware.enabled
    for job_class in CLASSES:
        settings = config.classes[job_class]
        off = config.enforcer.isolation == "none"
        found[f"policy.{job_class}"] = settings.policy
        found[f"isolation.{job_class}"] = "none" if off else settings.isolation
    return found


def plan_card(
    config: Config, node: Node, index: int, uuid: str, live: Mapping[str, str] | None = None
) -> CardPlan:
    """The settings of the card with that index and UUID. `live` are checked changes."""
    values = _wide(config)
    sources = {
        key: f"classes.{key.partition('.')[2]}" if "." in key else f"enforcer.{key}"
        for key in values
    }
    sources["hardware"] = "enforcer.hardware"
    levels: list[tuple[str, Mapping[str, str]]] = [
        (f"models.{node.model}", _flat(config.models[node.model])),
        *(
            (f"cards[{number}]", _flat(entry))
            for number, entry in enumerate(config.cards)
            if entry.names(node.name, index, uuid)
        ),
        ("qgpu card set", live or {}),
    ]
    for source, level in levels:
        values.update(level)
        sources.update(dict.fromkeys(level, source))
    tuning = _tuning(values)
    assert tuning.slice is not None and tuning.window is not None
    assert tuning.idle_release is not None and tuning.online_delay is not None
    return CardPlan(
        tuning.slice,
        tuning.window,
        tuning.idle_release,
        tuning.online_delay,
        tuning.policy,
        tuning.isolation,
        sources,
        tuning.hardware or "auto",
        tuning.online_share or "off",
    )


def _tuning(values: Mapping[str, str]) -> CardTuning:
    body: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        name, _, job_class = key.partition(".")
        if job_class:
            body.setdefault(name, {})[job_class] = value
    return CardTuning.model_validate(body)


def check_change(changes: Mapping[str, str]) -> dict[str, str]:
    """Live changes in full: `policy=X` becomes both classes. Raises CardPlanError."""
    if not changes:
        raise CardPlanError(
            f"nothing to change; write KEY=VALUE, for example slice=1ms; keys are {_keys()}"
        )
    full: dict[str, str] = {}
    for key, value in changes.items():
        if key in PER_CLASS:
            full |= {f"{key}.{job_class}": value for job_class in CLASSES}
        elif key in KEYS:
            full[key] = value
        else:
            raise CardPlanError(f"there is no setting '{key}' of a card; known are {_keys()}")
    for key, value in full.items():
        try:
            _tuning({key: value})
        except ValidationError as error:
            text = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise CardPlanError(f"{key}={value} is refused: {text[:1].lower()}{text[1:]}") from None
    return full


def _keys() -> str:
    return ", ".join((*PLAIN, *(f"{name}[.online|.offline]" for name in PER_CLASS)))


def parse_words(words: list[str]) -> dict[str, str]:
    """KEY=VALUE words of a command line. Raises CardPlanError."""
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key or not value:
            raise CardPlanError(f"'{word}' is not KEY=VALUE; write for example slice=1ms")
        if key in found:
            raise CardPlanError(
                f"{key} is given twice, as {found[key]} and as {value}; write it once"
            )
        found[key] = value
    return check_change(found)
