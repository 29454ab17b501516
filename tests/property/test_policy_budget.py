"""fixed-share, one decision at a time: budgets, and what is never forgotten."""

from __future__ import annotations

import pytest
from policy_card import Card

from enforcer.wire import abi
from simulator.policy_layout import BUDGET_MAX_NS, DRAIN_POLL_NS, MS, NEVER

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
FIXED = abi.POLICY_FIXED_SHARE


def fixed_alone(share: int = 30) -> Card:
    card = Card((OFFLINE, share), policy=FIXED)
    card.want(0)
    card.at(0)
    card.use(0)
    return card


def run_alone(card: Card, duration_ns: int) -> None:
    """A tenant whose kernels are so short that it drains at once."""
    end = card.now + duration_ns
    while card.now < end:
        card[0].undrained = int(bool(card.open()))
        if card.open() and card[0].gate & abi.GATE_NOTIFY:
            card[0].used_from_ns = card.now
        card.at(min(card.raw.wake_ns, end) - card.now)


def test_fixed_share_closes_an_idle_card() -> None:
    card = fixed_alone()
    run_alone(card, 3000 * MS)
    assert card[0].service_ns == pytest.approx(900 * MS, rel=0.02)
    assert card.open() == [] or card[0].budget_ns > 0


def test_idleness_is_not_charged_when_it_ends() -> None:
    """160 ms without work, then a ring: no tenant is charged for that time. But its launch came a
    moment before the ring was heard.
    """
    for used_from in (True, False):
        card = Card((OFFLINE, 20), (OFFLINE, 20), policy=FIXED)
        card.at(0)
        card.at(3 * MS)
        card.now += 160 * MS
        for i in (0, 1):
            card[i].runnable, card[i].undrained = 1, int(i in card.open())
            card[i].used_from_ns = card.now if used_from else 0
        card.at(0)
        charged = [card[i].service_ns for i in (0, 1)]
        assert max(charged) <= DRAIN_POLL_NS, "a ring is heard that late at most"


def test_fixed_share_counts_on_under_preemption_recovery_and_saves_little() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 30), policy=FIXED)
    card.raw.recovery_until_ns = card.now + 500 * MS
    card.want(1)
    card.at(0)
    assert card[1].gate & abi.GATE_WHY_RECOVERY
    card.want(0)
    card.at(100 * MS)
    assert card[1].gate & abi.GATE_WHY_PREEMPTED
    card.at(3000 * MS)
    card[0].runnable = 0
    card.at(1 * MS)
    card.at(100 * MS)
    assert 1 in card.open() and 0 < card[1].budget_ns <= BUDGET_MAX_NS


def test_overuse_is_never_forgotten_by_a_budget() -> None:
    """A kernel of 3 s at 10 %: closed until 30 s have passed since its beginning."""
    card = fixed_alone(10)
    began = card.now
    for _ in range(3000):
        card.at(1 * MS)
    card[0].undrained = 0
    card.at(0)
    while not card.open():
        assert card.raw.wake_ns != NEVER
        card.at(card.raw.wake_ns - card.now)
    assert (card.now - began) / 1e9 == pytest.approx(30, abs=0.3)


def test_a_change_of_policy_starts_with_an_empty_record() -> None:
    card = fixed_alone()
    run_alone(card, 500 * MS)
    card.raw.cls[1].policy = abi.POLICY_BURST_SHARE
    card.at(1 * MS)
    assert card.open() == [0] and not card[0].out_of_budget
    card.at(900 * MS)
    card.raw.cls[1].policy = FIXED
    card.at(1 * MS)
    assert card.open() == [0]


def test_a_full_bucket_breaks_the_limit_of_no_second() -> None:
    """50 ms were saved up: they are spent only as far as the use of the last second leaves room."""
    card = fixed_alone(50)
    card[0].runnable = card[0].undrained = 0
    card.at(card.raw.wake_ns - card.now)
    card.at(3000 * MS)
    card.want(0)
    card.use(0)
    before, used = card[0].service_ns, [card[0].service_ns]
    for _ in range(400):
        run_alone(card, 10 * MS)
        used.append(card[0].service_ns)
    assert max(b - a for a, b in zip(used, used[100:], strict=False)) <= 500 * MS
    assert 0.98 * 2000 * MS <= used[-1] - before <= 2000 * MS


def test_who_waits_for_its_budget_keeps_its_credit() -> None:
    """Spent tenants that want the card are entitled to their part of what others use meanwhile."""
    card = Card((OFFLINE, 20), (OFFLINE, 20), policy=FIXED)
    card.want(0, 1)
    card.at(0)
    first = card.current()
    other = 1 - first
    card[other].out_of_budget, card[other].budget_ns = 1, -50 * MS
    card.use(first)
    for _ in range(4):
        card.at(1 * MS)
    assert card[other].out_of_budget and card[other].deficit_ns > MS
    assert card[first].deficit_ns + card[other].deficit_ns == pytest.approx(0, abs=10)


def test_the_card_does_not_stand_still_while_all_budgets_fill() -> None:
    """Two waiting tenants both lack the tokens of a quantum: the first with a slice of them
    begins.
    """
    card = Card((OFFLINE, 50), (OFFLINE, 50), policy=FIXED)
    card.want(0, 1)
    card.at(0)
    for i in (0, 1):
        card[i].out_of_budget, card[i].budget_ns = 1, -(1 + i) * MS
    waited = 0
    card.at(0)
    while not card.open():
        waited += card.raw.wake_ns - card.now
        card.at(card.raw.wake_ns - card.now)
    assert card.open() == [0]
    assert waited == pytest.approx(6 * MS, abs=0.2 * MS)
