"""Puts a job back into the queue, or cancels it, by Slurm's commands in the background."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from enforcer.clock import Clock
from enforcer.daemon.jobnotes import outside
from enforcer.daemon.reclaim.child import Child, start

LIMIT_NS = 5 * 10**9  # for one command: a Prolog waits for it, and a process that must end


class Queue(Protocol):
    """Slurm's queue."""

    def tell(self, job_id: int, text: str) -> Child:
        """Write a sentence to the job."""

    def requeue(self, job_id: int) -> Child:
        """Put the job back; status 0 if Slurm does so."""

    def cancel(self, job_id: int) -> Child:
        """Cancel the job."""


@dataclass(frozen=True)
class SlurmQueue:
    """The queue of the slurmctld that `scontrol` (an absolute path) asks."""

    scontrol: str
    clock: Clock

    def tell(self, job_id: int, text: str) -> Child:
        """As Queue has it."""
        return self._start(self.scontrol, "notify", str(job_id), text)

    def requeue(self, job_id: int) -> Child:
        """As Queue has it."""
        return self._start(self.scontrol, "requeue", str(job_id))

    def cancel(self, job_id: int) -> Child:
        """As Queue has it."""
        return self._start(str(Path(self.scontrol).with_name("scancel")), str(job_id))

    def _start(self, program: str, *words: str) -> Child:
        command = [*outside(os.environ, waits=True), program, *words]
        return start(program, command, dict(os.environ), self.clock, LIMIT_NS)
