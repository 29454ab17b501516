"""Online's launches after the first one wait for the end of what offline has on the card, and
for nothing else.
"""

from __future__ import annotations

import random

import pytest
from policy_card import Card

from enforcer.wire import abi
from simulator.policy_layout import DRAIN_POLL_NS, GAP_NS, HOLD_NS, MS

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
US = 1000


def beside(busy: bool = True, **changes: int) -> Card:
    """An idle online tenant (0) whose release is over, beside an offline one (1)."""
    card = Card((ONLINE, 50), (OFFLINE, 50))
    for name, value in changes.items():
        setattr(card.raw, name, value)
    card.at(0)
    if busy:
        card.want(1)
        card[1].undrained = 1
    card.at(1 * MS)
    return card


def comes(card: Card) -> None:
    """Online's first launch."""
    card[0].runnable = 1
    card.at(10 * US)


def goes(card: Card) -> None:
    """Online is idle again, offline is let in and works."""
    card[0].runnable = 0
    card.at(1 * MS)
    card.at(card.raw.idle_release_ns)
    assert not card[1].gate & abi.GATE_CLOSED
    card[1].undrained = 1
    card.at(1 * MS)


def held(card: Card, tenant: int = 0) -> bool:
    return bool(card[tenant].gate & abi.GATE_HOLD)


def test_online_is_held_until_offline_has_drained() -> None:
    card = beside()
    assert card[0].gate & abi.GATE_NOTIFY and held(card), (
        "the shim must know before the arbiter does"
    )
    assert not held(card, 1)
    comes(card)
    assert card[1].gate & abi.GATE_CLOSED
    assert held(card) and not card[0].gate & (abi.GATE_NOTIFY | abi.GATE_CLOSED)
    assert card.raw.wake_ns <= card.now + DRAIN_POLL_NS, "it is waited for"
    card.at(200 * US)
    assert held(card)
    card[1].undrained = 0
    card.at(50 * US)
    assert not held(card)
    card.at(5 * MS)
    assert not held(card), "nor later in the same stretch of work"
    goes(card)
    assert held(card) and card[0].gate & abi.GATE_NOTIFY, "the next one begins anew"


def test_no_tenant_is_held_for_an_idle_neighbour() -> None:
    card = beside(busy=False)
    assert held(card), "it may begin at any moment"
    comes(card)
    assert not held(card)


def test_a_hold_ends_after_a_known_time() -> None:
    card = beside()
    comes(card)
    assert card.raw.wake_ns <= card.now + HOLD_NS
    card.at(HOLD_NS - 1)
    assert held(card)
    card.at(1)
    assert not held(card)


def test_only_governed_online_tenants_beside_offline_ones_are_held() -> None:
    alone = Card((ONLINE, 50))
    alone.at(0)
    alone.at(GAP_NS)
    assert alone[0].gate & abi.GATE_NOTIFY and not held(alone)
    free = Card((ONLINE, 50), (OFFLINE, 50))
    free[0].ungoverned = 1
    free.want(1)
    free[1].undrained = 1
    free.at(0)
    free.at(1 * MS)
    assert not held(free)
    comes(free)
    assert free[1].gate & abi.GATE_CLOSED and not held(free)
    assert not held(beside(ungoverned=1))


def test_online_rings_at_once_where_offline_may_run() -> None:
    """With a short release the card is offline's before online's gate would ask for a ring."""
    card = beside(idle_release_ns=0)
    comes(card)
    card[0].runnable = 0
    card.at(100 * US)
    assert not card[1].gate & abi.GATE_CLOSED
    assert card[0].gate & abi.GATE_NOTIFY and held(card)


def test_offline_waits_for_online_also_without_a_release() -> None:
    card = beside(idle_release_ns=0)
    comes(card)
    for _ in range(20):
        card.at(1 * MS)
        assert card[1].gate & abi.GATE_CLOSED


@pytest.mark.parametrize("seed", range(20))
def test_a_hold_is_short_and_has_a_reason(seed: int) -> None:
    """Whatever tenants do: held at work means offline on the card, a millisecond at most since
    online came.
    """
    dice = random.Random(seed)
    card = Card(*((dice.choice((ONLINE, OFFLINE)), 10) for _ in range(6)))
    card.raw.idle_release_ns = dice.choice((0, 1, 5)) * MS
    came = None
    for _ in range(3000):
        who = card[dice.randrange(6)]
        who.runnable = dice.random() < 0.5
        who.undrained = who.runnable and dice.random() < 0.7
        card.at(dice.choice((20, 50, 300, 1000)) * US)
        online = [i for i in range(6) if card[i].job_class == ONLINE]
        offline = [i for i in range(6) if card[i].job_class == OFFLINE]
        assert not any(held(card, i) for i in offline)
        came = None if not card.raw.preempting else card.now if came is None else came
        for i in online:
            assert not (held(card, i) and card[i].gate & abi.GATE_CLOSED)
            if not held(card, i) or came is None:
                continue
            assert card.now < came + HOLD_NS
            assert any(card[j].undrained for j in offline)
            assert card.raw.wake_ns <= came + HOLD_NS


def test_an_online_tenant_with_unused_quanta_gets_others_and_keeps_no_tenant_out() -> None:
    card = Card((ONLINE, 50), (ONLINE, 50), (OFFLINE, 50))
    card.want(0, 2)
    card.at(1 * MS)
    assert card[2].gate & abi.GATE_WHY_PREEMPTED
    card[0].runnable = 0
    card.at(5 * MS)
    card.at(101 * MS)
    assert not card[2].gate & abi.GATE_CLOSED
    card[0].runnable = 1
    card.doubted.add(0)
    for _ in range(50):
        card.at(1 * MS)
        assert not card[0].gate & abi.GATE_CLOSED, "should it go on, its first launch says so"
        assert not card[2].gate & abi.GATE_CLOSED, "stopped, it is no reason"
    card.want(1)
    quanta = []
    for _ in range(100):
        card.at(1 * MS)
        assert card[2].gate & abi.GATE_WHY_PREEMPTED
        quanta.append(not card[0].gate & abi.GATE_CLOSED)
    assert any(quanta) and not all(quanta), "quanta among its peers"
    card[1].runnable = 0
    card.at(1 * MS)
    card.at(101 * MS)
    assert not card[2].gate & abi.GATE_CLOSED
    card.doubted.clear()
    card.at(1 * MS)
    assert card[2].gate & abi.GATE_WHY_PREEMPTED, "it launched"


def test_a_hung_online_tenant_gets_no_quantum_among_its_peers_and_keeps_offline_out() -> None:
    card = Card((ONLINE, 50), (ONLINE, 50), (OFFLINE, 50))
    card[0].undrained = 1
    card.hung.add(0)
    card.want(1, 2)
    for _ in range(200):
        card.at(5 * MS)
        assert card[0].gate & abi.GATE_CLOSED, "no tenant waits for the end of its quantum"
        assert not card[1].gate & abi.GATE_CLOSED
        assert card[2].gate & abi.GATE_WHY_PREEMPTED
    card[1].runnable = 0
    for _ in range(200):
        card.at(5 * MS)
        assert card[2].gate & abi.GATE_WHY_PREEMPTED, (
            "its kernel is online's, however long it takes"
        )
    card[0].undrained = 0
    card.hung.clear()
    card.at(5 * MS)
    card.at(101 * MS)
    assert not card[2].gate & abi.GATE_CLOSED
