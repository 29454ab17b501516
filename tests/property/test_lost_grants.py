"""Whatever happens in which order: a grant is lost only if its job is gone, and then it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from enforcer.clock import FakeClock
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.granting.jobshere import Question, Told
from enforcer.daemon.granting.lost import LONGEST_NS, QUIET_NS, Lost

JOBS = st.sampled_from([1, 2, 3])
PATIENCE_NS = 5 * 10**9


@dataclass
class Asked:
    """A question on its way: slurmctld looks at one moment, and its answer comes later."""

    seen: Told | str | None = None
    arrived: bool = False

    def answer(self) -> Told | str | None:
        return self.seen if self.arrived else None

    def drop(self) -> None:
        raise AssertionError("nobody gave it up")


@dataclass
class Truth:
    """What is so. A job is `prolog`, `running` or `completing` while it holds the node."""

    phase: dict[int, str] = field(default_factory=dict)
    grants: set[int] = field(default_factory=set)
    stepds: set[int] = field(default_factory=set)
    unrecorded: set[int] = field(default_factory=set)
    questions: list[Asked] = field(default_factory=list)

    def of(self, job: int) -> list[int]:
        return [job] if job in self.stepds else []

    def adopt(self, jobs: list[int]) -> None:
        self.stepds |= self.unrecorded & set(jobs)

    def ask(self) -> Question:
        self.questions.append(Asked())
        return self.questions[-1]


class Schedule(RuleBasedStateMachine):
    """Jobs come, go and come again by the same number; some Epilogs are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.truth = FakeClock(), Truth()
        steps = cast("Steps", self.truth)
        self.lost = Lost(self.clock, steps, self.truth, PATIENCE_NS)

    @rule(job=JOBS)
    def allocated(self, job: int) -> None:
        self.truth.phase.setdefault(job, "prolog")

    @rule(job=JOBS)
    def prolog_admitted(self, job: int) -> None:
        if self.truth.phase.get(job) == "prolog":
            self.truth.phase[job] = "running"
            self.truth.grants.add(job)  # a grant that an earlier run left is kept or replaced
            self.lost.touched(job)

    @rule(job=JOBS, recorded=st.booleans())
    def step_begins(self, job: int, recorded: bool) -> None:
        if self.truth.phase.get(job) == "running":
            (self.truth.stepds if recorded else self.truth.unrecorded).add(job)

    @rule(job=JOBS)
    def step_ends(self, job: int) -> None:
        self.truth.stepds.discard(job)
        self.truth.unrecorded.discard(job)

    @rule(job=JOBS)
    def job_ends(self, job: int) -> None:
        if self.truth.phase.get(job) == "running":
            self.truth.phase[job] = "completing"
            self.step_ends(job)

    @rule(job=JOBS, ran=st.booleans())
    def epilog(self, job: int, ran: bool) -> None:
        if self.truth.phase.get(job) == "completing":
            del self.truth.phase[job]
            if ran:
                self.truth.grants.discard(job)

    @rule(job=JOBS)
    def slurmctld_gives_up(self, job: int) -> None:
        """The node was away: slurmctld has ended the job, slurmd has not."""
        if job in self.truth.stepds | self.truth.unrecorded:
            self.truth.phase.pop(job, None)

    @rule(job=JOBS, way=st.sets(JOBS))
    def prolog_in_the_way(self, job: int, way: set[int]) -> None:
        if self.truth.phase.get(job) == "prolog":
            way = (way & self.truth.grants) - {job}
            waits = self.lost.waits(job, sorted(way), sorted(self.truth.grants))
            assert not waits or self.lost.asking

    @rule(seconds=st.integers(0, 150))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.lost.look(sorted(self.truth.grants))

    @precondition(lambda self: self.lost.asking)
    @rule(fails=st.sampled_from([False, False, True]))
    def slurmctld_looks(self, fails: bool) -> None:
        asked = self.truth.questions[-1]
        if asked.seen is None:
            asked.seen = "away" if fails else Told(frozenset(self.truth.phase))

    @rule()
    def answer_arrives(self) -> None:
        for asked in self.truth.questions:
            asked.arrived = asked.seen is not None
        for job, _ in self.lost.collect(sorted(self.truth.grants)):
            assert self.truth.phase.get(job, "prolog") == "prolog", "its run still holds the node"
            assert job not in self.truth.stepds | self.truth.unrecorded
            self.truth.grants.discard(job)

    @invariant()
    def one_question_at_a_time(self) -> None:
        assert sum(not asked.arrived for asked in self.truth.questions) <= 1

    def teardown(self) -> None:
        """Once slurmctld answers, no grant of a job that is gone stands for long."""
        for _ in range(3):
            self.clock.advance((LONGEST_NS + QUIET_NS) / 10**9)
            self.lost.look(sorted(self.truth.grants))
            if self.lost.asking:
                self.slurmctld_looks(False)
            self.answer_arrives()
        stepds = self.truth.stepds | self.truth.unrecorded
        assert self.truth.grants <= self.truth.phase.keys() | stepds


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(max_examples=300, stateful_step_count=40)
