"""Turns, charges and openings, one decision at a time: what the arbiter's inputs mean."""

from __future__ import annotations

import random

import pytest
from policy_card import SLICE, Card, two

from enforcer.wire import abi
from simulator.policy_layout import DEEP_QUANTUM_NS, LONG_QUANTUM, LONG_QUANTUM_MANY, MS, START_NS

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


@pytest.mark.parametrize("policy", [abi.POLICY_BURST_SHARE, abi.POLICY_FIXED_SHARE])
def test_who_stood_at_the_gate_need_not_ring_where_no_budget_ends(policy: int) -> None:
    """It reports by itself when it went on, and the next tick finds that: one wake-up less for
    each quantum.
    """
    card = Card((OFFLINE, 50), (OFFLINE, 50), policy=policy)
    card.want(0, 1)
    card[0].at_gate = card[1].at_gate = 1
    card.at(0)
    first = card.current()
    assert bool(card[first].gate & abi.GATE_NOTIFY) == (policy == abi.POLICY_FIXED_SHARE)
    card[first].at_gate = 0
    card.use(first, after_ns=50 * US)
    card.at(700 * US)
    assert card[first].service_ns == 700 * US


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


def test_a_drain_is_polled_when_it_usually_ends() -> None:
    """Not every 50 us: after some quanta with drains of 8 ms the first poll comes after most of
    that.
    """
    card, _, _ = two()
    polls = []
    for _ in range(60):
        who = card.current()
        card.use(who)
        while who in card.open():
            card.at(max(1, card.raw.wake_ns - card.now))
        closed, n = card.now, 0
        while not card.open():
            card[who].undrained = int(card.raw.wake_ns - closed < 8 * MS)
            card.at(card.raw.wake_ns - card.now)
            n += 1
        assert card.now - closed < 8 * MS + 300 * US, "the card stood still"
        polls.append(n)
    assert polls[0] > 30 and max(polls[-10:]) < 16


@pytest.mark.parametrize("longest", [[100 * US, MS, 10 * MS], [10 * MS]])
def test_short_drains_among_long_ones_are_not_slept_through(longest: list[int]) -> None:
    """The rest of kernels of 0.1, 1 or 10 ms at random, or of 10 ms: found soon after its end,
    with few polls.
    """
    card, _, _ = two()
    draw, late, polls = random.Random(1), [], 0
    for _ in range(200):
        who = card.current()
        card.use(who)
        while who in card.open():
            card.at(max(1, card.raw.wake_ns - card.now))
        closed, took = card.now, draw.randrange(draw.choice(longest))
        while not card.open():
            card[who].undrained = int(card.raw.wake_ns - closed < took)
            card.at(card.raw.wake_ns - card.now)
            polls += 1
        late.append(card.now - closed - took)
    assert sum(late[100:]) / 100 < 150 * US and max(late[100:]) < 700 * US
    assert polls / len(late) < 60


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
    assert card[first].service_ns - before[0] == card[other].service_ns - before[1] == 500 * US


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


def test_ungoverned_opens_everything_and_governed_again_begins_afresh() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50), (OFFLINE, 50), policy=abi.POLICY_FIXED_SHARE)
    card.want(0, 1, 2)
    card.raw.ungoverned = 1
    card.at(0)
    assert card.open() == [0, 1, 2]
    card.raw.ungoverned = 0
    card.at(5 * MS)
    assert card.open() == [0]


def long_quantum(shares: tuple[int, ...], tail_ns: int) -> Card:
    """Offline tenants that always use their quanta up, one of them at the beginning of its
    quantum.
    """
    card = Card(*((OFFLINE, share) for share in shares))
    card.want(*range(len(shares)))
    for i in range(len(shares)):
        card[i].backlogged, card[i].max_drain_ns = 1, tail_ns
    card.at(0)
    card.use(card.current())
    return card


def deep_for(card: Card) -> int:
    """How long, in ms, more kernels may queue up in this quantum."""
    current, ms = card.current(), 0
    while card.open() == [current]:
        ms += card[current].deep_window
        card.at(1 * MS)
    return ms


