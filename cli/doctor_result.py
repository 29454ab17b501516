"""The outcome of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """`text` says what is, `todo` what to do about it (empty where nothing needs to be done)."""

    name: str
    status: Status
    text: str
    todo: str = ""

    def as_dict(self) -> dict[str, str]:
        """For --json."""
        return asdict(self)
