"""The decision of the arbiter under arbitrary lives of tenants: what must never and what must always be."""

from __future__ import annotations

import ctypes
import random
from ctypes import c_int32, c_int64, c_uint32, c_uint64
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer import abi

pytestmark = pytest.mark.native
LIBRARY = Path(__file__).resolve().parents[2] / "build/test/libqgpu_policy.so"
MS = 1_000_000
NEVER = 2**64 - 1
MAX_TENANTS = 256
DEFICIT_MAX = 500 * MS
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE


class QpTenant(ctypes.Structure):
    """struct qp_tenant."""

    _fields_: ClassVar = [
        *[
            (name, c_uint32)
            for name in ("live", "job_class", "share", "procs", "wants", "undrained", "granted")
        ],
        *[(name, c_uint32) for name in ("gate", "charged", "worked")],
        ("deficit_ns", c_int64),
        ("last_work_ns", c_uint64),
        ("service_ns", c_uint64),
    ]


class QpClass(ctypes.Structure):
    """struct qp_class."""

    _fields_: ClassVar = [
        ("policy", c_uint32),
        ("holder", c_int32),
        ("draining", c_int32),
        ("contended", c_uint32),
        ("resumed", c_uint32),
        ("slice_end_ns", c_uint64),
        ("drain_until_ns", c_uint64),
    ]


class QpCard(ctypes.Structure):
    """struct qp_card."""

    _fields_: ClassVar = [
        ("idle_release_ns", c_uint64),
        ("slice_ns", c_uint64),
        ("recovery_until_ns", c_uint64),
        ("ungoverned", c_uint32),
        ("ntenants", c_uint32),
        ("last_ns", c_uint64),
        ("online_busy_ns", c_uint64),
        ("cls", QpClass * 2),
        ("wake_ns", c_uint64),
        ("preempting", c_uint32),
        ("online_working", c_uint32),
        ("tenant", QpTenant * MAX_TENANTS),
    ]


LIB = ctypes.CDLL(str(LIBRARY)) if LIBRARY.exists() else None


@dataclass
class Job:
    """A simulated tenant: bursts of work and pauses, kernels of a length of its own."""

    job_class: int
    share: int
    kernel_ns: int
    bursts: list[tuple[int, int]] = field(default_factory=list)  # (pause, work) in ns, repeated
    greedy: bool = True
    pause_left: int = 0
    work_left: int = 0
    on_card: int = 0  # ns of submitted, unfinished work
    got: int = 0


