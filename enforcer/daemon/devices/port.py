"""What qgpud asks of the device cgroups of jobs, and a fake for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gres.config.node import CardSpec
from gres.grant.identity import IdentityError, device_number


class DevicesError(Exception):
    """The device access of a job could not be changed; the text is a sentence."""


class Device(NamedTuple):
    """The number of a character device."""

    major: int
    minor: int


@dataclass(frozen=True)
class Rules:
    """What a job may open, of the devices named here. All others are left to Slurm's rules."""

    allow: frozenset[Device]
    deny: frozenset[Device]

    @classmethod
    def of(cls, allow: Iterable[Device], deny: Iterable[Device]) -> Rules:
        """A device in both is allowed: MIG instances have the file of their card in common."""
        allowed = frozenset(allow)
        return cls(allowed, frozenset(deny) - allowed)


def devices_of(card: CardSpec) -> frozenset[Device]:
    """The devices of a card's files, as the files are now. Raises DevicesError."""
    try:
        return frozenset(Device(*device_number(path)) for path in card.paths)
    except IdentityError as error:
        raise DevicesError(str(error)) from None


class Devices(Protocol):
    """The device access of jobs."""

    def fault(self) -> str:
        """Why this qgpud can change that of no job; empty if nothing is known against it."""

    def refusal(self, job_id: int, pids: Iterable[int]) -> str:
        """Why the access of this job with these processes cannot be changed; empty if it can."""

    def apply(self, job_id: int, allow: frozenset[Device], deny: frozenset[Device]) -> bool:
        """Make all cgroups of the job allow the devices of `allow` and refuse those of `deny`.

        Together they name all cards of the node: a card in neither keeps Slurm's rule, so the
        booked one stays open. A device in both is allowed. True if it is known that something was
        changed. A job without cgroups: False. Raises DevicesError.
        """

    def forget(self, job_id: int) -> None:
        """The job ended."""


@dataclass
class FakeDevices:
    """Holds what was applied. `why`: what `refusal` and `apply` fail with; empty: they do not."""

    why: str = ""
    rules: dict[int, Rules] = field(default_factory=dict)

    def fault(self) -> str:
        """As the test says."""
        return self.why

    def refusal(self, job_id: int, pids: Iterable[int]) -> str:
        """As the test says."""
        return self.why

    def apply(self, job_id: int, allow: frozenset[Device], deny: frozenset[Device]) -> bool:
        """Note the rules. Raises DevicesError if the test says so."""
        if self.why:
            raise DevicesError(self.why)
        rules, before = Rules.of(allow, deny), self.rules.get(job_id)
        self.rules[job_id] = rules
        return rules != before

    def forget(self, job_id: int) -> None:
        """Forget the rules."""
        self.rules.pop(job_id, None)
