"""Ends jobs whose memory cannot be moved: back into the queue or stopped, then SIGKILL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from enforcer.clock import Clock
from enforcer.daemon.audit.action import send_action
from enforcer.daemon.log import emit
from enforcer.daemon.reclaim.away import Away
from enforcer.daemon.reclaim.child import Child
from enforcer.daemon.reclaim.slurm import Queue
from enforcer.daemon.requests.runs import is_run

KILL_NS = 10**9  # period of the signals: new processes may have begun


@dataclass
class _Ending:
    step: Literal["tell", "requeue", "cancel", "kill"]
    child: Child | None = None
    due_ns: int = 0


@dataclass
class Unable:
    """The jobs that are ended. A process in a call of the driver that failed hangs, so SIGKILL
    follows as soon as Slurm knows.
    """

    policy: Literal["requeue", "stop"]
    clock: Clock
    queue: Queue | None
    job_of: Callable[[int], int | None]
    _endings: dict[int, _Ending] = field(default_factory=dict)

    def begin(self, away: Away, text: str) -> None:
        """Tell the job, while it still runs, then ask Slurm, which knows no `qgpu run`."""
        job_id = away.grant.job_id
        ending = self._endings[job_id] = _Ending("kill")
        if self.queue is not None and not is_run(job_id):
            ending.step, ending.child = "tell", self.queue.tell(job_id, text)
        self.advance(away, ())

    def advance(self, away: Away, listed: Iterable[int]) -> None:
        """Go on. `listed`: processes of the job on its cards."""
        job_id = away.grant.job_id
        ending = self._endings.get(job_id)
        if ending is None:
            return
        if ending.child is not None:
            self._asked(job_id, ending)
        if ending.child is None and self.clock.monotonic_ns() >= ending.due_ns:
            ending.due_ns = self.clock.monotonic_ns() + KILL_NS
            send_action("kill", {*away.pids, *listed}, away.grant, self.job_of)

    def _asked(self, job_id: int, ending: _Ending) -> None:
        done = None if ending.child is None else ending.child.poll()
        if done is None:
            return
        ending.child, failed = None, done.status != 0
        if failed:
            emit(logging.WARNING, "reclaim", step=ending.step, job=job_id, why=done.why)
        if self.queue is None or ending.step in ("cancel", "kill"):
            return
        if ending.step == "tell" and self.policy == "requeue":
            ending.step, ending.child = "requeue", self.queue.requeue(job_id)
        elif ending.step == "tell" or failed:
            ending.step, ending.child = "cancel", self.queue.cancel(job_id)

    def ended(self, job_id: int) -> None:
        """The job's grant ended."""
        ending = self._endings.pop(job_id, None)
        if ending is not None and ending.child is not None:
            ending.child.drop()
