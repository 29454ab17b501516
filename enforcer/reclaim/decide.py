"""Decides who leaves, who returns, and what each waiting claim gets.

Memory is promised in this order: to allocations of reserving jobs, to reserving jobs that wait for
their start, to allocations of reclaimable jobs (the oldest first), to jobs that left (the first to
leave first). What a reserving job has not used of its cap is kept for it throughout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.reclaim.choose import choose
from enforcer.reclaim.model import (
    Card,
    Claim,
    Decision,
    Final,
    Job,
    Leave,
    Order,
    Ready,
    Retry,
    Return,
    Room,
    Settings,
    Want,
)


def decide(
    cards: Iterable[Card],
    jobs: Iterable[Job],
    claims: Iterable[Claim],
    now_ns: int,
    rooms: Mapping[int, Room],
    settings: Settings,
) -> Decision:
    """The orders now. `rooms` is that of the decision before."""
    pass_ = _Pass({card.uuid: card.free for card in cards}, list(jobs), settings)
    pass_.reserving_wants()
    for claim in sorted(claims, key=lambda claim: (claim.since_ns, claim.job_id)):
        pass_.claim(claim)
    pass_.reclaimable_wants()
    found = pass_.returns(now_ns, rooms)
    return Decision(tuple(pass_.orders), found)


@dataclass
class _Pass:
    """One decision. `now`: free bytes that nobody was promised yet; `soon`: the same once the
    operations in flight are over; `kept`: what reserving jobs have not used of their caps.
    """

    now: dict[str, int]
    jobs: list[Job]
    settings: Settings
    soon: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    left: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.jobs.sort(key=lambda job: (job.since_ns, job.job_id))
        self.kept = dict.fromkeys(self.now, 0)
        freed = dict.fromkeys(self.now, 0)
        for job in self.jobs:
            for uuid, hold in job.cards.items():
                if uuid not in self.now:
                    continue  # a card that does not answer: nothing is promised there
                if job.reserving:
                    self.kept[uuid] += hold.unused
                elif job.state == "returning":
                    self.now[uuid] -= hold.coming
                elif job.state in ("leaving", "unable"):
                    freed[uuid] += hold.use
        self.soon = {uuid: free + freed[uuid] for uuid, free in self.now.items()}

    def _take(self, uuid: str, size: int) -> None:
        self.now[uuid] -= size
        self.soon[uuid] -= size

    def _candidates(self, uuids: Iterable[str], younger_than: Job | None = None) -> list[Job]:
        """Those that could leave and hold bytes of one of these cards."""
        wanted = set(uuids)
        return [
            job
            for job in self.jobs
            if not job.reserving
            and job.state == "resident"
            and job.job_id not in self.left
            and (younger_than is None or job.younger(younger_than))
            and any(hold.use for uuid, hold in job.cards.items() if uuid in wanted)
        ]

    def _leave(self, chosen: Iterable[Job], other: int) -> None:
        for job in chosen:
            self.orders.append(Leave(job.job_id, other))
            self.left.add(job.job_id)
            for uuid, hold in job.cards.items():
                if uuid in self.soon:
                    self.soon[uuid] += hold.use

    def _may_gain(self, uuid: str) -> bool:
        """Whether reclaimable jobs hold bytes of the card, or are about to."""
        return any(
            job.state == "returning" or (job.state != "checkpointed" and job.cards[uuid].use)
            for job in self.jobs
            if not job.reserving and uuid in job.cards
        )

    # ---- wants ----------------------------------------------------------------------------------

    def _wants(self, reserving: bool) -> list[tuple[Job, str, Want]]:
        """What jobs wait for, the oldest job first; what exceeds a cap is refused at once."""
        found = []
        for job in self.jobs:
            if job.reserving != reserving or job.state != "resident":
                continue
            for uuid, want in sorted(job.wants.items()):
                if uuid not in self.now or uuid not in job.cards:
                    continue
                hold = job.cards[uuid]
                if want.size + hold.use > hold.cap + self.settings.slack:
                    self.orders.append(Final(job.job_id, uuid))
                else:
                    found.append((job, uuid, want))
        return found

    def reserving_wants(self) -> None:
        """What a reserving job asks for within its cap is its own: reclaimable jobs leave."""
        for job, uuid, want in self._wants(reserving=True):
            if want.asked or self.now[uuid] >= want.needs:
                self._retry(job, uuid, want)
            else:
                lack = want.needs - self.soon[uuid]
                self._leave(choose({uuid: lack}, self._candidates([uuid])), job.job_id)
                if not self._may_gain(uuid):
                    self.orders.append(Final(job.job_id, uuid))
            self._take(uuid, want.size)
            self.kept[uuid] -= min(want.size, job.cards[uuid].unused)

    def reclaimable_wants(self) -> None:
        """A reclaimable job may make younger ones leave, where that suffices; else it waits."""
        for job, uuid, want in self._wants(reserving=False):
            if job.job_id in self.left:
                continue
            kept = self.kept[uuid]
            if want.asked or self.now[uuid] - kept >= want.needs:
                self._retry(job, uuid, want)
                self._take(uuid, want.size)
                continue
            lack = want.needs + kept - self.soon[uuid]
            younger = self._candidates([uuid], younger_than=job)
            if lack <= sum(other.cards[uuid].use for other in younger):
                self._leave(choose({uuid: lack}, younger), job.job_id)
                self._take(uuid, want.size)

    def _retry(self, job: Job, uuid: str, want: Want) -> None:
        if not want.asked:
            self.orders.append(Retry(job.job_id, uuid))

    # ---- claims and returns ---------------------------------------------------------------------

    def claim(self, claim: Claim) -> None:
        """A reserving job starts once its caps are free beside what others have not used yet."""
        needs = {u: cap + self.kept[u] for u, cap in claim.caps.items() if u in self.now}
        short = {uuid: need for uuid, need in needs.items() if self.now[uuid] < need}
        lack = {uuid: need - self.soon[uuid] for uuid, need in short.items()}
        self._leave(choose(lack, self._candidates(lack)), claim.job_id)
        if not any(self._may_gain(uuid) for uuid in short):
            self.orders.append(Ready(claim.job_id))
        for uuid in needs:
            self._take(uuid, claim.caps[uuid])

    def returns(self, now_ns: int, rooms: Mapping[int, Room]) -> dict[int, Room]:
        """Return those for which there was room long enough; the room for each that has some.

        While the first has no room, all its cards are closed for those that left after it.
        """
        found: dict[int, Room] = {}
        closed: set[str] = set()
        away = [job for job in self.jobs if not job.reserving and job.state == "checkpointed"]
        for job in sorted(away, key=lambda job: (job.left_ns, job.job_id)):
            before = rooms.get(job.job_id)
            to = self._place(job, closed, "" if before is None else before.to)
            if to is None:
                closed.update([job.wanted] if job.wanted else job.cards)
                continue
            same = before is not None and before.to == to
            found[job.job_id] = room = before if before and same else Room(now_ns, to)
            for uuid, size in _needs(job, to).items():
                self._take(uuid, size)
            if job.wanted or now_ns - room.since_ns >= self.settings.hysteresis_ns:
                self.orders.append(Return(job.job_id, to))
        return found

    def _place(self, job: Job, closed: Collection[str], before: str) -> str | None:
        """Where the job could return: "" to its own cards, else another one; None: nowhere.

        `before`: what was chosen last, so that no two cards take turns.
        """
        if not job.wanted and self._fits(_needs(job, ""), closed):
            return ""
        others = (job.wanted,) if job.wanted else job.elsewhere
        able = [uuid for uuid in others if self._fits(_needs(job, uuid), closed)]
        if before in able:
            return before
        return max(able, key=lambda uuid: (self.now[uuid] - self.kept[uuid], uuid), default=None)

    def _fits(self, needs: Mapping[str, int], closed: Collection[str]) -> bool:
        return all(
            uuid not in closed and uuid in self.now and self.now[uuid] - self.kept[uuid] >= size
            for uuid, size in needs.items()
        )


def _needs(job: Job, to: str) -> dict[str, int]:
    """The bytes that the job's return takes, by card."""
    if to:
        return {to: sum(hold.away for hold in job.cards.values())}
    return {uuid: hold.away for uuid, hold in job.cards.items()}
