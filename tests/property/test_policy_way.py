"""Quanta, lent pauses or all gates open: which way a class takes, by what each member launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_card import Card

from enforcer.wire import abi
from simulator.policy_layout import (
    DEFICIT_MAX_NS,
    MS,
    WAY_NS,
    WAY_REST_LEAST_NS,
    WAY_REST_NS,
)

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
QUANTA, LEND, OPEN = 0, 1, 2
FIXED, BEST, BURST = abi.POLICY_FIXED_SHARE, abi.POLICY_BEST_EFFORT, abi.POLICY_BURST_SHARE
# launches per millisecond of each tenant, from the way and the tenants whose gates are open
Speeds = Callable[[int, Sequence[int]], Sequence[float]]


class Shared(Card):
    """A card whose tenants always have work, and pause each second millisecond."""

    def __init__(self, speeds: Speeds, *tenants: tuple[int, int], policy: int = BURST) -> None:
        super().__init__(*tenants, policy=policy)
        self.speeds = speeds
        self.made = [0.0] * len(tenants)
        self.ways: set[int] = set()
        self.idle: set[int] = set()
        self.at(0)

    @property
    def way(self) -> int:
        return int(self.raw.cls[1].way)

    def run(self, duration_ns: int) -> None:
        """Time passes; each open gate lets launches through."""
        for step in range(duration_ns // MS):
            speeds = self.speeds(self.way, self.open())
            for i, speed in zip(range(len(self.made)), speeds, strict=False):
                opens = not self[i].gate & abi.GATE_CLOSED
                self.made[i] += speed if opens else 0
                self[i].launches = int(self.made[i])
                self[i].runnable = int(i not in self.idle)
                self[i].undrained = int(opens and step % 2 and i not in self.idle)
            self.at(MS)
            self.ways.add(self.way)

    def settled(self) -> int:
        """The way that it takes after the first comparison."""
        self.run(6 * WAY_NS)
        return self.way


def equal(alone: float, together: float) -> Speeds:
    """All are as fast; slower or not while several gates are open."""
    return lambda way, who: [alone if len(who) <= 1 else together] * 4


PAIR = ((OFFLINE, 50), (OFFLINE, 50))


@pytest.mark.parametrize("policy", [BEST, BURST])
def test_all_gates_open_where_each_keeps_its_speed(policy: int) -> None:
    card = Shared(equal(2, 2), *PAIR, policy=policy)
    assert card.settled() == OPEN
    assert len(card.open()) == 2
    assert card.ways == {QUANTA, LEND, OPEN}, "each was tried"


def test_quanta_stay_where_a_change_of_context_costs_more_than_a_pause() -> None:
    card = Shared(equal(20, 6), *PAIR)
    assert card.settled() == QUANTA
    assert OPEN in card.ways, "it was tried"


def test_nobody_loses_for_the_gain_of_others() -> None:
    """One of weight 80 has four fifths of the card; at open gates it would have half of it."""
    card = Shared(lambda way, who: [2, 2] if len(who) == 1 else [1.2, 2], *((2, 80), (2, 20)))
    assert card.settled() != OPEN
    assert OPEN in card.ways


def test_pauses_are_lent_where_that_is_better_than_quanta_and_open_gates() -> None:
    card = Shared(
        lambda way, who: [3, 3] if way == LEND else [2, 2] if len(who) == 1 else [1, 1], *PAIR
    )
    assert card.settled() == LEND
    assert len(card.open()) <= 1


def test_a_class_without_pauses_tries_nothing() -> None:
    card = Shared(equal(2, 2), *PAIR)
    for _ in range(5000):
        for i in range(2):
            card[i].undrained = int(not card[i].gate & abi.GATE_CLOSED)
            card[i].runnable = 1
        card.at(MS)
        assert card.way == QUANTA


@pytest.mark.parametrize("policy, sliced", [(FIXED, 0), (BURST, 1)])
def test_limited_and_sliced_classes_keep_their_way(policy: int, sliced: int) -> None:
    card = Shared(equal(2, 2), *PAIR, policy=policy)
    card.raw.cls[1].sliced = sliced
    card.run(3000 * MS)
    assert card.ways == {QUANTA}


def test_beside_online_one_gate_is_open_at_a_time() -> None:
    card = Shared(equal(2, 2), *PAIR, (ONLINE, 20))
    for _ in range(300):
        for i in range(2):
            card.made[i] += 2 * (not card[i].gate & abi.GATE_CLOSED)
            card[i].launches, card[i].runnable = int(card.made[i]), 1
        card.at(10 * MS)
        assert card.way != OPEN
        assert sum(i < 2 for i in card.open()) <= 1


def test_a_newcomer_meets_quanta_at_once() -> None:
    card = Shared(equal(2, 2), *PAIR, (OFFLINE, 50))
    card[2].live = 0
    assert card.settled() == OPEN
    card[2].live = card[2].runnable = 1
    card.at(MS)
    assert card.way == QUANTA


def test_who_hogs_the_card_after_the_trial_ends_open_gates() -> None:
    speeds = [[2.0, 2.0]]
    card = Shared(lambda way, who: speeds[0], *PAIR)
    assert card.settled() == OPEN
    speeds[0] = [0.8, 2.0]  # half of the card is worth 1 to the first one
    card.run(2 * WAY_NS)
    assert card.way != OPEN
    card.run(WAY_REST_LEAST_NS)
    assert card.way != OPEN, "and not again for a while"


def test_who_wants_less_than_before_does_not_end_them() -> None:
    speeds = [[2.0, 2.0]]
    card = Shared(lambda way, who: speeds[0], *PAIR)
    assert card.settled() == OPEN
    for _ in range(3 * WAY_NS // MS):
        card[0].runnable = card[0].undrained = 0
        card.made[1] += 2
        card[1].launches, card[1].runnable = int(card.made[1]), 1
        card.at(MS)
    assert card.way == OPEN


def test_false_counts_do_not_open_the_gates_where_another_one_loses() -> None:
    """It claims a million launches per millisecond at open gates; the other one has half."""
    card = Shared(lambda way, who: [2, 2] if len(who) == 1 else [1e6, 0.4], *PAIR)
    assert card.settled() != OPEN


def test_comparisons_become_rare() -> None:
    card = Shared(equal(2, 2), *PAIR)
    tried = []
    for _ in range(60):
        card.run(1000 * MS)
        tried.append(bool(card.raw.cls[1].trial) or card.way != OPEN)
    assert card.raw.cls[1].rest_ns == WAY_REST_NS
    assert sum(tried) <= 8


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 2**48), min_size=8, max_size=60),
    st.lists(st.integers(1, 100), min_size=2, max_size=4),
)
def test_any_counts_leave_the_state_in_bounds(counts: list[int], shares: list[int]) -> None:
    card = Card(*((OFFLINE, share) for share in shares))
    for step, count in enumerate(counts):
        for i in range(len(shares)):
            card[i].launches = count * (i + step) % 2**48
            card[i].runnable = 1
            card[i].undrained = step % 2
        card.at(37 * MS)
        assert all(abs(card[i].deficit_ns) <= DEFICIT_MAX_NS for i in range(len(shares)))
        assert card.open() or card.raw.cls[1].draining >= 0


def test_who_was_idle_in_the_trial_is_not_hogged_when_it_begins() -> None:
    """A notebook of a large share beside two batch jobs."""
    speeds = [[2.0, 2.0, 0.0]]
    card = Shared(lambda way, who: speeds[0], *PAIR, (OFFLINE, 80))
    card.idle.add(2)
    assert card.settled() == OPEN
    speeds[0] = [2.0, 2.0, 0.1]
    card.idle.clear()
    card.run(2 * WAY_NS)
    assert card.way != OPEN


def test_open_gates_are_not_kept_beside_long_kernels() -> None:
    """A member of one launch in 50 ms could not show that it loses."""
    card = Shared(lambda way, who: [0.02, 2.0] if len(who) == 1 else [0.005, 2.0], *PAIR)
    for _ in range(40):
        card.run(100 * MS)
        assert not (card.way == OPEN and not card.raw.cls[1].trial)


def test_online_services_keep_one_gate_open_at_a_time() -> None:
    """A service at a fixed rate launches the same in any way, but answers later at open gates."""
    card = Card((ONLINE, 50), (ONLINE, 50))
    made = [0, 0]
    for step in range(3000):
        for i in range(2):
            made[i] += 2 * (not card[i].gate & abi.GATE_CLOSED)
            card[i].launches, card[i].runnable, card[i].undrained = made[i], 1, step % 2
        card.at(MS)
        assert card.raw.cls[0].way != OPEN


def test_who_comes_and_goes_gets_no_trial_each_time() -> None:
    """Open gates were left because one hogged the card: a new member does not try them at once."""
    speeds = [[2.0, 2.0, 2.0]]
    card = Shared(lambda way, who: speeds[0], *PAIR, (OFFLINE, 50))
    card[2].live = 0
    assert card.settled() == OPEN
    speeds[0] = [0.8, 2.0, 2.0]
    card.run(2 * WAY_NS)
    assert card.way != OPEN
    speeds[0] = [2.0, 2.0, 2.0]
    for _ in range(3):
        card[2].live ^= 1
        card.ways.clear()
        card.run(4 * WAY_NS)
        assert OPEN not in card.ways
