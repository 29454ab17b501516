"""Finds grants whose job is gone although no Epilog said so.

A grant without a living slurmstepd proves nothing: salloc has none before its first step. So
slurmctld is asked, rarely, and what it says counts only for grants that stood when the question
began, of which no Prolog came since. Without an answer nothing is concluded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.granting.jobshere import Controller, Question, Told
from enforcer.daemon.log import emit
from enforcer.daemon.requests.runs import is_run

QUIET_NS = 60 * 10**9  # a grant is asked about after this long without a slurmstepd
LONGEST_NS = 16 * QUIET_NS  # the wait doubles with each question, up to this


@dataclass
class _Idle:
    """A grant without a living slurmstepd. `here`: slurmctld said last that it has its job."""

    due_ns: int
    wait_ns: int = QUIET_NS
    here: bool = False

    def told(self, here: bool, now_ns: int) -> None:
        self.here, self.wait_ns = here, min(2 * self.wait_ns, LONGEST_NS)
        self.due_ns = now_ns + self.wait_ns


@dataclass(frozen=True)
class _Open:
    question: Question
    began_ns: int
    jobs: set[int]


@dataclass
class Lost:
    """The grants that may be lost. `patience_ns`: how long a Prolog may wait for an answer."""

    clock: Clock
    steps: Steps
    controller: Controller | None
    patience_ns: int
    _idle: dict[int, _Idle] = field(default_factory=dict)
    _open: _Open | None = None
    _over_ns: int = -1  # when the last question began that is over
    _prologs: dict[int, int] = field(default_factory=dict)  # when each waiting Prolog came
    _silent: str = ""

    @property
    def asking(self) -> bool:
        """Whether a question is open."""
        return self._open is not None

    def look(self, jobs: Iterable[int]) -> None:
        """Ask, if a grant is due. `jobs`: those with a grant."""
        now = self.clock.monotonic_ns()
        known, self._idle = self._idle, {}
        for job in self._without_step(jobs):
            self._idle[job] = known.get(job) or _Idle(now + QUIET_NS)
        self._prologs = {j: at for j, at in self._prologs.items() if now - at < QUIET_NS}
        if any(idle.due_ns <= now for idle in self._idle.values()):
            self._begin(self._idle)

    def waits(self, prolog: int, in_the_way: Iterable[int], jobs: Iterable[int]) -> bool:
        """Whether the Prolog of a job should wait until slurmctld told of those in its way."""
        now = self.clock.monotonic_ns()
        came = self._prologs.setdefault(prolog, now)
        over = self._over_ns >= came or now - came >= self.patience_ns
        if over or self.controller is None or not self._without_step(in_the_way):
            del self._prologs[prolog]
            return False
        self._begin(self._without_step(jobs))
        return True

    def doubtful(self, jobs: Iterable[int]) -> list[int]:
        """Those of which neither a slurmstepd nor slurmctld says that they run."""
        idle = self._without_step(jobs)
        return [job for job in idle if job not in self._idle or not self._idle[job].here]

    def touched(self, job: int) -> None:
        """A Prolog of the job was admitted: what was asked before does not count for it."""
        self._idle.pop(job, None)
        self._prologs.pop(job, None)
        if self._open is not None:
            self._open.jobs.discard(job)

    def collect(self, jobs: Iterable[int]) -> list[tuple[int, int | None]]:
        """The jobs that are gone, and when they ended (ns of CLOCK_REALTIME) as far as known."""
        told = self._open.question.answer() if self._open is not None else None
        if self._open is None or told is None:
            return []
        asked, self._over_ns, self._open = self._open.jobs, self._open.began_ns, None
        now = self.clock.monotonic_ns()
        self._log(told)
        idle = [job for job in self._without_step(jobs) if job in asked]
        for job in idle:
            here = isinstance(told, Told) and job in told.here
            self._idle.setdefault(job, _Idle(now)).told(here, now)
        if isinstance(told, str):
            return []
        gone = [job for job in idle if job not in told.here]
        self.steps.adopt(gone)  # a slurmstepd whose plugin leaves no records
        return [(job, told.ended.get(job)) for job in self._without_step(gone)]

    def close(self) -> None:
        """Give an open question up."""
        if self._open is not None:
            self._open.question.drop()
            self._open = None

    def _without_step(self, jobs: Iterable[int]) -> list[int]:
        return [job for job in jobs if not is_run(job) and not self.steps.of(job)]

    def _begin(self, jobs: Iterable[int]) -> None:
        if self._open is None and self.controller is not None:
            began = self.clock.monotonic_ns()
            self._open = _Open(self.controller.ask(), began, set(jobs))

    def _log(self, told: Told | str) -> None:
        """Log that slurmctld does not answer, once until it does."""
        silent = told if isinstance(told, str) else ""
        if silent and not self._silent:
            emit(logging.WARNING, "jobs-unknown", why=silent)
        self._silent = silent
