"""Stalls on order, while a run lasts: of all cards at once, or of a
launch call of chosen tenants.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers

from bench.harness.node import Rig
from bench.harness.scene import Actor
from simulator.sim import Interval, SimError

STALL_US, STALL_EACH_S, CALL_EACH_S = 50_000, 0.9, 0.25
STALL_NS = STALL_US * 1000
Stretch = tuple[int, int]


@dataclass
class Stalls:
    """Stalls of the cards that were ordered, as stretches of time."""

    stretches: list[Stretch] = field(default_factory=list)

    def meet(self, low: int, high: int) -> bool:
        """Whether any has a moment of [low, high)."""
        return any(begin < high and end > low for begin, end in self.stretches)

    def inside(self, low: int, high: int) -> int:
        """Nanoseconds of [low, high) that they take."""
        return sum(max(0, min(high, end) - max(low, begin)) for begin, end in self.stretches)


def _stall_cards(node: Rig, found: Stalls) -> None:
    began = time.monotonic_ns()
    for card in range(node.cards):
        node.fault(f"stall us={STALL_US} card={card}")
    found.stretches.append((began, time.monotonic_ns() + STALL_NS))


def _stall_call(node: Rig, tenant: Actor) -> None:
    log = f"job{tenant.job_id}.log"
    if (node.directory / log).exists() and (begun := node.logged(log)):
        with contextlib.suppress(SimError):  # it has just ended
            node.fault(f"delay call=cuLaunchKernel us={STALL_US} times=1 pid={begun[0]['pid']}")


@contextmanager
def stalled(node: Rig, kind: str, victims: Sequence[Sequence[Actor]]) -> Iterator[Stalls]:
    """Stalls of this kind again and again while inside; none for "".

    `victims`, of stalled calls: of each group one tenant at a time, in turn; its next launch call
    takes long.
    """
    stop, found = threading.Event(), Stalls()

    def stall() -> None:
        for turn in numbers():
            if stop.wait(STALL_EACH_S if kind == "card" else CALL_EACH_S):
                return
            if kind == "card":
                _stall_cards(node, found)
            else:
                for group in victims:
                    _stall_call(node, group[turn % len(group)])

    thread = threading.Thread(target=stall)
    if kind:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        if kind:
            thread.join()


def held(spans: Sequence[Interval]) -> list[Interval]:
    """The pieces of one card. A stall in which no other kernel ran is time of the kernel that it
    stopped.
    """
    joined: list[Interval] = []
    for span in spans:
        before = joined[-1] if joined else None
        if (
            before
            and not before.last
            and (before.pid, before.ctx, before.seq) == (span.pid, span.ctx, span.seq)
        ):
            joined[-1] = span._replace(t_start=before.t_start)
        else:
            joined.append(span)
    return joined
