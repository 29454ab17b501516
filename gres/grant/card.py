"""One card of a grant, and the checks that all parts of a grant share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]{1,43}")
# a card from which the job was not moved
HERE: dict[str, Any] = {"home": "", "home_minor": -1, "moved_from": "", "moved_ns": 0}


class GrantError(ValueError):
    """A grant or its file is unusable; the text is a sentence with the job or the file."""


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """GrantError unless it is a whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise GrantError(f"{name} is {value!r}, but must be a whole number from {low} to {high}")


def check_text(name: str, value: object, limit: int) -> None:
    """GrantError unless it is text without NUL of at most `limit` bytes."""
    if not isinstance(value, str) or "\0" in value or len(value.encode(errors="replace")) > limit:
        raise GrantError(f"{name} must be text of at most {limit} bytes")


def _check_uuid(name: str, value: object) -> None:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise GrantError(
            f"{name} is {value!r}, but must look like GPU-... or MIG-... in at most 47 characters"
        )


@dataclass(frozen=True)
class GrantCard:
    """One card of a grant. `mem_cap` and `mem_total` are bytes, `share` is percent of its compute.

    `governed`: False if isolation was none at the start of the job: no gate, and `mem_cap` is the
    card. `home` and `home_minor`: UUID and minor of the card that Slurm booked, if the job was
    moved from that card to this one; all other fields are of this one. Else "" and -1.
    `moved_from` and `moved_ns`: the card before the last move, and when it was (CLOCK_REALTIME).
    """

    uuid: str
    minor: int
    index: int
    share: int
    mem_cap: int
    mem_total: int
    governed: bool = True
    home: str = ""
    home_minor: int = -1
    moved_from: str = ""
    moved_ns: int = 0

    def __post_init__(self) -> None:
        _check_uuid("uuid", self.uuid)
        check_integer("minor", self.minor, 0, 2**20 - 1)
        check_integer("index", self.index, 0, 1023)
        check_integer("share", self.share, 1, 100)
        check_integer("mem_total", self.mem_total, 1, 2**63 - 1)
        check_integer("mem_cap", self.mem_cap, 1, self.mem_total)
        if not isinstance(self.governed, bool):
            raise GrantError(f"governed is {self.governed!r}, but must be true or false")
        self._check_home()

    def _check_home(self) -> None:
        check_integer("moved_ns", self.moved_ns, 0, 2**63 - 1)
        if self.moved_from:
            _check_uuid("moved_from", self.moved_from)
        if (not self.moved_from) != (not self.moved_ns):
            raise GrantError("moved_from and moved_ns must be given together, or neither")
        if self.home == "":
            check_integer("home_minor of a card that was not moved", self.home_minor, -1, -1)
            return
        _check_uuid("home", self.home)
        check_integer("home_minor", self.home_minor, 0, 2**20 - 1)

    @property
    def name(self) -> str:
        """The UUID by which the job's processes name the card, wherever the job was moved."""
        return self.home or self.uuid

    def to_dict(self) -> dict[str, Any]:
        """For JSON. `home` is there only where the job was moved: others stay what older versions
        read.
        """
        body = asdict(self)
        if not self.home and not self.moved_ns:
            for key in HERE:
                del body[key]
        return body


def check_cards(job_id: int, cards: Sequence[GrantCard], most: int) -> None:
    """GrantError unless each card is named once, be it as the present one or as a home."""
    uuids = [card.uuid for card in cards]
    if len(cards) > most or len(set(uuids)) != len(uuids):
        raise GrantError(f"the grant of job {job_id} must name at most {most} cards, each once")
    named = Counter([*uuids, *(card.home for card in cards if card.home)])
    twice = [uuid for uuid, times in named.items() if times > 1]
    if twice:
        raise GrantError(
            f"the grant of job {job_id} names {twice[0]} as the home of a card and once more; no"
            " card is the home of two, or the home of one and the place of another"
        )
