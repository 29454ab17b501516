"""Since when online is idle: by its report or since the first sample without work; offline comes
idle_release later.
"""

from __future__ import annotations

import pytest
from policy_card import Card

from enforcer.wire import abi
from simulator.policy_layout import MS

RELEASE_NS = 100 * MS


def beside(online: int) -> Card:
    """This many online tenants at work beside an offline one that waits."""
    made = Card(*[(abi.CLASS_ONLINE, 50)] * online, (abi.CLASS_OFFLINE, 50))
    made.want(*range(online + 1))
    made.at(0)
    assert online not in made.open()
    return made


def rest(of: Card, i: int, ended_ns: int = 0) -> None:
    of[i].runnable, of[i].reported_end_ns = 0, ended_ns


@pytest.mark.parametrize("reported", [True, False])
def test_the_release_counts_from_the_reported_end(reported: bool) -> None:
    made = beside(1)
    end = made.now + MS // 4
    rest(made, 0, end if reported else 0)
    made.at(MS)
    since = end if reported else made.now
    assert made.raw.online_busy_ns == since
    assert made.raw.due_ns == since + RELEASE_NS, "it is sampled then, if not before"
    made.at(since + RELEASE_NS - 1 - made.now)
    assert 1 not in made.open()
    made.at(1)
    assert 1 in made.open()


def test_an_end_that_lies_ahead_is_not_believed() -> None:
    made = beside(1)
    rest(made, 0, made.now + 500 * MS)
    made.at(MS)
    assert made.raw.online_busy_ns == made.now


def test_the_last_of_several_idle_reports_counts() -> None:
    made = beside(2)
    first = made.now + MS // 2
    rest(made, 0, first)
    made.at(MS)
    assert made.raw.online_busy_ns == made.now, "the other one works"
    made[0].reported_end_ns = 1
    rest(made, 1, made.now + MS // 3)
    made.at(MS)
    assert made.raw.online_busy_ns == made.now - MS + MS // 3
    rest(made, 1, 1)
    made.at(MS)
    assert made.raw.online_busy_ns == made.now - 2 * MS + MS // 3, (
        "it rests since then, whatever it says later"
    )


def test_of_two_that_end_at_once_the_later_counts() -> None:
    made = beside(2)
    rest(made, 0, made.now + 700_000)
    rest(made, 1, made.now + 200_000)
    made.at(MS)
    assert made.raw.online_busy_ns == made.now - 300_000


def test_a_tenant_that_leaves_while_running_reported_nothing() -> None:
    made = beside(2)
    rest(made, 0, made.now + 100_000)
    made.at(MS)
    made[1].live = 0
    made.at(MS)
    assert made.raw.online_busy_ns == made.now


def test_work_after_a_reported_end_counts_as_running() -> None:
    made = beside(1)
    rest(made, 0, made.now + 100_000)
    made.at(MS)
    made[0].runnable, made[0].reported_end_ns = 1, 0
    made.at(50 * MS)
    assert made.raw.online_busy_ns == made.now
    assert made[1].gate & abi.GATE_WHY_PREEMPTED
