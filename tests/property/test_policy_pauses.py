"""Pauses of a current tenant, and the time that it gives away: one decision at a time."""

from __future__ import annotations

import pytest
from policy_card import Card, two

from enforcer.wire import abi
from simulator.policy_layout import DRAIN_POLL_NS, GAP_NS, MS, PAUSE_NS, TICK_NS

pytestmark = pytest.mark.native
US = 1000


def until_open(card: Card, other: int) -> int:
    """How much later the gate of the other one opens."""
    began = card.now
    while other not in card.open():
        assert card.now <= began + 10 * MS, "it kept the card"
        card.at(max(1, card.raw.wake_ns - card.now))
    return card.now - began


def test_a_current_tenant_seen_without_work_gives_its_quantum_away() -> None:
    card, first, other = two()
    card.use(first)
    card.at(500 * US)
    card[first].runnable = card[first].undrained = 0
    card.at(0)
    assert PAUSE_NS <= until_open(card, other) <= PAUSE_NS + DRAIN_POLL_NS


def test_one_that_goes_on_in_time_keeps_it() -> None:
    """A gap between two kernels is no pause, even if a sample falls into it."""
    card, first, _ = two()
    card.use(first)
    card.at(500 * US)
    card[first].runnable = card[first].undrained = 0
    card.at(0)
    card[first].runnable = card[first].undrained = 1
    card.at(PAUSE_NS)
    assert card.open() == [first]


def test_work_on_the_card_and_threads_at_the_gate_are_no_pause() -> None:
    card, first, _ = two()
    card.use(first)
    card.at(1 * MS)
    assert card.raw.wake_ns >= card.now + TICK_NS, "no more samples than before while it works on"
    card.at(900 * US)
    assert card.open() == [first]


def test_credit_outlives_a_gap_between_launches_and_no_more() -> None:
    card, first, other = two()
    card.use(first)
    card.at(1 * MS)
    assert card[other].deficit_ns > 0
    card[other].runnable = 0
    card.at(0)
    card.at(GAP_NS - 1)
    assert card[other].deficit_ns > 0, "its thread may only be late"
    card.at(1)
    assert card[other].deficit_ns == 0, "nothing is saved up for later"


@pytest.mark.parametrize("reported", [True, False])
def test_a_tenant_alone_under_a_limit_pays_until_its_end_or_the_sample(reported: bool) -> None:
    """The end that its program reported, or else all of the interval: nothing hides in it."""
    card = Card((abi.CLASS_OFFLINE, 30), policy=abi.POLICY_FIXED_SHARE)
    card[0].budget_ns = 50 * MS
    card.want(0)
    card.at(0)
    card.use(0)
    before = card[0].service_ns
    card[0].runnable = card[0].undrained = 0
    card[0].reported_end_ns = card.now + 200 * US if reported else 0
    card.at(1 * MS)
    assert card[0].service_ns - before == (200 * US if reported else 1 * MS)
