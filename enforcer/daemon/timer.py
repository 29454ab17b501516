"""Timers of the daemon's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Timer:
    """Calls `action` every `every_ns` while it is `wanted`; a late call is not repeated.

    `early` returns 0 to 1 for each call and shortens the interval by up to half, so jobs cannot
    predict the next sample. No interval gets longer: NVML averages over about a second. Without
    `early` a timer is due at whole multiples, so all timers of one period wake together.
    """

    every_ns: int
    action: Callable[[], object]
    due_ns: int = 0
    wanted: Callable[[], bool] = lambda: True
    early: Callable[[], float] | None = None

    def next(self, now_ns: int) -> None:
        """Set the next time after a call at `now_ns`."""
        if self.early is not None:
            self.due_ns = now_ns + self.every_ns - int(self.every_ns * self.early() / 2)
        else:
            self.due_ns = (now_ns // self.every_ns + 1) * self.every_ns
