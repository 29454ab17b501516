"""The trace of `qgpu simulate`: cards, their settings, and tenants that are a few numbers each.

docs/specs/simulate.md describes the file. Every bad input becomes one sentence that names its
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gres.config.schema import Isolation, JobClass, OnlineShare, Policy, Section, Word
from gres.config.sentences import fault_sentence, shown
from gres.units import Duration, UnitError, parse_duration
from simulator.whatif.simprogram import MAX_KERNEL, Program, Stretch

MS = 10**6
HOUR = 3600 * 10**9
MAX_CARDS, MAX_TENANTS, MAX_TENANTS_OF_A_CARD = 512, 8192, 256
MAX_PROGRAMS = 256
MAX_FILE_BYTES = 1 << 20  # bytes of a trace: YAML costs far more memory than text
Lie = Literal["busy", "idle"]


class TraceError(ValueError):
    """An invalid trace; the text is a sentence for its author."""


def _bounded(low: Duration, high: Duration) -> Any:
    def check(value: object) -> Duration:
        length = parse_duration(value)
        if not low <= length <= high:
            raise UnitError(f"'{value}' is not between {low} and {high}")
        return length

    return BeforeValidator(check)


Slice = Annotated[Duration, _bounded(Duration(100_000), Duration(1000 * MS))]
Window = Annotated[Duration, _bounded(Duration(50_000), Duration(1000 * MS))]
Delay = Annotated[Duration, _bounded(Duration(0), Duration(1000 * MS))]
Release = Annotated[Duration, _bounded(Duration(0), Duration(60_000 * MS))]
Kernel = Annotated[Duration, _bounded(Duration(1000), MAX_KERNEL)]
Span = Annotated[Duration, _bounded(Duration(0), Duration(1000 * HOUR))]


class Policies(Section):
    """How the members of each class divide a card."""

    online: Policy = "burst-share"
    offline: Policy = "burst-share"


class Latency(Section):
    """Mean wake-up of the arbiter and of a tenant's thread; each one takes half of that to half
    more.
    """

    arbiter: Delay = Duration(30_000)
    tenant: Delay = Duration(40_000)


class CardTrace(Section):
    """One card, or `count` equal ones: the arbiter's settings for it,
    and what its hardware costs.
    """

    name: Word = "card"
    count: int = Field(default=1, ge=1, le=MAX_CARDS)
    policy: Policies = Policies()
    idle_release: Literal["auto"] | Release = Duration(100 * MS)
    online_delay: Delay = Duration(1 * MS)  # of idle_release: auto
    online_share: OnlineShare = "off"  # the same
    slice: Slice = Duration(2 * MS)
    window: Window = Duration(275_000)
    context_switch: Delay = Duration(100_000)
    timeslice: Slice = Duration(1 * MS)
    queue: int = Field(default=1024, ge=1, le=100_000)
    latency: Latency = Latency()

    def release(self) -> tuple[Duration, Duration]:
        """What the arbiter is told: idle_release, and online_delay or 0."""
        if self.idle_release == "auto":
            return Duration(100 * MS), self.online_delay
        return self.idle_release, Duration(0)

    def share(self) -> int:
        """What the arbiter is told of online_share, in percent; 0: no limit."""
        limits = self.idle_release == "auto" and self.online_share != "off"
        return int(self.online_share.removesuffix("%")) if limits else 0

    def names(self) -> list[str]:
        """The name, or name0, name1, ... where there are several."""
        return [self.name] if self.count == 1 else [f"{self.name}{i}" for i in range(self.count)]


class Requests(Section):
    """Requests of a number of kernels: at a period, or at random with a rate per second."""

    every: Span | None = None
    per_second: Annotated[float, Field(ge=0.001, le=100_000, strict=False)] | None = None
    kernels: int | None = Field(default=None, ge=1, le=100_000_000)
    busy: Kernel | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Requests:
        if (self.every is None) == (self.per_second is None):
            raise ValueError(
                "write either every (one request each 1s, say) or per_second (random arrivals)"
            )
        if (self.kernels is None) == (self.busy is None):
            raise ValueError("write either kernels (how many) or busy (how long all of them take)")
        if self.every is not None and self.every.ns == 0:
            raise ValueError("every must be more than 0s")
        return self


def _list(value: object) -> object:
    return value if isinstance(value, list) else [value]


class TenantTrace(Section):
    """One job on one card, or on each named card: its identity, its load, and its misbehaviour."""

    name: Word
    card: Annotated[list[Word], BeforeValidator(_list)] | None = None
    count: int = Field(default=1, ge=1, le=MAX_TENANTS)
    job_class: JobClass = Field(alias="class")
    share: int = Field(ge=1, le=100)
    processes: int = Field(default=1, ge=1, le=4096)
    isolation: Isolation = "governed"
    kernel: (
        Annotated[list[Kernel], Field(min_length=1, max_length=16), BeforeValidator(_list)] | None
    ) = None
    program: Word | None = None
    load: Literal["endless"] | Requests = "endless"
    pause: Delay = Duration(0)
    start: Span = Duration(0)
    stop: Span | None = None
    halted: list[Annotated[list[Span], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list, max_length=16
    )
    lies: Lie | None = None

    @field_validator("load", mode="before")
    @classmethod
    def _load(cls, value: object) -> object:
        if not isinstance(value, dict) and value != "endless":
            raise ValueError(
                f"'{shown(value)}' is not a load; write endless, or for example {{per_second: 20,"
                " kernels: 50}"
            )
        return value

    @model_validator(mode="after")
    def _work(self) -> TenantTrace:
        if (self.kernel is None) == (self.program is None):
            raise ValueError(
                "write either kernel (a length, or several to draw from) or program (the name of"
                " one under programs)"
            )
        if self.program is not None and self.pause.ns:
            raise ValueError(
                f"pause {self.pause}: the program '{self.program}' has gaps of its own; leave pause"
                " out"
            )
        return self

    @model_validator(mode="after")
    def _times(self) -> TenantTrace:
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop {self.stop} is not after start {self.start}")
        ends = [span.ns for pair in self.halted for span in pair]
        if ends != sorted(ends) or len(set(ends)) != len(ends):
            raise ValueError(
                "halted must be pairs of rising times, for example [[10s, 20s], [30s, 31s]]"
            )
        return self

    def labels(self) -> list[str]:
        """The name, or name0, name1, ... where there are several on a card."""
        return [self.name] if self.count == 1 else [f"{self.name}{i}" for i in range(self.count)]


def kernels_per_request(load: str | Requests, work: Sequence[Stretch]) -> int:
    """Kernels of one request; where its length was given, as many mean kernels as come closest to
    it.
    """
    if not isinstance(load, Requests):
        return 1
    if load.kernels is not None:
        return load.kernels
    assert load.busy is not None
    sum_ns = sum(stretch.kernels * stretch.ns for stretch in work)
    return max(1, round(load.busy.ns * Fraction(sum(s.kernels for s in work), sum_ns)))


class Trace(Section):
    """A whole file."""

    duration: Annotated[Duration, _bounded(Duration(1 * MS), Duration(1000 * HOUR))] = Duration(
        10_000 * MS
    )
    seed: int = Field(default=1, ge=0, le=2**32)
    cards: list[CardTrace] = Field(default_factory=lambda: [CardTrace()], min_length=1)
    programs: list[Program] = Field(default_factory=list, max_length=MAX_PROGRAMS)
    tenants: list[TenantTrace] = Field(min_length=1)

    @model_validator(mode="after")
    def _programs(self) -> Trace:
        names = [program.name for program in self.programs]
        if len(set(names)) != len(names):
            raise ValueError(f"two programs have the name '{_doubled(names)}'")
        for tenant in self.tenants:
            if tenant.program is not None and tenant.program not in names:
                raise ValueError(
                    f"tenant '{tenant.name}' runs the program '{tenant.program}'; there is"
                    f" {names[:8]}"
                )
        return self

    @model_validator(mode="after")
    def _names(self) -> Trace:
        cards = self.card_names()
        if len(cards) > MAX_CARDS:
            raise ValueError(f"{len(cards)} cards are more than {MAX_CARDS}")
        if len(set(cards)) != len(cards):
            raise ValueError(f"two cards have the name '{_doubled(cards)}'")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) != len(names):
            raise ValueError(
                f"two tenants have the name '{_doubled(names)}'; count: 2 makes two alike"
            )
        for tenant in self.tenants:
            for card in tenant.card or []:
                if card not in cards:
                    raise ValueError(
                        f"tenant '{tenant.name}' names the card '{card}'; there is {cards[:8]}"
                    )
            if len(set(tenant.card or [])) != len(tenant.card or []):
                raise ValueError(
                    f"tenant '{tenant.name}' names a card twice; count: 2 makes two alike"
                )
        labels = [label for tenant in self.tenants for label in tenant.labels()]
        if len(set(labels)) != len(labels):
            raise ValueError(
                f"two tenants are called '{_doubled(labels)}', one of them by its count; rename one"
            )
        self._not_too_many()
        return self

    def _not_too_many(self) -> None:
        per_card = dict.fromkeys(self.card_names(), 0)
        for tenant in self.tenants:
            for card in tenant.card or per_card:
                per_card[card] += tenant.count
        name, most = max(per_card.items(), key=lambda item: item[1])
        if most > MAX_TENANTS_OF_A_CARD:
            raise ValueError(
                f"card '{name}' has {most} tenants; it takes at most {MAX_TENANTS_OF_A_CARD}"
            )
        if sum(per_card.values()) > MAX_TENANTS:
            raise ValueError(f"{sum(per_card.values())} tenants are more than {MAX_TENANTS}")

    def work(self, tenant: TenantTrace) -> Sequence[Stretch]:
        """What a tenant launches: its program, or each of its kernels once."""
        if tenant.program is not None:
            return next(p.stretches for p in self.programs if p.name == tenant.program)
        return [Stretch(1, kernel.ns, tenant.pause.ns) for kernel in tenant.kernel or []]

    def card_names(self) -> list[str]:
        """Every card by name, in the order of the file."""
        return [name for card in self.cards for name in card.names()]


def _doubled(names: list[str]) -> str:
    return next(name for name in names if names.count(name) > 1)


_MODELS: dict[str, type[BaseModel]] = {
    "cards": CardTrace,
    "tenants": TenantTrace,
    "programs": Program,
    "policy": Policies,
    "latency": Latency,
    "load": Requests,
}


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Trace
    for step in location[:-1]:
        model = _MODELS.get(str(step), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _sentence(error: Any) -> str:
    # pydantic names the branch of a union on the way; it is no key of the file
    location = tuple(step for step in error["loc"] if isinstance(step, int) or step.isidentifier())
    location = tuple(step for step in location if step != "Requests")
    key = ".".join(str(step) for step in location) or "the trace"
    if error["type"] == "string_type" and isinstance(error["input"], bool):
        return (
            f"{key}: YAML reads on, off, yes and no as truth values; write it in quotes, or another"
            " name"
        )
    return fault_sentence(error, key, _known_keys(location))


def parse_trace(text: str, source: str = "the trace") -> Trace:
    """Trace of a YAML (or JSON) text. Raises TraceError with one sentence per line."""
    try:
        data = yaml.safe_load(text)
        if not isinstance(data, dict):
            raise TraceError(
                f"{source}: the file must hold keys such as duration, cards and tenants"
            )
        return Trace.model_validate(data)
    except ValidationError as error:
        # a load of neither form is an error of each form: one suffices
        items = [item for item in error.errors() if "literal['endless']" not in item["loc"]]
        lines = dict.fromkeys(f"{source}: {_sentence(item)}" for item in items or error.errors())
        raise TraceError("\n".join(lines)) from None
    except RecursionError:
        raise TraceError(f"{source}: brackets are nested too deeply to be a trace") from None
    except yaml.YAMLError as error:
        raise TraceError(f"{source}: this is neither YAML nor JSON: {error}") from None


def load_trace(path: Path) -> Trace:
    """Read a trace. Raises TraceError with sentences, also where the file cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise TraceError(f"{path}: the trace cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: the trace is not UTF-8 text") from None
    if len(raw) > MAX_FILE_BYTES:
        raise TraceError(f"{path}: the trace is larger than {MAX_FILE_BYTES} bytes")
    return parse_trace(text, str(path))


__all__ = [
    "CardTrace",
    "TenantTrace",
    "Trace",
    "TraceError",
    "kernels_per_request",
    "load_trace",
    "parse_trace",
]
