"""Compensates offline jobs for time that online jobs took: more time, or a requeue. Pure.

Slurm's clock runs on while a job is suspended on the card. Per QOS (`suspended` in qgpu.yaml) its
time limit grows by the loss, up to the partition's, or it is requeued after too great a loss.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gres.config.schema import SuspendedSettings

MINUTE = 60  # Slurm's time limits are whole minutes


@dataclass(frozen=True)
class RunningJob:
    """A job in slurmctld. `start` is CLOCK_REALTIME, `limit_s` None: unlimited, `most_s` the
    partition's.
    """

    job_id: int
    qos: str
    start: int
    limit_s: int | None
    most_s: int | None = None


@dataclass(frozen=True)
class Given:
    """What one run of a job got so far, in seconds.

    `bounded`: 1 once the partition allowed no more. `requeued`: number of requeues in all its runs.
    """

    start: int
    given_s: int = 0
    suspended_s: int = 0
    bounded: int = 0
    requeued: int = 0

    def as_dict(self) -> dict[str, int]:
        """The record for the file."""
        return asdict(self)

    @classmethod
    def of(cls, raw: Any) -> Given:
        """The record of the file. Raises TypeError or ValueError."""
        return cls(**{name: int(value) for name, value in raw.items()})


Kind = Literal["extend", "requeue", "bounded"]


@dataclass(frozen=True)
class Action:
    """What to do: `limit_s` is the new time limit of an extension; `bounded`: the partition allows
    none.
    """

    kind: Kind
    job_id: int
    limit_s: int = 0


def decide(
    job: RunningJob,
    suspended_s: float,
    before: Given | None,
    rule: SuspendedSettings,
    now: int,
    ahead_s: int,
) -> tuple[Action | None, Given]:
    """The action for a job suspended for `suspended_s` in this run, and its new record.

    A job near its limit that was suspended since the last pass gets `ahead_s` more, once, so that
    it does not end before the next pass.
    """
    given = before or Given(job.start)
    if given.start != job.start:
        given = Given(job.start, requeued=given.requeued)
    longer = int(suspended_s) > given.suspended_s
    known = replace(given, suspended_s=int(suspended_s))
    if rule.max_suspended is not None and suspended_s > rule.max_suspended.seconds:
        return Action("requeue", job.job_id), replace(known, requeued=known.requeued + 1)
    if not rule.extend_time or job.limit_s is None:
        return None, known
    wanted = job.limit_s - given.given_s + int(suspended_s)
    if longer and wanted - (now - job.start) < ahead_s:
        wanted += ahead_s
    wanted = -(-wanted // MINUTE) * MINUTE
    allowed = wanted if job.most_s is None else min(wanted, max(job.most_s, job.limit_s))
    if allowed > job.limit_s:
        more = allowed - job.limit_s
        return Action("extend", job.job_id, allowed), replace(known, given_s=given.given_s + more)
    if wanted > job.limit_s and not given.bounded:
        return Action("bounded", job.job_id), replace(known, bounded=1)
    return None, known
