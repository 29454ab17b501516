"""What a decision on memory sees, and what it orders. Immutable values; memory is bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

# resident: its memory is on the card; leaving, returning: an operation moves it; checkpointed: it
# lies in its processes' host memory; unable: it cannot be moved, and its processes are ended
State = Literal["resident", "leaving", "checkpointed", "returning", "unable"]


@dataclass(frozen=True)
class Card:
    """One card. `free` is what the driver would still give."""

    uuid: str
    free: int


@dataclass(frozen=True)
class Hold:
    """A job's memory on one card: its cap, what it holds there now, and what it took away."""

    cap: int
    use: int = 0
    away: int = 0

    @property
    def unused(self) -> int:
        """What the cap still allows."""
        return max(0, self.cap - self.use)

    @property
    def coming(self) -> int:
        """What a returning job has still to take."""
        return max(0, self.away - self.use)


@dataclass(frozen=True)
class Want:
    """Bytes that a job's processes wait for.

    `tried`: the free bytes with which the driver refused again after a retry; -1: none was.
    `asked`: a retry was ordered, and its outcome is not known yet.
    """

    size: int
    tried: int = -1
    asked: bool = False

    @property
    def needs(self) -> int:
        """The free bytes with which another try makes sense."""
        return max(self.size, self.tried + 1)


@dataclass(frozen=True)
class Job:
    """A job that started. `since_ns`: when, so who is younger; `left_ns`: when it left.

    `elsewhere`: the other cards of the node where a job with one card may return. `wanted`: the
    card where root wants it; it returns nowhere else.
    """

    job_id: int
    reserving: bool
    cards: Mapping[str, Hold]
    since_ns: int = 0
    state: State = "resident"
    left_ns: int = 0
    wants: Mapping[str, Want] = field(default_factory=lambda: MappingProxyType({}))
    elsewhere: tuple[str, ...] = ()
    wanted: str = ""

    @property
    def size(self) -> int:
        """The bytes that move when it leaves."""
        return sum(hold.use for hold in self.cards.values())

    def younger(self, other: Job) -> bool:
        """Whether it came later."""
        return (self.since_ns, self.job_id) > (other.since_ns, other.job_id)


@dataclass(frozen=True)
class Claim:
    """A reserving job that has not started: its caps by card, and since when it waits."""

    job_id: int
    caps: Mapping[str, int]
    since_ns: int = 0


@dataclass(frozen=True)
class Leave:
    """The job gives its memory back, for another job."""

    job_id: int
    other: int


@dataclass(frozen=True)
class Return:
    """The job takes its memory again; `to`: on this card, where it was not before."""

    job_id: int
    to: str = ""


@dataclass(frozen=True)
class Retry:
    """Allocations of the job on the card that wait are tried again."""

    job_id: int
    uuid: str


@dataclass(frozen=True)
class Final:
    """They are tried once more; the driver's refusal stands then."""

    job_id: int
    uuid: str


@dataclass(frozen=True)
class Ready:
    """The claim's memory is free, or nobody could give more."""

    job_id: int


Order = Leave | Return | Retry | Final | Ready


@dataclass(frozen=True)
class Settings:
    """`hysteresis_ns`: how long room must last. `slack`: bytes that a job may hold above its cap
    by the driver's count.
    """

    hysteresis_ns: int
    slack: int = 0


@dataclass(frozen=True)
class Room:
    """Since when a job could return; `to` as in Return."""

    since_ns: int
    to: str = ""


@dataclass(frozen=True)
class Decision:
    """The orders, and the room for each job that could return."""

    orders: tuple[Order, ...]
    rooms: Mapping[int, Room]
