"""Limits answers and time per user, in a daemon that serves all users."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_UIDS = 4096  # uids with a record, so that memory is bounded


def may_hold(mine: int, held: int, most: int) -> bool:
    """Whether a user with `mine` of the `held` places of a table with `most` may take one more.

    Nobody may hold more than are free, so the next user finds a place. The arbiter's ar_may_hold()
    is the same.
    """
    return held < most and mine < most - held


class Rate:
    """At most `per_second` answers to one uid, after a burst of as many, or of `burst`; work counts
    as answers.
    """

    def __init__(
        self,
        per_second: float,
        now: Callable[[], float] = time.monotonic,
        per_second_of_work: float = 0,
        burst: float | None = None,
    ) -> None:
        self._per_second = per_second
        self._burst = per_second if burst is None else burst
        self._per_work = per_second_of_work
        self._now = now
        self._left: dict[int, tuple[float, float]] = {}

    def allows(self, uid: int) -> bool:
        """Whether this answer is within the rate; counts it."""
        now = self._now()
        left, then = self._left.get(uid, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._per_second)
        if len(self._left) >= MAX_UIDS and uid not in self._left:
            self._forget(now)
        self._left[uid] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def worked(self, uid: int, seconds: float) -> None:
        """Charge the time of an answer to this uid, since other users waited for it."""
        left, then = self._left.get(uid, (self._burst, self._now()))
        self._left[uid] = (left - seconds * self._per_work, then)

    def _forget(self, now: float) -> None:
        """Drop users with a full account: they equal unknown ones."""
        full = {
            uid: entry
            for uid, entry in self._left.items()
            if entry[0] + (now - entry[1]) * self._per_second < self._burst
        }
        self._left = full if len(full) < MAX_UIDS else {}
