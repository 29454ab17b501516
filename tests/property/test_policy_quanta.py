"""Turns, charges and openings, one decision at a time: what the arbiter's inputs mean."""

from __future__ import annotations

import pytest
from policy_card import SLICE, Card, two

from enforcer.wire import abi
from simulator.policy_layout import LONG_QUANTUM, MS, START_NS

pytestmark = pytest.mark.native
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
US = 1000


def test_a_quantum_is_opened_with_notify_and_charged_from_its_first_use() -> None:
    card, first, other = two()
    assert card[first].gate & abi.GATE_NOTIFY, "the first launch must ring"
    assert not card[other].gate & abi.GATE_NOTIFY
    card.at(300 * US)
    assert card[first].service_ns == 0, "nothing was used yet"
    card.use(first, after_ns=100 * US)
    assert not card[first].gate & abi.GATE_NOTIFY, "one ring is enough"
    card.at(700 * US)
    assert card[first].service_ns == 700 * US
    assert card[first].deficit_ns == -350 * US and card[other].deficit_ns == 350 * US


def test_work_that_never_rang_is_charged_from_the_opening() -> None:
    card, first, _ = two()
    card.at(400 * US)
    card[first].undrained = 1
    card.at(200 * US)
    assert card[first].service_ns == 600 * US


def test_an_unused_quantum_is_charged_after_a_millisecond() -> None:
    card, first, _ = two()
    assert card.raw.wake_ns == card.now + START_NS
    card.at(START_NS)
    card.at(500 * US)
    assert card[first].service_ns == 500 * US


def test_the_slice_counts_from_the_first_use() -> None:
    card, first, other = two()
    card.use(first, after_ns=900 * US)
    assert card.raw.wake_ns <= card.now + 1 * MS
    card.at(SLICE - 1 * US)
    assert card.open() == [first]
    card.at(1 * US)
    assert card.open() == [], "it drains"
    card[first].undrained = 0
    card.at(50 * US)
    assert card.open() == [other]


def test_half_of_the_last_interval_is_charged() -> None:
    """The last kernel ended somewhere between two samples."""
    card, first, _ = two()
    card.use(first)
    card.at(SLICE)
    card.at(200 * US)
    before = card[first].service_ns
    card[first].undrained = 0
    card.at(100 * US)
    assert (before, card[first].service_ns) == (SLICE + 200 * US, SLICE + 250 * US)


def test_who_rings_at_its_end_after_a_long_drain_pays_for_it() -> None:
    """It rang when it came to the gate, and again when its last kernel ended: not halfway
    between the two.
    """
    card, first, _ = two()
    card.use(first)
    card.at(SLICE)
    card.at(50 * US)
    card[first].undrained = 0
    card.at(1000 * US)
    assert card[first].service_ns == SLICE + 1000 * US


def length_of_quantum(card: Card) -> int:
    """Lets the current tenant use its quantum up, and drain at once."""
    who = card.current()
    card.use(who)
    began = card.now
    while card.open() == [who]:
        card.at(card.raw.wake_ns - card.now)
    length = card.now - began
    card[who].undrained = 0
    card.at(10 * US)
    return length


def test_turns_are_long_between_tenants_that_use_them_up_and_short_for_the_others() -> None:
    card, _, _ = two()
    assert length_of_quantum(card) == SLICE
    lengths = [length_of_quantum(card) for _ in range(6)]
    assert min(lengths) >= LONG_QUANTUM * SLICE * 9 // 10
    # one of them falls silent, comes back, and may need the card only for a moment
    current = card.current()
    other = 1 - current
    card.use(current)
    card[other].runnable = 0
    card.at(1 * MS)
    card.at(3 * MS)
    card.want(other)
    card.at(0)
    card.at(2 * SLICE)
    assert current not in card.open()


def test_online_turns_are_always_short() -> None:
    card = Card((ONLINE, 50), (ONLINE, 50))
    card.want(0, 1)
    card.at(0)
    assert max(length_of_quantum(card) for _ in range(8)) <= 2 * SLICE


def test_free_tenants_take_no_part() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50), (OFFLINE, 50))
    card[2].ungoverned = 1
    card.want(0, 1, 2)
    card.at(0)
    assert card.open() == [0, 2] and card[1].gate & abi.GATE_WHY_PREEMPTED
    card.at(50 * MS)
    assert card[2].service_ns == 0 and not card[2].gate & abi.GATE_WINDOW


def test_a_free_online_tenant_still_preempts() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card[0].ungoverned = 1
    card.want(1)
    card.at(0)
    assert 1 in card.open()
    card.want(0)
    card.at(10 * MS)
    assert card.open() == [0]
    card[0].runnable = 0
    card.at(1 * MS)
    card.at(100 * MS - 1)
    assert 1 not in card.open()
    assert card.raw.wake_ns == card.now + 1
    card.at(1)
    assert 1 in card.open()


