"""The decision of the arbiter under arbitrary lives of tenants: what must never and what must always be."""

from __future__ import annotations

import ctypes
import random

import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_world import OFFLINE, ONLINE, Job, World

from enforcer.wire import abi
from simulator.policy_layout import DEFICIT_MAX_NS, DRAIN_POLL_NS, MS, NEVER, TICK_NS, QpCard

pytestmark = pytest.mark.native

POLICIES = st.sampled_from([abi.POLICY_BURST_SHARE, abi.POLICY_BEST_EFFORT, abi.POLICY_FIXED_SHARE])

spans = st.integers(0, 300).map(lambda v: v * MS // 2)
job_strategy = st.builds(
    Job,
    job_class=st.sampled_from([ONLINE, OFFLINE]),
    share=st.integers(1, 100),
    kernel_ns=st.sampled_from([50_000, 200_000, 1 * MS, 30 * MS]),
    bursts=st.lists(st.tuples(spans, st.integers(1, 60).map(lambda v: v * MS // 2)), min_size=1, max_size=4),
)


@examples(25)
@given(
    st.lists(job_strategy, min_size=1, max_size=6),
    POLICIES,
    POLICIES,
)
def test_invariants_under_any_life(jobs: list[Job], offline: int, online: int) -> None:
    world = World(jobs, offline, online)
    world.decide()
    world.check()
    began = world.now
    world.run(400 * MS, step=100_000)
    for k in (ONLINE, OFFLINE):
        charged = sum(t.service_ns for t, job in zip(world.tenants, jobs, strict=True) if job.job_class == k)
        assert charged <= world.now - began, "more was charged than time has passed"


def closed(card: QpCard) -> list[int]:
    return [card.tenant[i].gate & abi.GATE_CLOSED for i in range(card.ntenants)]


@examples(25)
@given(st.lists(job_strategy, min_size=1, max_size=6), POLICIES, POLICIES)
def test_no_gate_would_move_before_wake_ns(jobs: list[Job], offline: int, online: int) -> None:
    """As long as nothing happens: to sleep until wake_ns is as good as to sample all the time.

    Only a fixed-share tenant that has used up a second's share is sampled every 2 ms (20 ms if it is idle),
    nothing is sampled more often than every 50 us, and the end of a long quantum (soft_ns) waits for the next tick.
    """
    world = World(jobs, offline, online)
    world.decide()
    for _ in range(60):
        world.run(3 * MS + 50_000, step=100_000)
        world.decide()
        before, wake = closed(world.card), world.card.wake_ns
        if wake == NEVER:
            wake = world.now + 5000 * MS
        soft = world.card.soft_ns
        assert soft == NEVER or world.card.wake_ns <= max(soft, world.now) + TICK_NS, (
            "no wake-up comes after it"
        )
        wake = max(min(wake, soft), world.now + 1)
        copy = bytes(world.card)
        world.policy_lib.decide(wake - 1)
        after = closed(world.card)
        ctypes.memmove(ctypes.byref(world.card), copy, len(copy))
        for tenant, was, then in zip(world.tenants, before, after, strict=True):
            late = wake - world.now <= (2 if tenant.runnable else 20) * MS
            excused = (tenant.out_of_budget and was and late) or wake - world.now <= DRAIN_POLL_NS
            assert was == then or excused, "a gate was due earlier"


@examples(10)
@given(st.lists(job_strategy, min_size=2, max_size=5), POLICIES)
def test_sampling_when_due_is_as_good_as_sampling_always(jobs: list[Job], policy: int) -> None:
    for job in jobs:
        job.kernel_ns = min(job.kernel_ns, 1 * MS)
        job.bursts = []
    twins = [Job(job.job_class, job.share, job.kernel_ns) for job in jobs]
    got = []
    for each_step, mine in ((False, jobs), (True, twins)):
        world = World(mine, policy, each_step=each_step)
        world.decide()
        world.run(600 * MS)
        got.append([job.got / (600 * MS) for job in mine])
    assert got[0] == pytest.approx(got[1], abs=0.03)


@examples(15)
@given(st.lists(st.integers(1, 100), min_size=2, max_size=5), st.sampled_from([ONLINE, OFFLINE]))
def test_all_the_time_that_was_used_is_charged(shares: list[int], job_class: int) -> None:
    """Contended and used without a pause: what ran is charged, less half an interval per quantum; credits balance."""
    jobs = [Job(job_class, share, 200_000) for share in shares]
    world = World(jobs)
    world.decide()
    world.run(300 * MS)
    charged, ran = sum(t.service_ns for t in world.tenants), sum(job.got for job in jobs)
    assert charged == pytest.approx(ran, rel=0.04)
    if len(set(shares)) > 1 or max(shares) < 90:
        assert abs(sum(t.deficit_ns for t in world.tenants)) < 2 * MS, "credit from nowhere"


@examples(15)
@given(st.lists(job_strategy, min_size=2, max_size=5))
def test_every_closed_gate_opens_again(jobs: list[Job]) -> None:
    """Once online is idle for good, every waiting tenant gets the card within a bounded time."""
    for job in jobs:
        job.share, job.kernel_ns = max(job.share, 25), min(job.kernel_ns, 1 * MS)
    world = World(jobs)
    world.decide()
    world.run(100 * MS, step=100_000)
    for job in jobs:
        job.bursts, job.work_left, job.always_busy = [], 0, job.job_class == OFFLINE
    waiting = {i for i, job in enumerate(jobs) if job.job_class == OFFLINE}
    # idle_release, then rounds of up to five with debts of a few slices
    end = world.now + 100 * MS + 400 * MS
    while waiting and world.now < end:
        world.run(1 * MS, step=100_000)
        waiting = {i for i in waiting if not world.open(i)}
    assert not waiting


@examples(15)
@given(
    st.lists(st.integers(5, 100), min_size=2, max_size=4), st.sampled_from([ONLINE, OFFLINE]), st.randoms()
)
def test_service_converges_to_the_weights(shares: list[int], job_class: int, rng: random.Random) -> None:
    """Greedy tenants with kernels of different lengths: each gets its share of the time within 3 %."""
    jobs = [Job(job_class, share, rng.choice([100_000, 200_000, 1 * MS])) for share in shares]
    world = World(jobs)
    world.decide()
    world.run(1500 * MS, step=100_000)
    total = sum(job.got for job in jobs)
    for job in jobs:
        assert job.got / total == pytest.approx(job.share / sum(shares), abs=0.03)
    assert total > 0.85 * 1500 * MS, "the card stood still too often"


def test_best_effort_ignores_shares() -> None:
    jobs = [Job(OFFLINE, 90, 200_000), Job(OFFLINE, 10, 200_000)]
    world = World(jobs, abi.POLICY_BEST_EFFORT)
    world.decide()
    world.run(1000 * MS)
    assert jobs[0].got / jobs[1].got == pytest.approx(1.0, abs=0.05)


def test_overuse_is_debited() -> None:
    """One member's kernels last 15 slices: it gets its quanta less often, not more card."""
    jobs = [Job(OFFLINE, 50, 30 * MS), Job(OFFLINE, 50, 100_000)]
    world = World(jobs)
    world.decide()
    world.run(4000 * MS)
    assert jobs[0].got / (jobs[0].got + jobs[1].got) == pytest.approx(0.5, abs=0.05)


def test_idle_card_asks_for_no_wake_up() -> None:
    world = World([Job(ONLINE, 50, 100_000, always_busy=False), Job(OFFLINE, 50, 100_000, always_busy=False)])
    world.decide()
    world.run(20 * MS)
    assert world.card.wake_ns == NEVER
    assert world.card.tenant[0].gate & abi.GATE_NOTIFY and world.card.tenant[1].gate & abi.GATE_NOTIFY


@pytest.mark.parametrize("always_busy", [True, False], ids=["waiting", "idle"])
def test_release_is_exactly_idle_release_after_the_last_work(always_busy: bool) -> None:
    online, offline = (
        Job(ONLINE, 50, 1 * MS, always_busy=False),
        Job(OFFLINE, 50, 100_000, always_busy=always_busy),
    )
    world = World([online, offline])
    online.on_card = 1 * MS
    world.decide()
    assert not world.open(1)
    world.run(90 * MS)
    release = world.card.online_busy_ns + 100 * MS
    while world.now + 50_000 < release:
        world.run(50_000)
        assert not world.open(1)
    world.run(150_000)
    assert world.open(1), "no tenant had to ring for it"


def test_the_next_quantum_waits_for_the_last_kernel() -> None:
    jobs = [Job(OFFLINE, 50, 1 * MS), Job(OFFLINE, 50, 700_000)]
    world = World(jobs)
    world.decide()
    world.run(10 * MS)
    for _ in range(4000):
        world.run(50_000)
        for mine, other in ((0, 1), (1, 0)):
            assert not (world.open(mine) and jobs[other].on_card), "opened while the former one still ran"


def test_recovery_keeps_offline_closed_and_ends() -> None:
    world = World([Job(ONLINE, 50, 1 * MS, always_busy=False), Job(OFFLINE, 50, 100_000)])
    world.card.recovery_until_ns = world.now + 50 * MS
    world.decide()
    assert world.card.tenant[1].gate & abi.GATE_WHY_RECOVERY and world.open(0)
    world.run(40 * MS)
    assert not world.open(1)
    world.run(15 * MS)
    assert world.open(1)


def test_a_tenant_that_never_drains_pays_for_it() -> None:
    """It lies about unfinished work: the other waits at most the drain timeout per quantum and keeps its half."""
    liar, worker = Job(OFFLINE, 50, 100_000), Job(OFFLINE, 50, 100_000)
    world = World([liar, worker])
    world.observe = lambda: None  # type: ignore[method-assign]
    for tenant in (world.card.tenant[0], world.card.tenant[1]):
        tenant.runnable = 1
    world.card.tenant[0].undrained = 1
    opened = [0, 0]
    world.decide()
    for _ in range(40_000):
        world.now += 50_000
        if world.now >= world.card.wake_ns:
            world.decide()
        opened[0] += world.open(0)
        opened[1] += world.open(1)
    assert opened[1] > 0.4 * 40_000


@pytest.mark.parametrize("start", [-4000 * MS, 4000 * MS])
def test_no_credit_or_debt_outlives_the_bound(start: int) -> None:
    world = World([Job(OFFLINE, 50, 100_000), Job(OFFLINE, 50, 100_000)])
    world.decide()
    world.run(5 * MS)
    world.tenants[0].deficit_ns = start
    world.run(5 * MS)
    assert abs(world.tenants[0].deficit_ns) <= DEFICIT_MAX_NS


def test_what_is_in_flight_is_always_bounded() -> None:
    """A lone tenant too: a newcomer would have to wait for all that it has queued. Not where isolation is none."""
    world = World([Job(OFFLINE, 50, 100_000), Job(OFFLINE, 50, 100_000)])
    world.card.tenant[1].live = 0
    world.decide()
    assert world.card.tenant[0].gate & abi.GATE_WINDOW and world.open(0)
    world.card.tenant[0].free = 1
    world.decide()
    assert not world.card.tenant[0].gate & abi.GATE_WINDOW and world.open(0)


@given(st.integers(1, 30), st.integers(0, 999_999))
@examples(30)
def test_release_never_comes_early(bursts: int, phase: int) -> None:
    """Whenever the samples come, offline waits idle_release from the end of online's last kernel at least."""
    world = World([Job(ONLINE, 50, 1 * MS, always_busy=False), Job(OFFLINE, 50, 100_000)])
    world.observe = lambda: None  # type: ignore[method-assign]
    online = world.card.tenant[0]
    online.runnable = 1
    world.decide()
    end = world.now + bursts * MS + phase
    while not world.open(1):
        world.now += 20_000
        online.runnable = int(world.now <= end)
        if world.now >= world.card.wake_ns:
            world.decide()
        assert world.now - end < 105 * MS, "the release is late"
    assert world.now - end >= 100 * MS
