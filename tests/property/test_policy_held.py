"""A held tenant (its memory leaves the card) takes no part: the others share the card as if it were
not there.
"""

from __future__ import annotations

import random

import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_card import Card, two

from enforcer.wire import abi
from simulator.policy_layout import MS

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
HELD = abi.GATE_CLOSED | abi.GATE_WHY_MEMORY
US = 1000
POLICIES = st.sampled_from([abi.POLICY_BURST_SHARE, abi.POLICY_BEST_EFFORT, abi.POLICY_FIXED_SHARE])
TENANTS = st.tuples(st.sampled_from([ONLINE, OFFLINE]), st.integers(1, 100))
WORDS = ("runnable", "undrained", "at_gate", "suspended")


def live(card: Card, i: int, words: dict[str, int]) -> None:
    """What the samples say of one tenant."""
    for word, value in words.items():
        setattr(card[i], word, value)


def is_held(card: Card, i: int) -> bool:
    return card[i].gate & (abi.GATE_CLOSED | abi.GATE_WHY_MASK) == HELD and not card[i].until_ns


@examples(60)
@given(
    st.lists(st.tuples(TENANTS, st.booleans()), min_size=1, max_size=6),
    POLICIES,
    st.integers(0, 1 << 30),
)
def test_the_others_decide_as_if_it_were_absent(
    crowd: list[tuple[tuple[int, int], bool]], policy: int, seed: int
) -> None:
    """Gates and wake-ups are the same at every moment, whatever the held ones report."""
    with_held = Card(*[kind for kind, _ in crowd], policy=policy)
    without = Card(*[kind for kind, held in crowd if not held], policy=policy)
    here = [i for i, (_, held) in enumerate(crowd) if not held]
    away = [i for i, (_, held) in enumerate(crowd) if held]
    for i in away:
        with_held[i].held = 1
    draw = random.Random(seed)
    for _ in range(300):
        for place, i in enumerate(here):
            if draw.random() < 0.3:
                words = {word: int(draw.random() < 0.5) for word in WORDS}
                live(with_held, i, words)
                live(without, place, words)
        for i in away:
            with_held[i].runnable = with_held[i].at_gate = draw.randint(0, 1)
        later = draw.choice([20 * US, 300 * US, MS, 7 * MS])
        if draw.random() < 0.5:
            later = min(later, without.raw.wake_ns - without.now)
        with_held.at(later)
        without.at(later)
        assert [with_held[i].gate for i in here] == [
            t.gate for t in without.raw.tenant[: len(here)]
        ]
        assert with_held.raw.wake_ns == without.raw.wake_ns
        assert all(is_held(with_held, i) for i in away)


@examples(60)
@given(st.lists(TENANTS, min_size=2, max_size=6), POLICIES, st.integers(0, 1 << 30))
def test_a_held_tenant_never_gets_a_quantum(
    crowd: list[tuple[int, int]], policy: int, seed: int
) -> None:
    """Held and released at any moment, with work on the card or without."""
    card = Card(*crowd, policy=policy)
    draw = random.Random(seed)
    for _ in range(300):
        i = draw.randrange(len(crowd))
        card[i].held = draw.randint(0, 1)
        live(card, draw.randrange(len(crowd)), {word: draw.randint(0, 1) for word in WORDS})
        card.at(draw.choice([20 * US, 300 * US, MS, 7 * MS]))
        for each in range(len(crowd)):
            assert not card[each].held or is_held(card, each)
            currents = [cls.current for cls in card.raw.cls]
            assert not (card[each].held and each in currents and each in card.open())


def test_its_quantum_goes_on_to_the_next_after_its_drain() -> None:
    card, first, other = two()
    card.use(first)
    card[first].held = 1
    card.at(100 * US)
    assert is_held(card, first) and card.open() == [], "the other waits for its drain"
    service = card[first].service_ns
    card[first].undrained = 0
    card.at(100 * US)
    assert card.open() == [other]
    assert card[first].service_ns > service, "it pays for what it still ran"
    service = card[first].service_ns
    for _ in range(20):
        card.use(other)
        card.at(MS)
        assert card.open() == [other] and card[first].service_ns == service


def test_a_released_tenant_gets_quanta_again() -> None:
    card, first, other = two()
    card.use(first)
    card[first].held, card[first].undrained = 1, 0
    card.at(50 * MS)
    card.use(other)
    card[first].held = 0
    seen = set()
    for _ in range(100):
        card.at(min(card.raw.wake_ns - card.now, MS))
        for i in (first, other):
            card[i].undrained = int(i in card.open())
        seen |= set(card.open())
    assert seen == {first, other}


@pytest.mark.parametrize("why", ["governed card", "ungoverned card", "ungoverned job"])
def test_its_gate_closes_also_where_nothing_is_governed(why: str) -> None:
    card = Card((OFFLINE, 50), (OFFLINE, 50))
    card.raw.ungoverned = int(why == "ungoverned card")
    card[0].ungoverned = int(why == "ungoverned job")
    card.want(0, 1)
    card.at(0)
    card[0].held = 1
    card.at(MS)
    assert is_held(card, 0) and card.open() == [1]
    card[0].held = 0
    card.at(MS)
    assert not is_held(card, 0)


def test_offline_does_not_wait_for_a_held_online_tenant() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card.want(0, 1)
    card.at(0)
    assert card.open() == [0]
    card[0].held = 1
    card.at(MS)
    card.follow(101 * MS)
    assert card.open() == [1]