def test_a_suspended_tenant_is_closed_as_preempted_and_its_quantum_goes_on() -> None:
    card, first, other = two()
    card.use(first)
    card[first].suspended = 1
    card.at(100 * US)
    assert card[first].gate & abi.GATE_WHY_PREEMPTED and card.open() == [], (
        "the other waits for its drain"
    )
    card[first].undrained = 0
    card.at(100 * US)
    assert card.open() == [other]
    card[first].suspended = 0
    card.at(10 * US)
    assert card[first].gate & abi.GATE_WHY_SHARE
    for _ in range(60):
        if card.open() == [first]:
            return
        card[other].undrained = int(other in card.open())
        card.at(card.raw.wake_ns - card.now)
    pytest.fail("it never got its quantum back")


def test_a_drain_that_never_ends_times_out_and_is_still_charged() -> None:
    card, first, other = two()
    card.use(first)
    card.at(SLICE)
    card.at(99 * MS)
    assert card.open() == []
    card.at(1 * MS)
    assert card.open() == [other]
    card.use(other)
    before = card[first].service_ns, card[other].service_ns
    card.at(1 * MS)
    assert card[first].service_ns - before[0] == 1 * MS, "it may have all of the card"
    assert card[other].service_ns - before[1] == 1 * MS, (
        "no tenant pays less for the work of another"
    )


def test_a_short_pause_opens_no_second_gate() -> None:
    """The current tenant is between two kernels at a sample, having last been seen at work more
    than 1 ms ago.
    """
    card, first, other = two()
    card.use(first)
    card.at(300 * US)
    card[first].runnable = card[first].undrained = 0
    card.at(1100 * US)
    assert card.open() == [first], "its quantum is not over, and two never run"
    card[first].runnable = card[first].undrained = 1
    card.at(100 * US)
    assert card.open() == [first] or card.open() == []
    assert other not in card.open()


@pytest.mark.parametrize("policy", [abi.POLICY_BURST_SHARE, abi.POLICY_BEST_EFFORT])
def test_gates_are_open_until_two_have_work(policy: int) -> None:
    card = Card((OFFLINE, 50), (OFFLINE, 50), policy=policy)
    card.at(0)
    card.at(2 * MS)
    assert card.open() == [0, 1], "nobody has work"
    card.want(0)
    card.at(5 * MS)
    assert card.open() == [0, 1], "alone it needs no quantum"
    card.want(1)
    card.at(5 * MS)
    assert len(card.open()) == 1, "they compete"
    card[1].runnable = 0
    card.at(1 * MS)
    card.at(2 * MS)
    assert card.open() == [0, 1], "alone again"


def test_ungoverned_opens_everything_and_governed_again_begins_afresh() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50), (OFFLINE, 50), policy=abi.POLICY_FIXED_SHARE)
    card.want(0, 1, 2)
    card.raw.ungoverned = 1
    card.at(0)
    assert card.open() == [0, 1, 2]
    card.raw.ungoverned = 0
    card.at(5 * MS)
    assert card.open() == [0]


def test_no_turns_where_the_hardware_keeps_the_shares() -> None:
    card = Card((OFFLINE, 30), (OFFLINE, 70))
    card.want(0, 1)
    card.raw.cls[1].sliced = 1
    card.at(0)
    assert card.open() == [0, 1]
    card.raw.cls[1].policy = abi.POLICY_FIXED_SHARE
    card.at(1 * MS)
    assert len(card.open()) == 1, "a limit is kept by quanta all the same"


@pytest.mark.parametrize("interval_ns", [1 * MS, 3 * MS, 30 * MS])
@pytest.mark.parametrize("shares", [(50, 50, 50), (60, 30, 10)])
def test_online_that_interrupts_each_quantum_starves_nobody(
    interval_ns: int, shares: tuple[int, ...]
) -> None:
    """Online may come back before any quantum ends."""
    card = Card((ONLINE, 20), *((OFFLINE, share) for share in shares))
    card.raw.idle_release_ns = 0
    card.at(0)
    card.want(1, 2, 3)
    for _ in range(4_000 * MS // interval_ns):
        card[0].runnable = 1
        card.at(500 * US)
        card[0].runnable = 0
        card.at(0)
        for _ in range(interval_ns // (500 * US)):
            for i in (1, 2, 3):
                card[i].undrained = int(i in card.open())
            card.at(500 * US)
        for i in (1, 2, 3):
            card[i].undrained = 0
    used = [card[i].service_ns for i in (1, 2, 3)]
    part = [ns / sum(used) - share / sum(shares) for ns, share in zip(used, shares, strict=True)]
    assert max(map(abs, part)) < 0.05, used
