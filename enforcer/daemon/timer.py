"""Timers of the daemon's loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LEAST_PART = 50  # the shortest interval of a timer with `chance` is 1/50 of `every_ns`


def memoryless(every_ns: int, chance: float) -> int:
    """An interval of which a job that saw the last call learns nothing about the next one.

    Exponential with half of `every_ns` as its mean, and never longer than that: NVML averages over
    about a second. `chance` is from 0 to 1.
    """
    drawn = -math.log(1 - min(chance, 1 - 1e-12)) * every_ns / 2
    return max(every_ns // LEAST_PART, min(every_ns, int(drawn)))


@dataclass
class Timer:
    """Calls `action` every `every_ns` while it is `wanted`; a late call is not repeated.

    With `chance` (0 to 1, drawn for each call) the intervals are `memoryless`. Without it a timer
    is due at whole multiples, so all timers of one period wake together.
    """

    every_ns: int
    action: Callable[[], object]
    due_ns: int = 0
    wanted: Callable[[], bool] = lambda: True
    chance: Callable[[], float] | None = None

    def next(self, now_ns: int) -> None:
        """Set the next time after a call at `now_ns`."""
        if self.chance is not None:
            self.due_ns = now_ns + memoryless(self.every_ns, self.chance())
        else:
            self.due_ns = (now_ns // self.every_ns + 1) * self.every_ns
