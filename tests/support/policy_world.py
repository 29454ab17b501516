"""A card, its tenants and a clock around the arbiter's decision, for property tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from enforcer.wire import abi
from simulator.policy_layout import DEFICIT_MAX_NS, MS, NEVER
from simulator.policylib import Policy

ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE


@dataclass
class Job:
    """A simulated tenant: bursts of work and pauses, kernels of a length of its own."""

    job_class: int
    share: int
    kernel_ns: int
    bursts: list[tuple[int, int]] = field(default_factory=list)  # (pause, work) in ns, repeated
    always_busy: bool = True
    pause_left: int = 0
    work_left: int = 0
    on_card: int = 0  # ns of submitted, unfinished work
    got: int = 0


@dataclass
class World:
    """The card, its tenants and a clock: steps of 50 µs, decisions when the decision itself asks for them."""

    jobs: list[Job]
    policy: int = abi.POLICY_BURST_SHARE
    online_policy: int | None = None
    now: int = 1000 * MS
    each_step: bool = False  # decide at every step, not only when something happened or was due

    def __post_init__(self) -> None:
        self.policy_lib = Policy()
        self.card = self.policy_lib.card
        self.card.idle_release_ns = 100 * MS
        self.card.slice_ns = 2 * MS
        self.card.ntenants = len(self.jobs)
        self.card.cls[0].policy = self.policy if self.online_policy is None else self.online_policy
        self.card.cls[1].policy = self.policy
        self.tenants = [self.card.tenant[i] for i in range(len(self.jobs))]
        for tenant, job in zip(self.tenants, self.jobs, strict=True):
            tenant.live, tenant.job_class, tenant.share, tenant.procs = 1, job.job_class, job.share, 2

    def endless(self, job: Job) -> bool:
        return job.always_busy and not job.bursts

    def has_work(self, job: Job) -> bool:
        return bool(job.on_card or job.work_left or self.endless(job))

    def observe(self) -> None:
        for tenant, job in zip(self.tenants, self.jobs, strict=True):
            tenant.runnable = self.has_work(job)
            tenant.undrained = job.on_card > 0

    def decide(self) -> None:
        self.observe()
        self.policy_lib.decide(self.now)
        assert self.card.wake_ns > self.now, "a wake-up in the past would spin"

    def open(self, i: int) -> bool:
        return not self.tenants[i].gate & abi.GATE_CLOSED

    def run(self, duration_ns: int, step: int = 50_000) -> None:
        """Advance; a tenant that begins to work rings (a decision), as the doorbell does."""
        end = self.now + duration_ns
        while self.now < end:
            rang = self.live_one_step(step)
            self.now += step
            if rang or self.each_step or self.now >= self.card.wake_ns:
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
            before = self.has_work(job)
            self.plan(job, step)
            if self.open(i) and (job.work_left or self.endless(job)) and job.on_card < step:
                job.on_card += job.kernel_ns
                job.work_left = max(0, job.work_left - job.kernel_ns)
            rang = rang or (self.has_work(job) and not before)
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
        busy = any(self.tenants[i].runnable for i in classes[ONLINE])
        recent = self.card.online_busy_ns and self.now < self.card.online_busy_ns + 100 * MS
        if busy or recent:
            assert not any(self.open(i) for i in classes[OFFLINE]), "offline open beside online"
        for k, members in classes.items():
            wanting = [i for i in members if self.tenants[i].runnable]
            strict = k == OFFLINE and classes[ONLINE]
            fixed = self.card.cls[k - 1].policy == abi.POLICY_FIXED_SHARE
            if (len(members) > 1 and (len(wanting) > 1 or strict)) or fixed:
                assert sum(self.open(i) for i in members) <= 1, "two current tenants in one class"
        waiting = [i for i in live if self.tenants[i].runnable and not self.open(i)]
        if waiting:
            soon = 100 * MS + max(0, -min(self.tenants[i].budget_ns for i in waiting)) * 100 + 300 * MS
            assert self.card.wake_ns != NEVER and self.card.wake_ns <= self.now + soon, "no wake-up is due"
        assert all(abs(self.tenants[i].deficit_ns) <= DEFICIT_MAX_NS for i in live), "unbounded deficit"
