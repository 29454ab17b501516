"""The next gate opens just before the predicted end of a drain, and no tenant pays for the time
of another.
"""

from __future__ import annotations

import random

import pytest
from policy_card import SLICE, Card

from enforcer.wire import abi
from simulator.policy_layout import LEAD_NS, MISSES_MAX, MS, NEVER, OVERLAP_NS

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE


def leaving(
    *others: tuple[int, int], policy: int = abi.POLICY_BURST_SHARE
) -> tuple[Card, int, int]:
    """Two offline tenants always at work, and others; the first one's quantum has just ended,
    its work has not.
    """
    card = Card((OFFLINE, 50), (OFFLINE, 50), *others, policy=policy)
    card.want(0, 1)
    card.at(0)
    first = card.current()
    card.use(first)
    card[1 - first].backlogged = 0
    card.at(SLICE)
    assert first not in card.open()
    return card, first, 1 - first


def predict(card: Card, who: int, ahead_ns: int) -> None:
    card[who].predicted_end_ns = card.now + ahead_ns
    card.at(1000)


def test_the_next_gate_opens_shortly_before_the_foreseen_end() -> None:
    card, first, other = leaving()
    predict(card, first, 5 * MS)
    assert card.open() == []
    while not card.open():
        assert card.raw.wake_ns != NEVER
        card.at(card.raw.wake_ns - card.now)
    assert card.open() == [other]
    assert 0 <= card.now - (card[first].predicted_end_ns - LEAD_NS) < LEAD_NS


def test_its_gate_says_that_it_opened_early_for_all_of_that_quantum() -> None:
    card, first, other = leaving()
    assert not card[other].gate & abi.GATE_EARLY
    predict(card, first, LEAD_NS)
    assert card.open() == [other] and card[other].gate & abi.GATE_EARLY
    card.use(other)
    card[first].undrained = 0
    for _ in range(3):
        card.at(LEAD_NS)
        assert card.open() == [other] and card[other].gate & abi.GATE_EARLY, (
            "a changed word costs a sample"
        )
    card[other].runnable = card[other].undrained = 0
    while card.open() == [other]:
        card.at(1 * MS)
    assert first in card.open() and not card[first].gate & abi.GATE_EARLY, "the card was free"


def test_until_the_end_the_former_one_pays_and_then_the_next() -> None:
    card, first, other = leaving()
    predict(card, first, LEAD_NS)
    assert card.open() == [other]
    before = card[first].service_ns
    card[other].used_from_ns = card.now
    card[other].undrained = 1
    card.at(LEAD_NS // 2)
    card[first].undrained = 0
    card.at(LEAD_NS // 2)
    assert card[first].service_ns - before == pytest.approx(LEAD_NS, abs=51_000)
    assert card[other].service_ns == 0
    card.at(1 * MS)
    assert card[other].service_ns == pytest.approx(1 * MS, abs=51_000)
    assert card[first].service_ns - before == pytest.approx(LEAD_NS, abs=51_000)


@pytest.mark.parametrize("registered", [0, 1])
def test_not_where_an_online_tenant_would_wait_for_both(registered: int) -> None:
    card = Card((OFFLINE, 50), (OFFLINE, 50), (ONLINE, 50))
    card[2].live = registered
    card.want(0, 1)
    card.at(0)
    card.at(1 * MS)
    first = next(i for i in card.open() if i != 2)
    card.use(first)
    card[1 - first].backlogged = 0
    card.at(SLICE)
    predict(card, first, LEAD_NS // 2)
    assert not {0, 1} & set(card.open())


def leave_again(card: Card, who: int) -> None:
    """Its gate is closed once more, with work on the card."""
    card.raw.cls[1].current, card.raw.cls[1].draining, card.raw.cls[1].seen_draining = -1, who, 0
    card.raw.cls[1].drain_from_ns, card.raw.cls[1].drain_until_ns = card.now, card.now + 100 * MS
    card[who].undrained = 1


def misses_twice() -> tuple[Card, int, int]:
    """The former tenant's work ended much later than predicted, two times."""
    card, first, other = leaving()
    for misses in (MISSES_MAX // 4, MISSES_MAX):
        predict(card, first, LEAD_NS)
        assert card.open() == [other], "believed so far"
        card.at(LEAD_NS + OVERLAP_NS)
        assert card.open() == [other] and card.raw.cls[1].draining == -1
        assert card[first].misses == misses
        leave_again(card, first)
    return card, first, other


def test_who_foresees_wrongly_is_waited_for_no_longer_and_then_not_believed() -> None:
    card, first, _ = misses_twice()
    predict(card, first, LEAD_NS)
    assert card.open() == []


def test_who_foresaw_wrongly_is_believed_again_after_many_turns() -> None:
    card, first, other = misses_twice()
    quanta = 0
    while card[first].misses >= MISSES_MAX // 2:
        card[first].predicted_end_ns = 0
        card.at(1 * MS)
        assert card.open() == []
        card[first].undrained = 0
        card.at(1 * MS)
        leave_again(card, first)
        quanta += 1
        assert quanta <= MISSES_MAX
    assert quanta > MISSES_MAX // 4, (
        "one wrong prediction in so many quanta costs the others little"
    )
    predict(card, first, LEAD_NS)
    assert card.open() == [other]
    card.at(LEAD_NS + OVERLAP_NS)
    assert card[first].misses == MISSES_MAX, "wrong again: as long as before"


def test_a_late_end_is_paid_for_by_both() -> None:
    """The card divides itself between two contexts: time after the predicted end is halved."""
    card, first, other = leaving()
    predict(card, first, LEAD_NS)
    card[other].undrained = 1
    card[other].used_from_ns = card.now
    card.at(2 * LEAD_NS)
    before = card[first].service_ns, card[other].service_ns
    card.at(1 * MS)
    assert card[first].service_ns - before[0] == pytest.approx(MS / 2, abs=1000)
    assert card[other].service_ns - before[1] == pytest.approx(MS / 2, abs=1000)


@pytest.mark.parametrize(
    "policy", [abi.POLICY_BURST_SHARE, abi.POLICY_FIXED_SHARE, abi.POLICY_BEST_EFFORT]
)
def test_whatever_is_foreseen_one_gate_is_open_and_no_time_is_paid_for_twice(policy: int) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        card = Card(*[(OFFLINE, 25)] * 4, policy=policy)
        card.at(0)
        began, last = card.now, [0] * 4
        for _ in range(400):
            for i in range(4):
                t = card[i]
                t.runnable = rng.random() < 0.9
                t.undrained = rng.random() < (0.7 if i in card.open() or t.undrained else 0.05)
                t.predicted_end_ns = rng.choice(
                    [0, 1, card.now - MS, card.now + rng.randrange(3 * MS), NEVER // 2]
                )
            card.at(rng.randrange(1, 2 * MS))
            assert len(card.open()) <= 1
            used = [card[i].service_ns for i in range(4)]
            assert all(a >= b for a, b in zip(used, last, strict=True))
            last = used
        assert sum(last) <= card.now - began


def test_a_limit_needs_the_exact_user_of_the_card() -> None:
    card, first, _ = leaving(policy=abi.POLICY_FIXED_SHARE)
    predict(card, first, LEAD_NS // 2)
    assert card.open() == []
