"""Pauses of a current tenant, and the time that it gives away: one decision at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from policy_card import Card, two
from test_policy_quanta import deep_queue

from enforcer.wire import abi
from simulator.policy_layout import (
    COMPETES_NS,
    DRAIN_POLL_NS,
    DRAIN_TIMEOUT_MIN_NS,
    DRAIN_TIMEOUT_NS,
    KEEP_CREDIT_NS,
    LATE_PAUSE_NS,
    LATE_THREAD,
    LATE_THREAD_NS,
    MS,
    PAUSE_NS,
    PAUSE_POLL_NS,
    REAL_PAUSES,
    REPORTED_POLL_NS,
    SHORT_PAUSE_NS,
    SOLO_TICK_NS,
    TICK_NS,
    TIMEOUT_MEMORY_NS,
)

pytestmark = pytest.mark.native
US = 1000


def rest_of_the_quantum(card: Card, other: int, inactive_ns: int) -> int:
    """The current tenant has moved last at that time; how much later the other one's gate opens."""
    first = card.current()
    card[first].runnable = card[first].undrained = 0
    card[first].inactive_since_ns = inactive_ns
    card.at(0)
    while other not in card.open():
        assert card.now <= inactive_ns + 10 * MS, "it kept the card"
        card.at(max(1, card.raw.wake_ns - card.now))
    return card.now - inactive_ns


def test_a_current_tenant_without_work_passes_its_quantum_on_within_a_millisecond() -> None:
    """Also if the last sample that found a launch, or the end of its work, was the one before."""
    card, first, other = two()
    card.use(first)
    card[first].inactive_since_ns = card.now + 500 * US
    card.at(500 * US)
    moved = card.now
    assert card.raw.wake_ns <= moved + PAUSE_NS, (
        "nothing of it is known to be unfinished, so it may have ended"
    )
    card.at(card.raw.wake_ns - card.now)
    assert rest_of_the_quantum(card, other, moved) <= PAUSE_NS + DRAIN_POLL_NS


def test_work_on_the_card_and_threads_at_the_gate_are_no_pause() -> None:
    card, first, _ = two()
    card.use(first)
    card.at(1 * MS)
    assert card.raw.wake_ns >= card.now + TICK_NS, "no more samples than before while it works on"
    card.at(900 * US)
    assert card.open() == [first]


def come_back(card: Card, who: int, pause_ns: int) -> None:
    """It is runnable again the given time after its pause began, gets the card and uses it."""
    card.now = max(card.now, card[who].paused_ns + pause_ns)
    card.want(who)
    card.at(0)
    while card.open() != [who]:
        card[1 - who].undrained = 0
        card.at(max(1, card.raw.wake_ns - card.now))
    card.use(who)


def paused_once() -> tuple[Card, int, int]:
    """The first of two has its quantum again after a real pause."""
    card, first, other = two()
    card.use(first)
    rest_of_the_quantum(card, other, card.now)
    come_back(card, first, 5 * MS)
    return card, first, other


def test_a_tenant_that_always_pauses_for_long_gets_less_time_to_come_back() -> None:
    card, first, other = two()
    card.use(first)
    for _ in range(REAL_PAUSES):
        assert PAUSE_NS <= rest_of_the_quantum(card, other, card.now) < LATE_PAUSE_NS
        come_back(card, first, 5 * MS)
    assert rest_of_the_quantum(card, other, card.now) < PAUSE_NS, "its pauses are known"
    come_back(card, first, LATE_THREAD_NS - 1)
    assert rest_of_the_quantum(card, other, card.now) >= LATE_PAUSE_NS, (
        "it came back soon: that was too early"
    )
    come_back(card, first, 5 * MS)
    assert PAUSE_NS <= rest_of_the_quantum(card, other, card.now) < LATE_PAUSE_NS


def test_credit_outlives_a_moment_without_work_and_no_more() -> None:
    card, first, other = two()
    card.use(first)
    card.at(1 * MS)
    credit = card[other].deficit_ns
    assert credit > 0
    card[other].runnable = 0
    card.at(KEEP_CREDIT_NS - 1 * MS)
    assert card[other].deficit_ns > 0, "its thread may only be late"
    card.at(2 * MS)
    assert card[other].deficit_ns == 0, "nothing is saved up for later"


def test_a_tenant_that_passed_its_quantum_on_is_sampled_more_often() -> None:
    card, _, _ = paused_once()
    card.at(300 * US)
    assert card.raw.wake_ns <= card.now + PAUSE_NS, "although its work is not finished"


