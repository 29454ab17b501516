"""What is run at one point of the sweep, and what its trace says: two runs, since few processors
play few cards.

The first: 16 offline tenants beside online, offline beside online, two that share (burst-share).
The second: two that share under fixed-share, two with mixed kernels, and online's latencies beside
offline with a twin that is alone on another card. Where launch calls stall, they do at one tenant
of each card, and its neighbours are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.patterns import PATTERNS
from bench.harness.scene import Actor, Scene, admit, endless, play, rig
from bench.harness.stalls import Stalls, held, stalled
from bench.promises.harvest import p99_ratio
from bench.promises.preempt import (
    BUSY_S,
    IDLE_S,
    OFFLINE_JOB,
    RELEASE_MS,
    TENANTS,
    episodes,
    offline_jobs,
    online_job,
)
from bench.promises.shares import S, judge
from bench.sweep.points import Point
from simulator.judge import evaluate as ev
from simulator.judge import shares as sh

FREE_US = 1000
SHARES = {401: 30, 402: 70}
FIXED = {501: 30, 502: 70}
MIXED = {511: 25, 512: 75}
SHARE_US, MIXED_US = 1000, (100, 1000, 10_000)
ONE_IN_20, ONE_IN_8 = "10 % of 1 s", "Poisson 20/s"  # requests that may find offline on the card
P99_OFFLINE_US = 200
STEADY_PATTERN = ("--busy", f"{BUSY_S}", "--idle", f"{IDLE_S}")


@dataclass(frozen=True)
class ShareErrors:
    """Points of two tenants that share, and what is left of that where the first one's launch calls
    stall.
    """

    total: float  # by the time that a tenant held the card
    worst_1s: float
    executed: float  # by executed work: a stalled card executes none
    above: float  # more than its share of the time, by what was executed
    above_1s: float  # the same in the worst second, beyond one kernel
    lost: float  # what the second one had less than its share of the time, by the time held
    used: float  # what the second one had of the time that the first one left
    changes: float  # of process, per second


@dataclass(frozen=True)
class Result:
    """The result of the first run of a point."""

    close_us: Sequence[float]
    free_us: Sequence[float]  # without bursts that began while the card was stalled
    back_ms: Sequence[float]
    spoilt: int  # those
    harvest: float  # of one offline tenant; where calls stall, of two, one of which waits in them
    harvest_many: float  # of 16 tenants, which also pay for changes of context
    share: ShareErrors


@dataclass(frozen=True)
class Further:
    """What the second run of a point says. `ratio`: of online's p99; `others`: of requests at
    random times.

    Both without the requests in whose time the card stood still: on either card they are late by
    that.
    """

    fixed: ShareErrors
    mixed: ShareErrors
    ratio: float
    others: float | None
    spoilt: int = 0  # requests that were left out for that, beside offline


@dataclass(frozen=True)
class Cast:
    """The jobs of the first run."""

    online: Actor
    many: Sequence[Actor]
    twin: Actor
    beside: Sequence[Actor]
    sharing: Sequence[Actor]

    @property
    def actors(self) -> list[Actor]:
        """All of them."""
        return [self.online, *self.many, self.twin, *self.beside, *self.sharing]


@dataclass(frozen=True)
class Pair:
    """An online job beside an offline one, and the same one alone on another card."""

    shared: Actor
    offline: Actor
    alone: Actor

    @property
    def actors(self) -> list[Actor]:
        """All of them."""
        return [self.shared, self.offline, self.alone]


def sharers(shares: Mapping[int, int], card: int, *lengths_us: float) -> list[Actor]:
    """Tenants that share a card and always have work."""
    return [
        Actor(job, "offline", share, (*endless(*lengths_us), "--seed", str(job)), card=card)
        for job, share in shares.items()
    ]


def alone_with(point: Point, card: int) -> tuple[Actor, list[Actor]]:
    """online and one offline tenant beside it; where calls stall, another one whose calls do."""
    jobs = (301, 302) if point.stalls == "call" else (301,)
    beside = [
        Actor(job, "offline", 30 // len(jobs), endless(point.kernel_us), card=card) for job in jobs
    ]
    return online_job(*STEADY_PATTERN, card=card), beside


def cast(point: Point) -> Cast:
    """16 offline tenants beside online, one beside online (two where
    calls stall), two that share.
    """
    twin, beside = alone_with(point, 1)
    return Cast(
        online_job(*STEADY_PATTERN),
        offline_jobs(TENANTS, point.kernel_us),
        twin,
        beside,
        sharers(SHARES, 2, SHARE_US),
    )


def pair(pattern: str, card: int) -> Pair:
    """An online job with this load on this card and the same draws on the next one."""
    load: dict[str, Any] = {"kernel_us": 100, "per_request": 50}
    shared, alone = (
        online_job(*PATTERNS[pattern], card=number, **load) for number in (card, card + 1)
    )
    job = OFFLINE_JOB + 100 * card
    return Pair(shared, Actor(job, "offline", 30, endless(P99_OFFLINE_US), card=card), alone)


def pairs(point: Point) -> list[Pair]:
    """Who tells of online's p99.

    Where a request that finds offline is late beyond reach, there are also requests at random
    times: one of eight finds offline, and p99 is among those that waited for another request.
    """
    patterns = (ONE_IN_20, ONE_IN_8) if point.p99_beyond else (ONE_IN_20,)
    return [pair(pattern, 2 + 2 * number) for number, pattern in enumerate(patterns)]


def harvest(scene: Scene, online: Actor, offline: Sequence[Actor], stalls: Stalls) -> float:
    """harvest_ratio of these jobs, less what the card stood still in the time that policy allows
    them.
    """
    span, release = (scene.start, scene.end), RELEASE_MS * ev.NS_PER_MS
    bursts = scene.bursts(online.job_id, release // 2)
    allowed = ev.free_stretches(bursts, *span, release)
    left = sum(high - low - stalls.inside(low, high) for low, high in allowed)
    return ev.work_inside(scene.of(*(a.job_id for a in offline)), allowed) / left


def share_errors(
    scene: Scene,
    jobs: Mapping[int, float],
    policy: str = "burst-share",
    longest_us: float = SHARE_US,
) -> ShareErrors:
    """The errors of two tenants, and the second one's part."""
    served = sh.services(held(scene.of(*jobs)), {job: scene.pids[job] for job in jobs})
    span, rule = (scene.start, scene.end), sh.RULES[policy]
    wall = span[1] - span[0]
    first, second = (served[job].within(*span) for job in jobs)
    executed = judge(scene, jobs, policy, longest_us)
    return ShareErrors(
        total=sh.worst(sh.errors(served, jobs, *span, rule), span[0]).points,
        worst_1s=sh.worst_window(served, jobs, span, min(S, wall), rule).points,
        executed=executed.total,
        above=max(sh.errors(scene.served, jobs, *span, sh.fixed_rule).values()),
        above_1s=executed.above_1s,
        lost=max(0.0, list(jobs.values())[1] - 100 * second / wall),
        used=second / (wall - first),
        changes=executed.price.switches_per_s,
    )


