"""Since when online is idle: by its report or since the first sample without work; offline comes idle_release later."""

from __future__ import annotations

import pytest
from policy_world import OFFLINE, ONLINE, Job, World

from enforcer.wire import abi
from simulator.policy_layout import MS

RELEASE_NS = 100 * MS


def world(online: int) -> World:
    """So many online tenants at work beside an offline one that waits."""
    made = World([Job(ONLINE, 50, MS, always_busy=False) for _ in range(online)] + [Job(OFFLINE, 50, MS)])
    made.observe = lambda: None  # type: ignore[method-assign]
    for tenant in made.tenants:
        tenant.runnable = 1
    made.policy_lib.decide(made.now)
    assert not made.open(online)
    return made


def sample(of: World, after_ns: int) -> None:
    of.now += after_ns
    of.policy_lib.decide(of.now)


def rest(of: World, i: int, ended_ns: int = 0) -> None:
    of.tenants[i].runnable, of.tenants[i].reported_end_ns = 0, ended_ns


@pytest.mark.parametrize("reported", [True, False])
def test_the_release_counts_from_the_reported_end(reported: bool) -> None:
    made = world(1)
    end = made.now + MS // 4
    rest(made, 0, end if reported else 0)
    sample(made, MS)
    since = end if reported else made.now
    assert made.card.online_busy_ns == since
    assert made.card.due_ns == since + RELEASE_NS, "it is sampled then, if not before"
    sample(made, since + RELEASE_NS - 1 - made.now)
    assert not made.open(1)
    sample(made, 1)
    assert made.open(1)


def test_an_end_that_lies_ahead_is_not_believed() -> None:
    made = world(1)
    rest(made, 0, made.now + 500 * MS)
    sample(made, MS)
    assert made.card.online_busy_ns == made.now


def test_the_last_of_several_idle_reports_counts() -> None:
    made = world(2)
    first = made.now + MS // 2
    rest(made, 0, first)
    sample(made, MS)
    assert made.card.online_busy_ns == made.now, "the other one works"
    made.tenants[0].reported_end_ns = 1
    rest(made, 1, made.now + MS // 3)
    sample(made, MS)
    assert made.card.online_busy_ns == made.now - MS + MS // 3
    rest(made, 1, 1)
    sample(made, MS)
    assert made.card.online_busy_ns == made.now - 2 * MS + MS // 3, (
        "it rests since then, whatever it says later"
    )


def test_of_two_that_end_at_once_the_later_counts() -> None:
    made = world(2)
    rest(made, 0, made.now + 700_000)
    rest(made, 1, made.now + 200_000)
    sample(made, MS)
    assert made.card.online_busy_ns == made.now - 300_000


def test_a_tenant_that_leaves_while_running_reported_nothing() -> None:
    made = world(2)
    rest(made, 0, made.now + 100_000)
    sample(made, MS)
    made.tenants[1].live = 0
    sample(made, MS)
    assert made.card.online_busy_ns == made.now


def test_work_after_a_reported_end_counts_as_running() -> None:
    made = world(1)
    rest(made, 0, made.now + 100_000)
    sample(made, MS)
    made.tenants[0].runnable, made.tenants[0].reported_end_ns = 1, 0
    sample(made, 50 * MS)
    assert made.card.online_busy_ns == made.now
    assert made.tenants[1].gate & abi.GATE_WHY_PREEMPTED
