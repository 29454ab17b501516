"""What is awaited behind a gate that closed: a launch that passed it just before, and work that
was once cut off.
"""

from __future__ import annotations

import pytest
from policy_card import Card, two

from enforcer.wire import abi
from simulator.policy_layout import (
    DRAIN_TIMEOUT_MIN_NS,
    DRAIN_TIMEOUT_NS,
    MS,
    PAUSE_NS,
    TIMEOUT_HALVINGS,
)

pytestmark = pytest.mark.native
US = 1000
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
    assert card[first].max_drain_ns == 5 * MS, "it was a drain like any other"


def test_a_sample_after_the_closing_teaches_nothing_about_drains() -> None:
    card, first, _ = at_work()
    card[first].short_drain_ns = card[first].mean_drain_ns = card[first].max_drain_ns = 800 * US
    leave_with_nothing(card, first)
    card.raw.resample = 0
    card.now += 20 * US
    card.lib.decide_once(card.now)
    assert (
        card[first].short_drain_ns
        == card[first].mean_drain_ns
        == card[first].max_drain_ns
        == 800 * US
    )


def test_a_tenant_closed_with_work_needs_no_extra_sample() -> None:
    """The polls for the end of that work find every launch."""
    card, first, _ = at_work()
    while card.open() == [first]:
        card.now = card.raw.wake_ns
        card.lib.decide_once(card.now)
        assert not card.raw.resample


def time_out(card: Card, first: int) -> int:
    """Its quantum ends and its work does not. Returns how long the end was awaited."""
    while first in card.open():
        card.at(card.raw.wake_ns - card.now)
    closed = card.now
    while not card.open():
        card.at(card.raw.wake_ns - card.now)
    return card.now - closed


def quantum_of(card: Card, i: int) -> None:
    """Until it has the card and uses it."""
    while card.open() != [i]:
        for j in card.open():
            card[j].undrained = 0
        card.at(card.raw.wake_ns - card.now)
    card.use(i)


def end_late(card: Card, first: int, other: int) -> None:
    """What it has on the card ends so late that no kernel is awaited as long."""
    card.use(other)
    card.at(DRAIN_TIMEOUT_NS)
    card[first].undrained = 0
    card.at(0)


def test_work_that_ended_after_all_is_no_lie() -> None:
    """A kernel longer than any recent drain times out once. That two share the card makes it
    longer still: the next one must not be cut off all the sooner for that.
    """
    card, first, other = at_work()
    card[first].max_drain_ns = 1 * MS
    assert time_out(card, first) == DRAIN_TIMEOUT_MIN_NS
    assert card[first].drain_timeouts == 1
    card.use(other)
    card.at(20 * MS)
    card[first].undrained = 0
    card.at(0)
    assert card[first].drain_timeouts == 0
    assert 45 * MS <= card[first].max_drain_ns <= 46 * MS
    quantum_of(card, first)
    assert time_out(card, first) == DRAIN_TIMEOUT_NS


def test_work_that_ends_too_late_is_awaited_less_each_time() -> None:
    card, first, other = at_work()
    waited = []
    for times in range(1, TIMEOUT_HALVINGS + 3):
        waited.append(time_out(card, first))
        end_late(card, first, other)
        assert card[first].drain_timeouts == min(times, TIMEOUT_HALVINGS)
        quantum_of(card, first)
    assert waited[0] == DRAIN_TIMEOUT_NS
    assert waited == sorted(waited, reverse=True)
    assert waited[-1] < 2 * MS


def drain(card: Card, first: int, took_ns: int) -> None:
    """Its quantum ends, and the given time later its work on the card."""
    quantum_of(card, first)
    while first in card.open():
        card.at(card.raw.wake_ns - card.now)
    card.at(took_ns // 2)
    card.at(took_ns - took_ns // 2)
    card[first].undrained = 0
    card.at(0)


def test_a_long_kernel_is_remembered_longer_than_it_is_waited_for() -> None:
    """Of work that takes now long and now short most drains are short; a limit must know all the
    same that one kernel may take long, and after a second or two of short ones that none does.
    """
    card, first, _ = at_work()
    drain(card, first, 10 * MS)
    assert card[first].max_drain_long_ns == card[first].max_drain_ns == 10 * MS
    for _ in range(10):
        drain(card, first, 1 * MS)
    assert card[first].max_drain_ns < 4 * MS and card[first].max_drain_long_ns > 7 * MS
    for _ in range(20):
        drain(card, first, 1 * MS)
    assert card[first].max_drain_long_ns < 6 * MS


@pytest.mark.parametrize(
    ("longest_ns", "closes_ms"), [(10 * MS, (149.5, 149.9)), (1 * MS, (148, 148.4))]
)
def test_who_has_long_kernels_may_use_nearly_all_of_its_second(
    longest_ns: int, closes_ms: tuple[float, float]
) -> None:
    """Of a fresh second: 15 % are 150 ms, less 0.5 ms or 2 ms for what comes after the closing."""
    card = Card((abi.CLASS_OFFLINE, 15), policy=abi.POLICY_FIXED_SHARE)
    card.want(0)
    card.at(0)
    card.use(0)
    card[0].budget_ns, card[0].max_drain_long_ns = 1000 * MS, longest_ns
    began = card.now
    while card.open():
        card[0].budget_ns = 1000 * MS
        card.at(100 * US)
    assert closes_ms[0] <= (card.now - began) / MS <= closes_ms[1]
