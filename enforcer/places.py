"""Who gets a place among the connections to a socket that every user may open.

A user with a range of uids appears as many users. So all uids that qgpud does not know share one
small pool, and take no place from root or from users whom it knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

MAX_CLIENTS = 128  # open connections: each costs a descriptor
MAX_PER_USER = 16  # open connections of one user
ROOT_PLACES = 16  # places kept for root, so that an administrator can always ask
MAX_UNKNOWN = 32  # open connections of all unknown uids
MAX_PER_UNKNOWN_UID = 8  # open connections of one such uid
TOO_MANY_OPEN = (
    "qgpud took no question, as too many connections of users are open; try again in a few seconds"
)


class Holder(Protocol):
    """An open connection."""

    @property
    def uid(self) -> int:
        """The peer's."""
        ...

    @property
    def known(self) -> bool:
        """Whether qgpud knows its user."""
        ...


H = TypeVar("H", bound=Holder)


def make_room(
    uid: int, known: bool, is_root: Callable[[int], bool], holders: Iterable[H]
) -> tuple[str | None, H | None]:
    """Why the peer gets no place, or else the connection that goes for it, if one must.

    `holders`: the oldest first. Unknown uids replace the oldest of their pool: in a flood a client
    that asks at once is still answered. A full table drops the oldest of the user with most.
    """
    held = list(holders)
    mine = sum(holder.uid == uid for holder in held)
    most = MAX_PER_USER if known else MAX_PER_UNKNOWN_UID
    if mine >= most:
        return (
            f"{mine} connections of uid {uid} to qgpud are open, and at most {most} may be; try"
            " again later"
        ), None
    if not known:
        pool = [holder for holder in held if not holder.known]
        return None, pool[0] if len(pool) >= MAX_UNKNOWN else None
    users = [holder for holder in held if holder.known and not is_root(holder.uid)]
    if is_root(uid) or len(users) < MAX_CLIENTS - ROOT_PLACES - MAX_UNKNOWN:
        return None, None
    largest, number = Counter(holder.uid for holder in users).most_common(1)[0]
    if number <= mine + 1:
        return TOO_MANY_OPEN, None
    return None, next(holder for holder in users if holder.uid == largest)