def test_kernels_of_any_length_queue_up_in_the_middle_of_a_long_quantum_only() -> None:
    """As long as more of the quantum is left than may be in flight; not near its end, where they
    would prolong it.
    """
    room = DEEP_QUANTUM_NS // MS
    card = long_quantum((90, 10), 10 * MS)
    current, ms, deep = card.current(), 0, []
    # lasts 90 ms and more: 10 % of what it uses is due to it all the same
    card[current].deficit_ns = 90 * MS
    while card.open() == [current]:
        ms += 1
        if card[current].deep_window:
            deep.append(ms)
        card.at(1 * MS)
    assert ms >= 90
    assert deep[0] <= 2 and len(deep) > ms // 2
    assert room - 2 <= ms - deep[-1] <= room + LONG_QUANTUM * SLICE // MS, (
        "it stays for whole quanta, so longer than is sure"
    )
    assert deep_for(long_quantum((90, 10), 1 * MS)) == 0, "short kernels fit as it is"
    assert deep_for(long_quantum((20,) * 5, 10 * MS)) <= LONG_QUANTUM * SLICE // MS - room + 1, (
        "only its beginning"
    )


def test_kernels_queue_up_under_a_limit_until_a_tenant_has_budget_again() -> None:
    """No other tenant can have the card before that, however long the quantum was to be."""
    card = Card((OFFLINE, 75), (OFFLINE, 25), policy=abi.POLICY_FIXED_SHARE)
    card.want(0, 1)
    card.at(0)
    for i in (0, 1):
        card[i].max_drain_ns, card[i].budget_ns = 10 * MS, (50 * MS, -10 * MS)[i]
    card.raw.cls[1].current = 0
    card.at(1 * MS)
    card.use(0)
    deep = []
    while card[1].out_of_budget:
        deep.append(card[0].deep_window)
        card.at(1 * MS)
    assert len(deep) > 60, "25 % of 64 ms are 16 ms: 10 of debt and a portion of 6"
    assert deep[1:40] == [1] * 39 and deep[-10:] == [0] * 10, deep


def deep_queue() -> tuple[Card, int, int]:
    """The current tenant's kernels may queue up; and one of the waiting tenants."""
    card = long_quantum((80, 10, 10), 10 * MS)
    current = card.current()
    card[current].deficit_ns = 500 * MS
    other = next(i for i in range(3) if i != current)
    card.at(1 * MS)
    assert card[current].deep_window
    return card, current, other


def test_a_newcomer_ends_the_deep_queue_at_once() -> None:
    card, current, other = deep_queue()
    card[other].backlogged = 0
    card.at(1 * MS)
    assert not card[current].deep_window


def test_long_turns_are_shorter_for_small_shares_and_among_many() -> None:
    """10 slices of two tenants, 7 of more; half of that for a tenant with less than a quarter of
    an equal part.
    """

    def length(shares: tuple[int, ...]) -> list[float]:
        card = long_quantum(shares, 0)
        found = [0.0] * len(shares)
        card.at(1 * MS)
        card.at(1 * MS)
        for i in range(len(shares)):
            cls = card.raw.cls[1]
            cls.current, cls.draining, cls.use_from_ns = i, -1, 0
            for j in range(len(shares)):
                card[j].undrained, card[j].gate = int(i == j), 0 if i == j else abi.GATE_CLOSED
                card[j].mean_drain_ns, card[j].deficit_ns, card[j].backlogged = 0, 0, 1
            cls.opened_ns = card[i].used_from_ns = card.now
            card.at(1000)
            found[i] = (cls.quantum_end_ns - cls.use_from_ns) / SLICE
        return found

    assert length((50, 50)) == [LONG_QUANTUM, LONG_QUANTUM]
    assert length((10, 90)) == [LONG_QUANTUM / 2, LONG_QUANTUM]
    assert length((20,) * 5) == [LONG_QUANTUM_MANY] * 5
    assert length((6,) * 16) == [LONG_QUANTUM_MANY] * 16
    assert length((5, 10, 85)) == [
        LONG_QUANTUM_MANY / 2,
        pytest.approx(LONG_QUANTUM_MANY * 0.6),
        LONG_QUANTUM_MANY,
    ]


def test_no_turns_where_the_hardware_keeps_the_shares() -> None:
    card = Card((OFFLINE, 30), (OFFLINE, 70))
    card.want(0, 1)
    card.raw.cls[1].sliced = 1
    card.at(0)
    assert card.open() == [0, 1]
    card.raw.cls[1].policy = abi.POLICY_FIXED_SHARE
    card.at(1 * MS)
    assert len(card.open()) == 1, "a limit is kept by quanta all the same"
