"""What is awaited behind a gate that closed: a launch that passed it just before, and the end of
the work on the card.
"""

from __future__ import annotations

import pytest
from policy_card import Card, two

from enforcer.wire import abi
from simulator.policy_layout import (
    DRAIN_PARTS,
    DRAIN_POLL_NS,
    DRAIN_TIMEOUT_NS,
    MS,
    PAUSE_NS,
    TICK_NS,
)

pytestmark = pytest.mark.native
POLICIES = [abi.POLICY_BURST_SHARE, abi.POLICY_FIXED_SHARE]


def at_work(policy: int = abi.POLICY_BURST_SHARE) -> tuple[Card, int, int]:
    """Two tenants compete; the first uses its quantum."""
    card, first, other = two(policy)
    card.use(first)
    return card, first, other


def leave_with_nothing(card: Card, first: int) -> None:
    """Its last work ends, and so does its quantum a while later: the decision that closes its
    gate.
    """
    card[first].runnable = card[first].undrained = 0
    card.at(0)
    card.now += PAUSE_NS
    card.lib.decide_once(card.now)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_gate_opens_before_a_sample_after_the_closing(policy: int) -> None:
    card, first, other = at_work(policy)
    leave_with_nothing(card, first)
    assert card.open() == [] and card.raw.resample, (
        "a launch may have passed the gate since the last sample"
    )
    card.raw.resample = 0
    card.lib.decide_once(card.now)
    assert card.open() == [other] and not card.raw.resample, "none did, and no time was lost"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_launch_that_passed_the_closing_gate_is_waited_for(policy: int) -> None:
    card, first, other = at_work(policy)
    leave_with_nothing(card, first)
    card.raw.resample, card[first].runnable, card[first].undrained = 0, 1, 1
    for _ in range(5):
        card.lib.decide_once(card.now)
        assert card.open() == [] and not card.raw.resample
        card.now += 1 * MS
    card[first].undrained = 0
    card.at(0)
    assert card.open() == [other]


def test_a_tenant_closed_with_work_needs_no_extra_sample() -> None:
    """The polls for the end of that work find every launch."""
    card, first, _ = at_work()
    while card.open() == [first]:
        card.now = card.raw.wake_ns
        card.lib.decide_once(card.now)
        assert not card.raw.resample


@pytest.mark.parametrize("policy", POLICIES)
def test_the_end_of_a_drain_is_found_with_an_error_of_a_part_of_its_age(policy: int) -> None:
    """So a drain of any length takes few polls. Within it no other gate opens."""
    card, first, other = at_work(policy)
    while card.open() == [first]:
        card.at(card.raw.wake_ns - card.now)
    closed, polls = card.now, 0
    while card.now - closed < 8 * MS:
        age, wait = card.now - closed, card.raw.wake_ns - card.now
        assert wait <= max(DRAIN_POLL_NS, min(age // DRAIN_PARTS, TICK_NS))
        card.at(wait)
        polls += 1
        assert card.open() == []
    assert polls < 40
    card[first].undrained = 0
    card.at(0)
    assert card.open() == [other]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drain_is_seldom_polled_where_a_thread_rings_at_its_end(policy: int) -> None:
    """The polls only cover a thread that is late, or lies."""
    card, first, _ = at_work(policy)
    card[first].at_gate = 1
    while card.open() == [first]:
        card.at(card.raw.wake_ns - card.now)
    for _ in range(3):
        assert card.raw.wake_ns == card.now + TICK_NS
        card.at(TICK_NS)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drain_that_does_not_end_costs_others_a_known_time_each_time(policy: int) -> None:
    card, first, other = at_work(policy)
    while card.open() == [first]:
        card.at(card.raw.wake_ns - card.now)
    closed = card.now
    while card.open() != [other]:
        card.at(card.raw.wake_ns - card.now)
    assert card.now - closed == DRAIN_TIMEOUT_NS
