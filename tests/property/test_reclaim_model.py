"""Whatever happens in which order: nobody starves, nothing is promised twice, all comes to rest."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from enforcer.reclaim.choose import EXACT, choose
from enforcer.reclaim.decide import decide
from enforcer.reclaim.model import (
    Card,
    Claim,
    Decision,
    Final,
    Hold,
    Job,
    Leave,
    Ready,
    Retry,
    Return,
    Room,
    Settings,
    State,
    Want,
)

SECOND = 10**9
TOTAL = 80
CARDS = ("a", "b")
MOVING = ("leaving", "returning", "unable")
RULES = Settings(hysteresis_ns=10 * SECOND)
CAPS = st.sampled_from([10, 20, 40, 60, TOTAL])
SHARES = st.sampled_from([30, 100])
NUMBERS = st.integers(0, 20)
ONE_OR_BOTH = st.sampled_from([("a",), ("b",), ("a", "b")])


@dataclass
class Known:
    """A job as the machine would have it."""

    number: int
    reserving: bool
    caps: dict[str, int]
    since: int
    started: bool
    use: dict[str, int] = field(default_factory=dict)
    away: dict[str, int] = field(default_factory=dict)
    wants: dict[str, Want] = field(default_factory=dict)
    state: State = "resident"
    left: int = 0
    may_move: bool = False

    def job(self) -> Job:
        cards = {
            uuid: Hold(cap, self.use.get(uuid, 0), self.away.get(uuid, 0))
            for uuid, cap in self.caps.items()
        }
        others = tuple(uuid for uuid in CARDS if uuid not in self.caps)
        return Job(
            self.number,
            self.reserving,
            cards,
            self.since,
            self.state,
            self.left,
            self.wants,
            others if self.may_move else (),
        )

    def go_to(self, uuid: str) -> None:
        """Its one card becomes another one."""
        self.caps = dict.fromkeys([uuid], *self.caps.values())
        self.away = dict.fromkeys([uuid], sum(self.away.values()))
        for want in self.wants.values():
            self.wants = dict.fromkeys([uuid], replace(want, tried=-1, asked=False))


class Node(RuleBasedStateMachine):
    """Two cards whose driver gives what is free, and jobs that come, grow, move and end."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Known] = {}
        self.now = 0
        self.room: dict[int, Room] = {}
        self.count = 0

    def free(self, uuid: str) -> int:
        return TOTAL - sum(job.use.get(uuid, 0) for job in self.jobs.values())

    def unused(self, uuid: str) -> int:
        """What reserving jobs that started may still take."""
        return sum(
            max(0, job.caps[uuid] - job.use.get(uuid, 0))
            for job in self.jobs.values()
            if job.reserving and job.started and uuid in job.caps
        )

    def promised(self, uuid: str) -> int:
        """What others were promised of the free memory: their caps, or the way back."""
        coming = sum(j.away.get(uuid, 0) for j in self.jobs.values() if j.state == "returning")
        return self.unused(uuid) + coming

    def above(self, uuid: str) -> int:
        """What comes before reclaimable jobs: that, and the caps of those that wait to start."""
        waiting = [job for job in self.jobs.values() if not job.started]
        return self.promised(uuid) + sum(job.caps.get(uuid, 0) for job in waiting)

    def before(self, job: Known) -> list[Known]:
        """Those away from its cards that left before it. It may return while the room of one of
        them has not lasted yet, but only beside that room.
        """
        return [
            other
            for other in self.jobs.values()
            if other.state == "checkpointed"
            and (other.left, other.number) < (job.left, job.number)
            and not other.caps.keys().isdisjoint(job.caps)
        ]

    def pick(self, number: int) -> Known | None:
        running = [job for job in self.jobs.values() if job.started]
        return running[number % len(running)] if running else None

    # ---- what happens ---------------------------------------------------------------------------

    @rule(cards=ONE_OR_BOTH, cap=CAPS)
    def reserving_comes(self, cards: tuple[str, ...], cap: int) -> None:
        """Slurm starts it only where the caps of reserving jobs fit."""
        booked = {
            uuid: sum(job.caps.get(uuid, 0) for job in self.jobs.values() if job.reserving)
            for uuid in cards
        }
        if all(used + cap <= TOTAL for used in booked.values()):
            self.come(True, dict.fromkeys(cards, cap))

    @rule(cards=ONE_OR_BOTH, cap=CAPS, share=SHARES, moves=st.booleans())
    def reclaimable_comes(self, cards: tuple[str, ...], cap: int, share: int, moves: bool) -> None:
        job = self.come(False, dict.fromkeys(cards, cap))
        job.may_move = moves and len(cards) == 1
        self.grow(job, share)

    def come(self, reserving: bool, caps: dict[str, int]) -> Known:
        self.count += 1
        known = Known(self.count, reserving, caps, self.now, not reserving)
        self.jobs[self.count] = known
        self.step()
        return known

    @rule(number=NUMBERS, share=SHARES)
    def grows(self, number: int, share: int) -> None:
        job = self.pick(number)
        if job is not None and job.state == "resident":
            self.grow(job, share)

    def grow(self, job: Known, share: int) -> None:
        for uuid, cap in job.caps.items():
            size = (cap - job.use.get(uuid, 0)) * share // 100
            if size and uuid not in job.wants:
                self.allocate(job, uuid, Want(size))
        self.step()

    def allocate(self, job: Known, uuid: str, want: Want) -> None:
        free = self.free(uuid)
        if want.size <= free:
            job.use[uuid] = job.use.get(uuid, 0) + want.size
            job.wants.pop(uuid, None)
        else:
            job.wants[uuid] = replace(want, tried=free if want.asked else -1, asked=False)

    @rule(number=NUMBERS, shrinks=st.booleans())
    def ends(self, number: int, shrinks: bool) -> None:
        job = self.pick(number)
        if job is not None and shrinks and job.state == "resident":
            job.use.clear()
        elif job is not None and not shrinks:
            del self.jobs[job.number]
        self.step()

    @rule(number=NUMBERS, unable=st.sampled_from([False, False, False, True]))
    def operation_ends(self, number: int, unable: bool) -> None:
        moving = [job for job in self.jobs.values() if job.state in MOVING]
        if not moving:
            return
        job = moving[number % len(moving)]
        if unable and job.state == "leaving":
            job.state = "unable"
        else:
            self.finish(job)
        self.step()

    def finish(self, job: Known) -> None:
        if job.state == "leaving":
            job.away, job.use, job.state = job.use, {}, "checkpointed"
        elif job.state == "returning":
            if all(self.free(uuid) >= size for uuid, size in job.away.items()):
                job.use, job.away, job.state = job.away, {}, "resident"
            else:
                job.state = "checkpointed"
        elif job.state == "unable":
            del self.jobs[job.number]

    @rule(seconds=st.integers(1, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.step()

    # ---- what is decided ------------------------------------------------------------------------

    def step(self) -> Decision:
        cards = [Card(uuid, self.free(uuid)) for uuid in CARDS]
        running = [job.job() for job in self.jobs.values() if job.started]
        waiting = [
            Claim(job.number, job.caps, job.since) for job in self.jobs.values() if not job.started
        ]
        found = decide(cards, running, waiting, self.now, self.room, RULES)
        self.room = dict(found.rooms)
        for order in found.orders:
            self.obey(order)
        return found

    def obey(self, order: Leave | Return | Retry | Final | Ready) -> None:
        job = self.jobs[order.job_id]
        match order:
            case Leave(_, other):
                assert not job.reserving and job.state == "resident"
                asks = self.jobs[other]
                assert asks.reserving or (asks.since, asks.number) < (job.since, job.number)
                job.state, job.left = "leaving", self.now
            case Return(_, to):
                assert job.state == "checkpointed"
                if to:
                    assert len(job.caps) == 1 and job.may_move and to not in job.caps
                    job.go_to(to)
                before = self.before(job)
                assert all(other.number in self.room for other in before), "it overtook one"
                stay = [other.away for other in before if not self.room[other.number].to]
                assert all(
                    self.free(uuid)
                    >= size + self.above(uuid) + sum(away.get(uuid, 0) for away in stay)
                    for uuid, size in job.away.items()
                ), "it returned to memory that is kept for others"
                job.state = "returning"
            case Retry(_, uuid):
                assert job.state == "resident"
                kept = 0 if job.reserving else self.above(uuid)
                assert self.free(uuid) >= job.wants[uuid].size + kept
                self.allocate(job, uuid, replace(job.wants[uuid], asked=True))
                assert uuid not in job.wants, "a retry where too little was free"
            case Final():
                raise AssertionError("all that fits into the cap is found in the end")
            case Ready():
                assert not job.started
                for uuid, cap in job.caps.items():
                    assert self.free(uuid) >= cap + self.promised(uuid)
                job.started = True

    @invariant()
    def fits(self) -> None:
        assert all(self.free(uuid) >= 0 for uuid in CARDS)

    def teardown(self) -> None:
        """Without further events all comes to rest, and nobody waits for what can be had."""
        for _ in range(8 * len(self.jobs) + 30):
            for job in list(self.jobs.values()):
                self.finish(job)
            self.now += SECOND
            if not self.step().orders and not self.room and not self.moving():
                break
        else:
            raise AssertionError("it never came to rest")
        assert all(job.started for job in self.jobs.values()), "a reserving job starved"
        assert not any(job.wants for job in self.jobs.values() if job.reserving)
        self.oldest_goes_on()

    def moving(self) -> bool:
        return any(job.state in MOVING for job in self.jobs.values())

    def oldest_goes_on(self) -> None:
        """Of the reclaimable jobs on a card the oldest lacks only what reserving jobs keep."""
        here = [j for j in self.jobs.values() if not j.reserving and j.state == "resident"]
        for job in here:
            for uuid, want in job.wants.items():
                younger = sum(
                    other.use.get(uuid, 0)
                    for other in here
                    if (other.since, other.number) > (job.since, job.number)
                )
                assert self.free(uuid) - self.unused(uuid) + younger < want.size


def test_one_whose_room_lasted_returns_beside_the_younger_room_of_one_that_left_before() -> None:
    node = Node()
    for cap, share in ((TOTAL, 30), (20, 100), (20, 100)):
        node.reclaimable_comes(("a",), cap, share, moves=False)
    node.grows(0, 100)
    node.ends(0, shrinks=False)
    first, second = node.jobs.values()
    assert (first.state, second.state) == ("leaving", "leaving")
    node.operation_ends(1, unable=False)
    node.time_passes(1)
    node.operation_ends(0, unable=False)
    assert node.room == {first.number: Room(SECOND), second.number: Room(0)}
    node.time_passes(9)
    assert (first.state, second.state) == ("checkpointed", "returning")
    node.time_passes(1)
    assert (first.state, second.state) == ("returning", "returning")


TestNode = Node.TestCase
TestNode.settings = settings(stateful_step_count=40, deadline=None)


@st.composite
def crowds(draw: st.DrawFn, most: int) -> tuple[dict[str, int], list[Job]]:
    count = draw(st.integers(1, most))
    jobs = []
    for number in range(1, count + 1):
        uses = {uuid: draw(st.integers(0, 40)) for uuid in draw(ONE_OR_BOTH)}
        cards = {uuid: Hold(TOTAL, use) for uuid, use in uses.items()}
        jobs.append(Job(number, False, cards, since_ns=draw(st.integers(0, 5))))
    return {uuid: draw(st.integers(1, 120)) for uuid in draw(ONE_OR_BOTH)}, jobs


def freed(jobs: list[Job], uuid: str) -> int:
    return sum(job.cards[uuid].use for job in jobs if uuid in job.cards)


def goal_of(short: dict[str, int], jobs: list[Job]) -> dict[str, int]:
    return {uuid: min(lack, freed(jobs, uuid)) for uuid, lack in short.items()}


@given(crowds(most=7))
def test_who_leaves_is_the_fewest_bytes_that_suffice(
    crowd: tuple[dict[str, int], list[Job]],
) -> None:
    short, jobs = crowd
    chosen, goal = choose(short, jobs), goal_of(short, jobs)
    assert all(freed(chosen, uuid) >= lack for uuid, lack in goal.items())
    least = min(
        sum(job.size for job in some)
        for count in range(len(jobs) + 1)
        for some in combinations(jobs, count)
        if all(freed(list(some), uuid) >= lack for uuid, lack in goal.items())
    )
    assert sum(job.size for job in chosen) == least


@given(crowds(most=EXACT + 12))
@settings(deadline=None)
def test_a_crowd_suffices_too_and_none_of_it_leaves_in_vain(
    crowd: tuple[dict[str, int], list[Job]],
) -> None:
    short, jobs = crowd
    chosen, goal = choose(short, jobs), goal_of(short, jobs)
    assert all(freed(chosen, uuid) >= lack for uuid, lack in goal.items())
    for job in chosen:
        rest = [other for other in chosen if other is not job]
        assert not all(freed(rest, uuid) >= lack for uuid, lack in goal.items())


@pytest.mark.parametrize("seed", range(30))
def test_a_long_day_comes_to_rest_too(seed: int) -> None:
    """The same node with more events than a state machine draws."""
    node, chance = Node(), Random(seed)
    caps, both = [10, 20, 40, 60, TOTAL], [("a",), ("b",), ("a", "b")]
    for _ in range(300):
        number, share = chance.randrange(20), chance.choice([30, 100])
        event = chance.choices(range(6), [2, 3, 3, 4, 4, 8])[0]
        if event == 0:
            node.reserving_comes(chance.choice(both), chance.choice(caps))
        elif event == 1:
            moves = bool(chance.getrandbits(1))
            node.reclaimable_comes(chance.choice(both), chance.choice(caps), share, moves)
        elif event == 2:
            node.grows(number, share)
        elif event == 3:
            node.ends(number, chance.random() < 0.3)
        elif event == 4:
            node.operation_ends(number, chance.random() < 0.1)
        else:
            node.time_passes(chance.randrange(1, 15))
        node.fits()
    node.teardown()
