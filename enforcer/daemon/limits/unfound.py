"""Jobs that run and whose cgroup is not found: the driver cannot limit them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enforcer.daemon.log import emit

UNRECORDED = (
    "no slurmstepd of job {job} is on record, as it loaded another release of qgpu_spank.so or none"
)
HOMELESS = (
    "the slurmstepd of job {job} is in no cgroup of the job: slurm.conf needs"
    " ProctrackType=proctrack/cgroup"
)
ELSEWHERE = "the cgroup {path} of job {job} is not in the cgroup tree that qgpud sees"


@dataclass
class Unfound:
    """Which jobs are unfound now, and the last reason while none was found after it.

    A job counts at the second look in a row: its slurmstepd may just be on its way.
    """

    _once: set[int] = field(default_factory=set)
    _now: dict[int, str] = field(default_factory=dict)
    _last: str = ""

    def why(self, job_id: int | None = None) -> str:
        """Why the cgroup of this job, or of any job, is not found; empty if it is."""
        return self._last if job_id is None else self._now.get(job_id, "")

    def note(
        self,
        job_id: int,
        found: bool,
        places: Sequence[str] | None,
        started: Callable[[int], bool | None],
    ) -> None:
        """What a look found of a job. `places`: where its slurmstepds say that it is; None if it
        has none on record.
        """
        if found:
            self.drop(job_id)
            self._last = ""
            return
        if job_id in self._now or (places is None and not started(job_id)):
            return
        if job_id not in self._once:
            self._once.add(job_id)
            return
        text = UNRECORDED if places is None else ELSEWHERE if places else HOMELESS
        self._last = self._now[job_id] = text.format(job=job_id, path=(places or ("",))[0])
        emit(logging.ERROR, "memory-no-cgroup", job=job_id, why=self._last)

    def drop(self, job_id: int) -> None:
        """Forget the job: it ended, or was found."""
        self._now.pop(job_id, None)
        self._once.discard(job_id)