@dataclass
class World:
    """The card, its tenants and a clock: steps of 50 µs, decisions when the decision itself asks for them."""

    jobs: list[Job]
    policy: int = abi.POLICY_BURST_SHARE
    now: int = 1000 * MS

    def __post_init__(self) -> None:
        assert LIB is not None, f"{LIBRARY} is missing: run make native"
        self.card = QpCard()
        LIB.qp_init(ctypes.byref(self.card))
        self.card.idle_release_ns = 100 * MS
        self.card.slice_ns = 2 * MS
        self.card.ntenants = len(self.jobs)
        for cls in self.card.cls:
            cls.policy = self.policy
        self.tenants = [self.card.tenant[i] for i in range(len(self.jobs))]
        for tenant, job in zip(self.tenants, self.jobs, strict=True):
            tenant.live, tenant.job_class, tenant.share, tenant.procs = 1, job.job_class, job.share, 2

    def endless(self, job: Job) -> bool:
        return job.greedy and not job.bursts

    def wants(self, job: Job) -> bool:
        return bool(job.on_card or job.work_left or self.endless(job))

    def observe(self) -> None:
        for tenant, job in zip(self.tenants, self.jobs, strict=True):
            tenant.wants = self.wants(job)
            tenant.undrained = job.on_card > 0

    def decide(self) -> None:
        self.observe()
        LIB.qp_decide(ctypes.byref(self.card), c_uint64(self.now))
        assert self.card.wake_ns > self.now, "a wake-up in the past would spin"

    def open(self, i: int) -> bool:
        return not self.tenants[i].gate & abi.GATE_CLOSED

    def run(self, duration_ns: int, step: int = 50_000) -> None:
        """Advance; a tenant that begins to work rings (a decision), as the doorbell does."""
        end = self.now + duration_ns
        while self.now < end:
            rang = self.live_one_step(step)
            self.now += step
            if rang or self.now >= self.card.wake_ns:
                self.decide()
                self.check()

    def live_one_step(self, step: int) -> bool:
        running = [job for job in self.jobs if job.on_card]
        for job in running:
            used = min(job.on_card, step // len(running))
            job.on_card -= used
            job.got += used
        rang = False
        for i, job in enumerate(self.jobs):
            before = self.wants(job)
            self.plan(job, step)
            if self.open(i) and (job.work_left or self.endless(job)) and job.on_card < step:
                job.on_card += job.kernel_ns
                job.work_left = max(0, job.work_left - job.kernel_ns)
            rang = rang or (self.wants(job) and not before)
        return rang

    def plan(self, job: Job, step: int) -> None:
        if not job.bursts or job.work_left or job.on_card:
            return
        job.pause_left -= step
        if job.pause_left <= 0:
            pause, work = job.bursts[0]
            job.bursts = job.bursts[1:] + job.bursts[:1]
            job.pause_left, job.work_left = pause, work

    def check(self) -> None:
        """What holds after each decision."""
        live = [i for i in range(len(self.jobs)) if self.tenants[i].live]
        classes = {k: [i for i in live if self.jobs[i].job_class == k] for k in (ONLINE, OFFLINE)}
        busy = any(self.tenants[i].wants for i in classes[ONLINE])
        recent = self.card.online_busy_ns and self.now < self.card.online_busy_ns + 100 * MS
        if busy or recent:
            assert not any(self.open(i) for i in classes[OFFLINE]), "offline open beside online"
        for k, members in classes.items():
            wanting = [i for i in members if self.tenants[i].wants]
            strict = k == OFFLINE and classes[ONLINE]
            if len(members) > 1 and (len(wanting) > 1 or strict):
                assert sum(self.open(i) for i in members) <= 1, "two holders in one class"
        waiting = [i for i in live if self.tenants[i].wants and not self.open(i)]
        if waiting:
            assert self.card.wake_ns != NEVER and self.card.wake_ns <= self.now + 100 * MS, (
                "nobody will look again"
            )
        assert all(abs(self.tenants[i].deficit_ns) <= DEFICIT_MAX for i in live), "unbounded deficit"


spans = st.integers(0, 300).map(lambda v: v * MS // 2)
job_strategy = st.builds(
    Job,
    job_class=st.sampled_from([ONLINE, OFFLINE]),
    share=st.integers(1, 100),
    kernel_ns=st.sampled_from([50_000, 200_000, 1 * MS, 30 * MS]),
    bursts=st.lists(st.tuples(spans, st.integers(1, 60).map(lambda v: v * MS // 2)), min_size=1, max_size=4),
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(job_strategy, min_size=1, max_size=6),
    st.sampled_from([abi.POLICY_BURST_SHARE, abi.POLICY_BEST_EFFORT]),
)
def test_invariants_under_any_life(jobs: list[Job], policy: int) -> None:
    world = World(jobs, policy)
    world.decide()
    world.check()
    world.run(400 * MS, step=100_000)


@settings(max_examples=15, deadline=None)
@given(st.lists(job_strategy, min_size=2, max_size=5))
def test_every_closed_gate_opens_again(jobs: list[Job]) -> None:
    """Once online falls silent for good, everybody who waits gets the card within a bounded time."""
    for job in jobs:
        job.share, job.kernel_ns = max(job.share, 25), min(job.kernel_ns, 1 * MS)
    world = World(jobs)
    world.decide()
    world.run(100 * MS, step=100_000)
    for job in jobs:
        job.bursts, job.work_left, job.greedy = [], 0, job.job_class == OFFLINE
    waiting = {i for i, job in enumerate(jobs) if job.job_class == OFFLINE}
    # idle_release, then rounds of up to five with debts of a few slices
    end = world.now + 100 * MS + 400 * MS
    while waiting and world.now < end:
        world.run(1 * MS, step=100_000)
        waiting = {i for i in waiting if not world.open(i)}
    assert not waiting


@settings(max_examples=15, deadline=None)
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
    """One member's kernels last 15 slices: it gets its turns less often, not more card."""
    jobs = [Job(OFFLINE, 50, 30 * MS), Job(OFFLINE, 50, 100_000)]
    world = World(jobs)
    world.decide()
    world.run(4000 * MS)
    assert jobs[0].got / (jobs[0].got + jobs[1].got) == pytest.approx(0.5, abs=0.05)


def test_idle_card_asks_for_no_wake_up() -> None:
    world = World([Job(ONLINE, 50, 100_000, greedy=False), Job(OFFLINE, 50, 100_000, greedy=False)])
    world.decide()
    world.run(20 * MS)
    assert world.card.wake_ns == NEVER
    assert world.card.tenant[0].gate & abi.GATE_NOTIFY and world.card.tenant[1].gate & abi.GATE_NOTIFY


@pytest.mark.parametrize("greedy", [True, False], ids=["waiting", "idle"])
def test_release_is_exactly_idle_release_after_the_last_work(greedy: bool) -> None:
    online, offline = Job(ONLINE, 50, 1 * MS, greedy=False), Job(OFFLINE, 50, 100_000, greedy=greedy)
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
    assert world.open(1), "nobody had to ring for it"


def test_the_next_turn_waits_for_the_last_kernel() -> None:
    jobs = [Job(OFFLINE, 50, 1 * MS), Job(OFFLINE, 50, 700_000)]
    world = World(jobs)
    world.decide()
    world.run(10 * MS)
    for _ in range(4000):
        world.run(50_000)
        for mine, other in ((0, 1), (1, 0)):
            assert not (world.open(mine) and jobs[other].on_card), "opened while the former one still ran"


def test_recovery_keeps_offline_closed_and_ends() -> None:
    world = World([Job(ONLINE, 50, 1 * MS, greedy=False), Job(OFFLINE, 50, 100_000)])
    world.card.recovery_until_ns = world.now + 50 * MS
    world.decide()
    assert world.card.tenant[1].gate & abi.GATE_WHY_RECOVERY and world.open(0)
    world.run(40 * MS)
    assert not world.open(1)
    world.run(15 * MS)
    assert world.open(1)


def test_a_tenant_that_never_drains_pays_for_it() -> None:
    """It lies about unfinished work: the other waits at most the drain limit per turn and keeps its half."""
    liar, worker = Job(OFFLINE, 50, 100_000), Job(OFFLINE, 50, 100_000)
    world = World([liar, worker])
    world.observe = lambda: None  # type: ignore[method-assign]
    for tenant in (world.card.tenant[0], world.card.tenant[1]):
        tenant.wants = 1
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
    assert abs(world.tenants[0].deficit_ns) <= DEFICIT_MAX


def test_offline_is_bounded_from_the_online_grant_on() -> None:
    """Online was granted but has not registered: offline's queue must be short when it launches."""
    world = World([Job(ONLINE, 50, 1 * MS, greedy=False), Job(OFFLINE, 50, 100_000)])
    world.card.tenant[0].live = world.card.tenant[0].procs = 0
    world.decide()
    assert not world.card.tenant[1].gate & abi.GATE_WINDOW, "a lone tenant has no window"
    world.card.tenant[0].granted = 1
    world.decide()
    assert world.card.tenant[1].gate & abi.GATE_WINDOW and world.open(1)


@given(st.integers(1, 30), st.integers(0, 999_999))
@settings(max_examples=30, deadline=None)
def test_release_never_comes_early(bursts: int, phase: int) -> None:
    """However the looks fall, offline waits idle_release from the end of online's last kernel at least."""
    world = World([Job(ONLINE, 50, 1 * MS, greedy=False), Job(OFFLINE, 50, 100_000)])
    world.observe = lambda: None  # type: ignore[method-assign]
    online = world.card.tenant[0]
    online.wants = 1
    world.decide()
    end = world.now + bursts * MS + phase
    while not world.open(1):
        world.now += 20_000
        online.wants = int(world.now <= end)
        if world.now >= world.card.wake_ns:
            world.decide()
        assert world.now - end < 105 * MS, "the release is late"
    assert world.now - end >= 100 * MS
