"""Chooses the jobs that leave: the fewest bytes that suffice, the youngest of equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from enforcer.reclaim.model import Job

EXACT = 12  # candidates up to which all 4096 choices are compared


def choose(short: Mapping[str, int], candidates: Iterable[Job]) -> list[Job]:
    """The jobs that free `short` bytes of each card; where all together free less, all of these.

    A job moves as a whole, so its bytes on other cards count as well.
    """
    jobs = [job for job in candidates if any(_use(job, uuid) for uuid in short)]
    goal = {uuid: min(lack, _freed(jobs, uuid)) for uuid, lack in short.items()}
    goal = {uuid: lack for uuid, lack in goal.items() if lack > 0}
    if not goal:
        return []
    return _exact(goal, jobs) if len(jobs) <= EXACT else _greedy(goal, jobs)


def _use(job: Job, uuid: str) -> int:
    hold = job.cards.get(uuid)
    return 0 if hold is None else hold.use


def _freed(jobs: Iterable[Job], uuid: str) -> int:
    return sum(_use(job, uuid) for job in jobs)


def _suffices(goal: Mapping[str, int], jobs: Sequence[Job]) -> bool:
    return all(_freed(jobs, uuid) >= lack for uuid, lack in goal.items())


def _exact(goal: Mapping[str, int], jobs: list[Job]) -> list[Job]:
    def cost(chosen: Iterable[Job]) -> tuple[int, list[int], list[int]]:
        chosen = list(chosen)
        ages = sorted(job.since_ns for job in chosen)
        return sum(job.size for job in chosen), [-age for age in ages], [-j.job_id for j in chosen]

    found = (
        chosen
        for count in range(1, len(jobs) + 1)
        for chosen in combinations(jobs, count)
        if _suffices(goal, chosen)
    )
    return list(min(found, key=cost))


def _greedy(goal: Mapping[str, int], jobs: list[Job]) -> list[Job]:
    """The youngest first until they suffice, then without those that are not needed."""
    chosen: list[Job] = []
    for job in sorted(jobs, key=lambda job: (job.since_ns, job.job_id), reverse=True):
        if _suffices(goal, chosen):
            break
        if any(_use(job, uuid) and _freed(chosen, uuid) < lack for uuid, lack in goal.items()):
            chosen.append(job)
    for job in sorted(chosen, key=lambda job: job.size, reverse=True):
        less = [other for other in chosen if other is not job]
        if _suffices(goal, less):
            chosen = less
    return chosen
