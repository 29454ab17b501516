"""A day of a node with and without memory that is taken back, under qgpud's own decision.

Slurm's placement (spread) and the jobs are a model; nothing of it runs on a card. Online jobs come
by a daily rhythm and use a part of their caps. Offline jobs always wait for a place. The same
arrivals are played three times: offline memory reserved, reclaimable, and reclaimable without a
decision, as a control in which online jobs must be refused memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.harness.figures import Figure
from enforcer.reclaim.decide import decide
from enforcer.reclaim.model import (
    Card,
    Claim,
    Hold,
    Job,
    Leave,
    Order,
    Ready,
    Return,
    Room,
    Settings,
    State,
)
from gres.request.reservation import CARD_SHARDS, shards

GIB = 1 << 30
CARDS, USABLE = 4, 78  # cards of the node; GiB of one that jobs may have
DAY_S, STEP_S = 86_400, 10
LINK = 50e9  # bytes a second, the simulator's --copy-gbs
HYSTERESIS_S = 10
MOST_RECLAIMABLE = 2.0  # of a card's usable memory, qgpu.yaml's default
QUEUE = 12  # offline jobs that wait at any time
SEEDS, FEW_SEEDS = 3, 1
Mode = Literal["reserved", "reclaimable", "without reclaiming"]  # of offline memory


@dataclass(frozen=True)
class Planned:
    """A job that comes at `at` s. `cap` in GiB; `part` of it is used. `work` in seconds: an online
    job's length, an offline job's time on a card of its own.
    """

    number: int
    online: bool
    at: int
    cap: int
    part: float
    work: float

    @property
    def use(self) -> int:
        """Bytes."""
        return int(self.cap * GIB * self.part)


def arrivals(seed: int) -> tuple[list[Planned], list[Planned]]:
    """Online jobs of a day, and as many offline jobs as could run."""
    draw = random.Random(seed)
    online, at = list[Planned](), 0.0
    while True:
        rhythm = 1 + 0.8 * math.sin(2 * math.pi * (at / DAY_S - 0.3))  # most in the afternoon
        at += draw.expovariate(CARDS * rhythm / 4800)
        if at >= DAY_S:
            break
        cap, part = draw.choice((10, 20, 30, 50, 70)), draw.uniform(0.3, 0.95)
        length = min(draw.lognormvariate(math.log(2400), 0.8), DAY_S)
        online.append(Planned(len(online) + 1, True, int(at), cap, part, length))
    offline = [
        Planned(
            10_000 + i,
            False,
            0,
            draw.choice((10, 20, 40, 60, 70)),
            draw.uniform(0.5, 0.95),
            draw.lognormvariate(math.log(5400), 0.8),
        )
        for i in range(2000)
    ]
    return online, offline


@dataclass
class Run:
    """A job that has a card. `state` as in enforcer/reclaim; `until`: the end of an operation."""

    plan: Planned
    since: int
    booked: int
    state: State = "resident"
    started: bool = True  # False: its Prolog waits for memory
    until: int = 0
    left: int = 0
    left_work: float = 0.0

    @property
    def bytes(self) -> int:
        """What it has on the card now."""
        return self.plan.use if self.started and self.state != "checkpointed" else 0


@dataclass
class Tally:
    """Sums over a day, in byte seconds and seconds."""

    used: float = 0.0
    done: float = 0.0  # offline work
    assigned: float = 0.0  # card time with offline jobs
    stalled: float = 0.0  # the part of it in which none of them was on the card
    queued: float = 0.0  # seconds that online jobs waited for a place
    refused: int = 0  # online jobs whose memory was not there
    waits: list[float] = field(default_factory=list)  # of Prologs that waited
    moves: int = 0

    def add(self, other: Tally) -> None:
        """Of another day."""
        self.used += other.used
        self.done += other.done
        self.assigned += other.assigned
        self.stalled += other.stalled
        self.refused += other.refused
        self.queued += other.queued
        self.waits += other.waits
        self.moves += other.moves


@dataclass
class Place:
    """One card. Offline jobs share what online leaves of its time evenly."""

    uuid: str
    mode: Mode
    runs: list[Run] = field(default_factory=list)
    room: dict[int, Room] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Bytes."""
        return USABLE * GIB - sum(run.bytes for run in self.runs)

    @property
    def booked(self) -> int:
        """Shards."""
        return sum(run.booked for run in self.runs)

    def booking(self, plan: Planned) -> int:
        """Shards; the share goes with the memory."""
        if not plan.online and self.mode != "reserved":
            return 1
        share = max(1, 100 * plan.cap // USABLE)
        return shards(share, plan.cap * 1024, USABLE * 1024, plan.online)

    def fits(self, plan: Planned) -> bool:
        """Whether Slurm places it here, and qgpud takes it."""
        booked = self.booked + self.booking(plan)
        caps = sum(run.plan.cap for run in self.runs if not run.plan.online) + plan.cap
        bounded = plan.online or self.mode == "reserved" or caps <= MOST_RECLAIMABLE * USABLE
        return booked <= CARD_SHARDS and bounded

    def jobs(self) -> Iterator[Job]:
        """As qgpud sees them."""
        for run in self.runs:
            if run.started:
                use = 0 if run.state in ("checkpointed", "returning") else run.plan.use
                hold = Hold(run.plan.cap * GIB, use, 0 if use else run.plan.use)
                since, left = run.since * 10**9, run.left * 10**9
                number, reserving = run.plan.number, run.plan.online or self.mode == "reserved"
                yield Job(number, reserving, {self.uuid: hold}, since, run.state, left)

    def decide(self, now: int) -> Sequence[Order]:
        """What qgpud would order."""
        waiting = [run for run in self.runs if not run.started]
        claims = [
            Claim(run.plan.number, {self.uuid: run.plan.cap * GIB}, run.since * 10**9)
            for run in waiting
        ]
        coming = sum(run.plan.use for run in self.runs if run.state == "returning")
        card = Card(self.uuid, self.free + coming)
        settings = Settings(hysteresis_ns=HYSTERESIS_S * 10**9)
        found = decide([card], self.jobs(), claims, now * 10**9, self.room, settings)
        self.room = dict(found.rooms)
        return found.orders

    def act(self, now: int, tally: Tally) -> None:
        """Carry the orders out."""
        by_number = {run.plan.number: run for run in self.runs}
        for order in self.decide(now):
            run = by_number[order.job_id]
            takes = max(STEP_S, math.ceil(run.plan.use / LINK / STEP_S) * STEP_S)
            if isinstance(order, Leave):
                run.state, run.until = "leaving", now + takes
                tally.moves += 1
            elif isinstance(order, Return):
                run.state, run.until = "returning", now + takes
            elif isinstance(order, Ready):
                run.started = True
                tally.waits.append(now - run.since)
                tally.refused += self.free < 0

    def step(self, now: int, tally: Tally) -> None:
        """STEP_S seconds of the card."""
        for run in self.runs:
            if run.state == "leaving" and now >= run.until:
                run.state, run.left = "checkpointed", now
            elif run.state == "returning" and now >= run.until:
                run.state = "resident"
        if self.mode == "reclaimable":
            self.act(now, tally)
        here = [run for run in self.runs if not run.plan.online]
        active = [run for run in here if run.state == "resident"]
        busy = 0.3 if any(run.plan.online and run.started for run in self.runs) else 0.0
        tally.assigned += STEP_S * bool(here)
        tally.stalled += STEP_S * (bool(here) and not active)
        tally.used += STEP_S * min(sum(run.bytes for run in self.runs), USABLE * GIB)
        for run in active:
            run.left_work -= STEP_S * (1 - busy) / len(active)
            tally.done += STEP_S * (1 - busy) / len(active)
        self.runs = [run for run in self.runs if not ended(run, now)]


def ended(run: Run, now: int) -> bool:
    """Whether its work is done."""
    if run.plan.online:
        return run.started and now >= run.since + run.plan.work
    return run.left_work <= 0


def start(place: Place, plan: Planned, now: int, tally: Tally) -> None:
    """Slurm starts a job. A reserving one waits in its Prolog where qgpud decides."""
    run = Run(plan, now, place.booking(plan), left_work=plan.work)
    run.started = not (plan.online and place.mode == "reclaimable")
    if not plan.online and place.mode == "reclaimable" and place.free < plan.use:
        run.state, run.left = "checkpointed", now  # its first allocation waits for room
    place.runs.append(run)
    if run.started and plan.online and place.free < 0:
        tally.refused += 1


def play(seed: int, mode: Mode) -> Tally:
    """A day."""
    online, offline = arrivals(seed)
    places = [Place(f"card{i}", mode) for i in range(CARDS)]
    tally, waiting = Tally(), list[Planned]()
    for now in range(0, DAY_S, STEP_S):
        while online and online[0].at <= now:
            waiting.append(online.pop(0))
        for plan in [*waiting, *offline[:QUEUE]]:
            fitting = (place for place in places if place.fits(plan))
            place = min(fitting, key=lambda place: place.booked, default=None)
            if place is not None:
                start(place, plan, now, tally)
                tally.queued += (now - plan.at) * plan.online
                (waiting if plan.online else offline).remove(plan)
        for place in places:
            place.step(now, tally)
    return tally


def total(mode: Mode, seeds: Sequence[int]) -> Tally:
    """Several days."""
    found = Tally()
    for seed in seeds:
        found.add(play(seed, mode))
    return found


def of_mode(mode: Mode, tally: Tally, online: int, days: int) -> Iterator[Figure]:
    """What a way to book memory gives, without a promise."""
    most = days * CARDS * DAY_S
    in_use, work = 100 * tally.used / most / (USABLE * GIB), 100 * tally.done / most
    yield Figure(f"day_memory_in_use_{mode}", in_use, "%", None, ">=", days)
    yield Figure(f"day_offline_work_{mode}", work, "%", None, ">=", days)
    yield Figure(f"day_online_queued_{mode}", tally.queued / online, "s", None, "<=", online)


def figures(quick: bool) -> Iterator[Figure]:
    """Memory in use, offline's work, online's wait, and what leaving costs."""
    seeds = range(1, 1 + (FEW_SEEDS if quick else SEEDS))
    online = sum(len(arrivals(seed)[0]) for seed in seeds)
    days = len(seeds)
    yield from of_mode("reserved", total("reserved", seeds), online, days)
    taken = total("reclaimable", seeds)
    yield from of_mode("reclaimable", taken, online, days)
    lost = 100 * taken.stalled / taken.assigned
    spread = f"({taken.moves / days:.0f} moves a day at {LINK / 1e9:.0f} GB/s)"
    yield Figure("day_offline_without_memory", lost, "%", None, "<=", days, spread)
    waits = sorted(taken.waits)
    p99 = waits[len(waits) * 99 // 100] if waits else 0.0
    yield Figure("day_prolog_wait_p99", p99, "s", None, "<=", len(waits))
    yield Figure("day_online_refused", taken.refused, "jobs", 0, "<=", days)
    control = total("without reclaiming", seeds).refused
    name = "day_online_refused_without_reclaiming"
    yield Figure(name, control, "jobs", 0, "<=", days, control=True)
