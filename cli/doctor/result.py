"""The outcome of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]
Group = Literal["host", "controller", "node", "login", "probe"]
# slurmctld drains a node whose slurmd still counts by the old files when it asks it.
RESTART_ALL = "stop every slurmd, restart slurmctld, start every slurmd"


@dataclass(frozen=True)
class Check:
    """One check: `text` is the state, `todo` the remedy, empty if none is needed.

    `group`: the host's role that needs it.
    """

    name: str
    status: Status
    text: str
    todo: str = ""
    group: Group = "host"

    def as_dict(self) -> dict[str, str]:
        """For --json."""
        return asdict(self)