def measure_ratio(point: Point, seconds: float) -> float:
    """online's p99 over that of its twin at this point, in a run of nothing else."""
    two = pair(ONE_IN_20, 0)
    with rig(cards=2, sim_options=point.options) as node:
        admit(node, two.actors)
        with stalled(node, point.stalls, [[two.offline]]) as stalls:
            scene = play(node, two.actors, seconds)
    return p99_ratio(scene, two.shared.job_id, two.alone.job_id, stalls.meet)


def measure_harvest(point: Point, count: int) -> float:
    """harvest_ratio at this point, in a run of nothing else."""
    online, beside = alone_with(point, 0)
    with rig(cards=1, sim_options=point.options) as node:
        admit(node, [online, *beside])
        with stalled(node, point.stalls, [beside[-1:]]) as stalls:
            scene = play(node, [online, *beside], count * (BUSY_S + IDLE_S))
    return harvest(scene, online, beside, stalls)


def measure(point: Point, count: int, **settings: Any) -> Result:
    """The first run: that number of online bursts at this point, with
    these settings of the cards.
    """
    who = cast(point)
    victims = [who.many, who.beside[-1:], who.sharing[:1]]
    with rig(cards=3, sim_options=point.options, settings=settings) as node:
        admit(node, who.actors)
        with stalled(node, point.stalls, victims) as stalls:
            scene = play(node, who.actors, count * (BUSY_S + IDLE_S))
    run = episodes(scene, who.online, who.many)
    fair = [b for b in run.online if not stalls.meet(b.call, b.call + FREE_US * 1000)]
    return Result(
        ev.gate_close_us(run.online, run.gates),
        ev.card_free_us(fair, run.offline),
        run.handbacks_ms,
        len(run.online) - len(fair),
        harvest(scene, who.twin, who.beside, stalls),
        harvest(scene, who.online, who.many, stalls),
        share_errors(scene, SHARES),
    )


def measure_further(point: Point, count: int) -> Further:
    """The second run, as long as the first."""
    fixed, mixed, online = sharers(FIXED, 0, SHARE_US), sharers(MIXED, 1, *MIXED_US), pairs(point)
    actors = [*fixed, *mixed, *(actor for two in online for actor in two.actors)]
    victims = [fixed[:1], mixed[:1], *([two.offline] for two in online)]
    cards = {0: {"policy_offline": "fixed-share"}}
    with rig(cards=2 + 2 * len(online), sim_options=point.options, card_settings=cards) as node:
        admit(node, actors)
        with stalled(node, point.stalls, victims) as stalls:
            scene = play(node, actors, count * (BUSY_S + IDLE_S))
    ratios = [p99_ratio(scene, two.shared.job_id, two.alone.job_id, stalls.meet) for two in online]
    beside = [two.shared.job_id for two in online]
    return Further(
        share_errors(scene, FIXED, "fixed-share"),
        share_errors(scene, MIXED, longest_us=max(MIXED_US)),
        ratios[0],
        ratios[1] if len(ratios) > 1 else None,
        sum(
            len(scene.latencies_us(job)) - len(scene.latencies_us(job, stalls.meet))
            for job in beside
        ),
    )
