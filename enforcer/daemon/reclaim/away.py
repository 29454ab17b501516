"""One job whose memory is away, on its way, or cannot be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from enforcer.daemon.reclaim.mover import Operation
from enforcer.reclaim.model import State
from gres.grant.store import Grant


@dataclass
class Away:
    """`left_at` is CLOCK_REALTIME. `sizes`: what each process took away, by card; of a job that
    an earlier qgpud moved only the sums are known, below pid 0.

    `examine`: it is to be found out where its processes are, since qgpud was restarted.
    `doubted`: the same, since the driver counts bytes on a card; `asks`: how often the answer was
    that all are away. `residue`: the bytes that it counts all the same. `restored`: how often the
    job took its memory back by itself.

    `came_from`: the card that its memory left, where it returns to another one; `there`: processes
    that have their memory on the new card already. `stays`: another card did not take it, so it
    returns to this one. `wanted`: the card where root wants it, until `wanted_ns`.
    """

    grant: Grant
    state: State
    left_at: int
    other: int = 0
    pids: dict[int, int | None] = field(default_factory=dict)  # and when each started
    sizes: dict[int, dict[str, int]] = field(default_factory=dict)
    operation: Operation | None = None
    examine: bool = False
    recorded: bool = True  # the ledger has a row of it
    # while `examine`: when another helper is not waited for any more; while `doubted`: the next ask
    until_ns: int = 0
    tries: int = 0
    doubted: bool = False
    asks: int = 0
    residue: int = 0
    restored: int = 0
    came_from: str = ""
    relisted: bool = False  # processes that began meanwhile were made to leave as well
    there: set[int] = field(default_factory=set)
    stays: bool = False
    wanted: str = ""
    wanted_ns: int = 0  # CLOCK_MONOTONIC

    def taken(self, uuid: str) -> int:
        """The bytes of the card that it took away."""
        return sum(held.get(uuid, 0) for held in self.sizes.values())

    @property
    def size(self) -> int:
        """All bytes that it took away."""
        return sum(sum(held.values()) for held in self.sizes.values())

    def prune(self, began: Callable[[int], int | None]) -> bool:
        """Forget processes that ended; whether any is left. `began`: when a process started."""
        self.pids = {pid: at for pid, at in self.pids.items() if began(pid) == at is not None}
        self.sizes = {pid: held for pid, held in self.sizes.items() if pid == 0 or pid in self.pids}
        if not self.pids:
            self.sizes = {}
        return bool(self.pids)