def test_work_with_a_predicted_end_is_sampled_when_it_may_have_ended() -> None:
    """Each sample wakes a sleeping thread; but an end that was predicted too late is found soon
    all the same.
    """
    card, first, other = paused_once()
    card[first].inactive_since_ns = 0
    card.at(300 * US)
    for ahead, most in ((4 * MS, 3 * MS), (1 * MS, MS // 2), (PAUSE_NS, PAUSE_NS + SHORT_PAUSE_NS)):
        card[first].predicted_end_ns = card.now + ahead
        card.at(0)
        assert card.raw.due_ns == card.now + most
        assert card.raw.wake_ns <= card.now + TICK_NS, (
            "ticks find it, however far ahead it predicts"
        )
    assert rest_of_the_quantum(card, other, card.now) < PAUSE_NS + LATE_PAUSE_NS


def test_an_end_that_was_foreseen_too_late_is_found_within_half_a_millisecond() -> None:
    """Predicted ends err by a part of what is in flight, so samples come closer together towards
    them.
    """
    card, first, _ = paused_once()
    card[first].inactive_since_ns = 0
    card[first].predicted_end_ns = end = card.now + 2 * MS
    card.at(300 * US)
    polls = [card.now]
    while polls[-1] < end:
        card.at(max(1, card.raw.due_ns - card.now))
        polls.append(card.now)
    late = [polls[i] for i in range(len(polls)) if polls[i] > end - 1 * MS]
    assert all(after - before <= 500 * US for before, after in pairwise(late))
    assert len(polls) <= 6, "each sample may wake a sleeping thread"


def test_a_late_tenant_is_sampled_so_often_that_its_next_pause_takes_less_than_a_millisecond() -> (
    None
):
    card, first, other = two()
    card.use(first)
    rest_of_the_quantum(card, other, card.now)
    come_back(card, first, LATE_THREAD_NS - 1)
    assert card[first].real_pauses == LATE_THREAD
    card[first].inactive_since_ns = 0
    card.at(300 * US)
    assert card.raw.due_ns - card.now <= PAUSE_POLL_NS < MS - LATE_PAUSE_NS - 2 * DRAIN_POLL_NS


def test_who_stands_at_its_gate_tells_when_its_work_has_ended() -> None:
    """It is polled all the same, in case the thread there is late, but seldom."""
    card, first, _ = two()
    card.use(first)
    card[first].short_drain_ns, card[first].uneven_drains = 400 * US, 1
    while card.open() == [first]:
        card.at(card.raw.wake_ns - card.now)
    card.at(10 * US)
    assert card.raw.wake_ns < card.now + REPORTED_POLL_NS, (
        "no thread waits there, so none reports the end"
    )
    card[first].at_gate = 1
    for _ in range(3):
        card.at(0)
        assert card.raw.wake_ns == card.now + REPORTED_POLL_NS
        card.at(REPORTED_POLL_NS)


def test_an_end_predicted_too_late_and_not_reported_is_charged() -> None:
    """It reports a thread at its gate and a late end; its work ends before the poll that comes
    then.
    """
    card, first, other = two()
    card[first].at_gate, card[first].predicted_end_ns = 1, card.now + DRAIN_TIMEOUT_NS
    card.use(first)
    while card.open() == [first]:
        card.at(card.raw.wake_ns - card.now)
    closed, before, polls = card.now, card[first].service_ns, 0
    while card.raw.wake_ns < card[first].predicted_end_ns - MS:
        card.at(card.raw.wake_ns - card.now)
        polls += 1
    assert polls < 30, "but it is not polled all the time"
    card[first].undrained = 0
    card.at(card.raw.wake_ns - card.now)
    assert card.open() == [other] and card.now - closed > DRAIN_TIMEOUT_NS // 2
    assert card[first].service_ns - before >= card.now - closed - SOLO_TICK_NS


def test_a_drain_longer_than_ever_times_out_soon() -> None:
    """A hung kernel of a tenant whose drains are known, and one of a tenant of which nothing is
    known. Under a limit the next one would pay for a card that stands still: there the first one
    pays, for as long as any is awaited.
    """
    burst, fixed = abi.POLICY_BURST_SHARE, abi.POLICY_FIXED_SHARE
    for policy, drain, most in (
        (burst, 0, DRAIN_TIMEOUT_NS),
        (burst, 1 * MS, DRAIN_TIMEOUT_MIN_NS),
        (burst, 5 * MS, 40 * MS),
        (burst, 60 * MS, DRAIN_TIMEOUT_NS),
        (fixed, 1 * MS, DRAIN_TIMEOUT_NS),
        (fixed, 60 * MS, DRAIN_TIMEOUT_NS),
    ):
        card, first, other = two(policy)
        card.use(first)
        card[first].max_drain_ns = drain
        while card.open() == [first]:
            card.at(card.raw.wake_ns - card.now)
        closed = card.now
        while card.open() != [other]:
            card.at(card.raw.wake_ns - card.now)
        assert card.now - closed == most, drain


def test_no_deep_queue_where_a_tenant_may_come_back() -> None:
    card, current, other = deep_queue()
    card[other].runnable = 0
    card.at(1 * MS)
    assert not card[current].deep_window, "it was at work until now"
    card[other].live = 0
    card.at(1 * MS)
    assert card[current].deep_window, "it left"


def test_quanta_are_passed_on_later_after_a_drain_timeout() -> None:
    """Beside a liar each change of hands may cost a cut-off; a second after the last one it is
    as before.
    """
    card, first, other = two()
    card.raw.cls[1].last_timeout_ns = card.now
    card.use(first)
    assert COMPETES_NS <= rest_of_the_quantum(card, other, card.now) <= COMPETES_NS + DRAIN_POLL_NS
    card, first, other = two()
    card.raw.cls[1].last_timeout_ns = card.now - TIMEOUT_MEMORY_NS
    card.use(first)
    assert rest_of_the_quantum(card, other, card.now) <= PAUSE_NS + DRAIN_POLL_NS
