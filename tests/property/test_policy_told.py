"""Ends of drains that are told: by whom, how much a look is put off for that, and what is charged."""

from __future__ import annotations

import pytest
from policy_card import Card, two

from enforcer import abi
from enforcer.policylib import DRAIN_POLL_NS, LEAD_NS, MS, SOLO_TICK_NS, TELLS, TELLS_MAX, TOLD_LOOK_NS

pytestmark = pytest.mark.native
US = 1000
SHUT = abi.GATE_CLOSED | abi.GATE_WHY_SHARE


def leave(card: Card, i: int) -> None:
    """Its turn ends while it has work on the card."""
    while i in card.open():
        card.at(card.raw.wake_ns - card.now)
    assert card[i].undrained


def end(card: Card, i: int, rang: int, stands: int) -> None:
    """Its work has ended, and who told of it."""
    card[i].undrained, card[i].rang, card[i].stands = 0, rang, stands
    card.at(0)
    card[i].rang = card[i].stands = 0


def turn(card: Card, i: int, rang: int = 1, stands: int = 1) -> None:
    """A whole turn, and the drain behind it."""
    card.use(i)
    leave(card, i)
    card.at(300 * US)
    end(card, i, rang, stands)


def trusted(rang: int = 1, stands: int = 1) -> tuple[Card, int]:
    """A card whose first tenant told of so many ends as it takes, and leaves with work again."""
    card, first, other = two()
    for _ in range(TELLS):
        assert card[first].tells < TELLS
        turn(card, first, rang, stands)
        turn(card, other)
    assert card.open() == [first]
    card.use(first)
    card[first].uneven = 1
    leave(card, first)
    return card, first


@pytest.mark.parametrize(("rang", "stands"), [(1, 0), (0, 1), (1, 1)])
def test_who_told_of_its_last_ends_is_looked_at_as_seldom_as_who_stands_there(rang: int, stands: int) -> None:
    card, _ = trusted(rang, stands)
    for _ in range(3):
        assert card.raw.wake_ns == card.now + TOLD_LOOK_NS
        card.at(TOLD_LOOK_NS)
    assert card.open() == []


def test_who_did_not_tell_is_looked_at_soon() -> None:
    card, first = trusted()
    card[first].tells = TELLS - 1
    card.at(0)
    assert card.raw.wake_ns < card.now + TOLD_LOOK_NS
    card[first].tells, card[first].greedy = TELLS, 0
    card.at(0)
    assert card.raw.wake_ns < card.now + TOLD_LOOK_NS, "who left with nothing more to do has nobody there"


def test_trust_is_halved_by_an_end_that_nobody_told_of() -> None:
    card, first, other = two()
    for _ in range(TELLS_MAX + 3):
        turn(card, first)
        turn(card, other)
    assert card[first].tells == TELLS_MAX
    for left in (8, 4, 2):
        turn(card, first, 0, 0)
        turn(card, other)
        assert card[first].tells == left


@pytest.mark.parametrize("ahead", [1 * MS, 4 * MS, 6 * MS, 90 * MS])
def test_a_look_is_put_off_to_a_foreseen_opening_that_is_near(ahead: int) -> None:
    card, first = trusted()
    card[first].ends_ns = card.now + ahead + LEAD_NS
    card.at(0)
    assert card.raw.wake_ns == card.now + (ahead if ahead <= SOLO_TICK_NS else TOLD_LOOK_NS)


def test_an_end_that_was_told_is_charged_to_the_moment() -> None:
    """Nobody looked before: without the ring half of the time would be charged."""
    for rang, least, most in ((1, 750 * US, 800 * US), (0, 400 * US, 400 * US)):
        card, first, _ = two()
        card.use(first)
        leave(card, first)
        before = card[first].service_ns
        card[first].undrained, card[first].rang = 0, rang
        card.at(800 * US)
        assert least <= card[first].service_ns - before <= most


def test_under_a_limit_ends_are_looked_for_whoever_told_of_them() -> None:
    card, first, _ = two(abi.POLICY_FIXED_SHARE)
    card.use(first)
    card[first].tells, card[first].early_ns = TELLS_MAX, DRAIN_POLL_NS
    leave(card, first)
    card.at(DRAIN_POLL_NS)
    assert card.raw.wake_ns <= card.now + TOLD_LOOK_NS / 5


# ---- what the gate word says of it ----------------------------------------------------------------


def test_the_word_says_that_an_end_is_awaited_until_the_gate_opens_again() -> None:
    """A thread that comes after that end shows no work and rings anyway, so the word need not change again."""
    card, first, other = two()
    card.use(first)
    assert not card[first].gate & abi.GATE_AWAITED
    leave(card, first)
    assert card[first].gate & SHUT == SHUT and card[first].gate & abi.GATE_AWAITED
    assert not card[other].gate & abi.GATE_AWAITED, "it had nothing on the card"
    word = card[first].gate
    card.at(300 * US)
    end(card, first, 1, 1)
    card.use(other)
    assert card.open() == [other] and card[first].gate == word
    turn(card, other)
    assert card.open() == [first] and not card[first].gate & abi.GATE_AWAITED


def test_who_leaves_with_nothing_is_not_awaited() -> None:
    card, first, _ = two()
    card.use(first)
    card[first].wants = card[first].undrained = 0
    while first in card.open():
        card.at(card.raw.wake_ns - card.now)
    assert not card[first].gate & abi.GATE_AWAITED


def test_who_is_closed_for_online_rings_as_it_comes() -> None:
    """Nobody looks for a launch that passed such a closing: the ring is the only word of it, also afterwards."""
    card = Card((abi.CLASS_OFFLINE, 50), (abi.CLASS_OFFLINE, 50), (abi.CLASS_ONLINE, 100))
    card.want(0, 1)
    card.at(0)
    (first,) = set(card.open()) - {2}
    card.use(first)
    leave(card, first)
    assert card[first].gate & abi.GATE_AWAITED
    card.want(2)
    card.at(0)
    assert card[first].gate & abi.GATE_WHY_PREEMPTED and not card[first].gate & abi.GATE_AWAITED
    card[2].wants = 0
    while card[first].gate & abi.GATE_WHY_PREEMPTED:
        card.at(card.raw.wake_ns - card.now)
    assert not card[first].gate & abi.GATE_AWAITED
