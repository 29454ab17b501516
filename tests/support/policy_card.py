"""A card whose inputs the tests set by hand, one decision at a time."""

from __future__ import annotations

from enforcer.wire import abi
from simulator.policy_layout import MS, QpTenant
from simulator.policylib import Policy

SLICE = 2 * MS


class Card:
    """A card whose inputs the test sets by hand."""

    def __init__(self, *tenants: tuple[int, int], policy: int = abi.POLICY_BURST_SHARE) -> None:
        self.lib = Policy()
        self.raw = self.lib.card
        self.raw.idle_release_ns, self.raw.slice_ns = 100 * MS, SLICE
        self.raw.ntenants = len(tenants)
        for cls in self.raw.cls:
            cls.policy = policy
        for i, (job_class, share) in enumerate(tenants):
            t = self.raw.tenant[i]
            t.live, t.job_class, t.share = 1, job_class, share
            t.budget_ns = 20 * MS  # of fixed-share: enough for a first quantum
        self.now = 1000 * MS
        # Online tenants whose threads never launch, and those whose work makes no progress.
        self.doubted: set[int] = set()
        self.hung: set[int] = set()

    def __getitem__(self, i: int) -> QpTenant:
        return self.raw.tenant[i]

    def at(self, later_ns: int) -> None:
        """Decide the given time later."""
        self.now += later_ns
        for i in range(self.raw.ntenants):
            works = self[i].runnable and i not in self.doubted
            online = self[i].job_class == abi.CLASS_ONLINE
            self[i].preempts = int(online and bool(works or i in self.hung))
        self.lib.decide(self.now)
        assert self.raw.wake_ns > self.now

    def follow(self, duration_ns: int) -> None:
        """Time passes and nothing happens: decide whenever the decision asked for it."""
        end = self.now + duration_ns
        while self.raw.wake_ns <= end:
            self.at(self.raw.wake_ns - self.now)
        self.now = end

    def want(self, *who: int) -> None:
        for i in who:
            self[i].runnable = 1

    def open(self) -> list[int]:
        return [i for i in range(self.raw.ntenants) if not self[i].gate & abi.GATE_CLOSED]

    def current(self) -> int:
        (only,) = self.open()
        return only

    def use(self, i: int, after_ns: int = 0) -> None:
        """The tenant starts to use its quantum; the arbiter notices after a while."""
        self.now += after_ns
        self[i].used_from_ns = self.now
        self[i].undrained = 1
        self.at(0)


def two(policy: int = abi.POLICY_BURST_SHARE) -> tuple[Card, int, int]:
    """Two offline tenants that compete: the current one, and the other."""
    card = Card((abi.CLASS_OFFLINE, 50), (abi.CLASS_OFFLINE, 50), policy=policy)
    card.want(0, 1)
    card.at(0)
    first = card.current()
    return card, first, 1 - first
