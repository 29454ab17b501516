"""Time as a port, so that waits and dates can be tested in milliseconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in nanoseconds. `monotonic_ns` never steps;
    `realtime_ns` is for dates in files.
    """

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        ...

    def realtime_ns(self) -> int:
        """CLOCK_REALTIME."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def realtime_ns(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns()


class FakeClock:
    """A clock that only `advance` moves; both clocks advance together."""

    def __init__(
        self, monotonic_ns: int = 10**12, realtime_ns: int = 1_700_000_000 * 10**9
    ) -> None:
        self._monotonic = monotonic_ns
        self._realtime = realtime_ns

    def monotonic_ns(self) -> int:
        """The fake CLOCK_MONOTONIC."""
        return self._monotonic

    def realtime_ns(self) -> int:
        """The fake CLOCK_REALTIME."""
        return self._realtime

    def advance(self, seconds: float) -> None:
        """Move both clocks on."""
        self._monotonic += int(seconds * 10**9)
        self._realtime += int(seconds * 10**9)
