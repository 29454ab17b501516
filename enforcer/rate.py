"""Limits answers and time per user, in a daemon that serves all users."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_UIDS = 4096  # uids with a record, so that memory is bounded


class Rate:
    """At most `per_second` answers to one uid, after a burst of as many; work counts as answers."""

    def __init__(
        self,
        per_second: float,
        now: Callable[[], float] = time.monotonic,
        per_second_of_work: float = 0,
    ) -> None:
        self._per_second = per_second
        self._per_work = per_second_of_work
        self._now = now
        self._left: dict[int, tuple[float, float]] = {}

    def allows(self, uid: int) -> bool:
        """Whether this answer is within the rate; counts it."""
        now = self._now()
        left, then = self._left.get(uid, (self._per_second, now))
        left = min(self._per_second, left + (now - then) * self._per_second)
        if len(self._left) >= MAX_UIDS and uid not in self._left:
            self._forget(now)
        self._left[uid] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def worked(self, uid: int, seconds: float) -> None:
        """Charge the time of an answer to this uid, since other users waited for it."""
        left, then = self._left.get(uid, (self._per_second, self._now()))
        self._left[uid] = (left - seconds * self._per_work, then)

    def _forget(self, now: float) -> None:
        """Drop users with a full account: they equal unknown ones."""
        full = {
            uid: entry
            for uid, entry in self._left.items()
            if entry[0] + (now - entry[1]) * self._per_second < self._per_second
        }
        self._left = full if len(full) < MAX_UIDS else {}
