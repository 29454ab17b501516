"""Measures what offline gets of online's pauses, and what online pays for it.

Online is a service (Poisson requests of 50 dependent kernels of 100 us) or works in duty cycles
with the same requests; offline submits 200 us kernels without pause. Each run has a twin at the
same time on a second card: the same online job with the same draws and no neighbour. So a stall of
this machine hits both, and the comparison is of the card, not the CPU. A pattern near a target, on
either side, runs three times: the medians count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.figures import NEAR, Figure, enough_runs
from bench.harness.patterns import PATTERNS, REQUEST
from bench.harness.scene import Scene, calm_play
from bench.promises.preempt import ONLINE_JOB, RELEASE_MS, TENANTS, offline_jobs, online_job
from simulator.judge import evaluate as ev

SECONDS, FEW_SECONDS = 14.0, 6.0
SELDOM = {"Poisson 5/s": 60.0, "10 % of 1 s": 24.0}  # so few requests that p99 needs a longer run
MANY_SECONDS = {"Poisson 5/s": 20.0, "10 % of 1 s": 14.0}
HARVEST, P99_RATIO = 0.97, 1.05
LEAST_ALLOWED = 0.05  # of the time; where policy allows offline less, a ratio of it says nothing
QUICK = ("Poisson 20/s", "10 % of 1 s", "50 % of 1 s")
QUICK_MANY = ("10 % of 1 s",)


@dataclass(frozen=True)
class Outcome:
    """One pattern: what policy allows offline as a part of the time, offline's work over it and
    over the time, and online's p99 beside offline over its p99 alone.
    """

    allowed_share: float
    harvest: float
    offline_share: float
    p99_ratio: float
    runs: int = 1

    @property
    def near(self) -> bool:
        """Whether another run could come to the other verdict."""
        judged = self.allowed_share >= LEAST_ALLOWED
        return (judged and 1 - self.harvest > NEAR * (1 - HARVEST)) or self.p99_ratio - 1 > NEAR * (
            P99_RATIO - 1
        )


def of_runs(runs: Sequence[Outcome]) -> Outcome:
    """The result of several runs of one pattern: the median of each value."""
    return Outcome(
        statistics.median(run.allowed_share for run in runs),
        statistics.median(run.harvest for run in runs),
        statistics.median(run.offline_share for run in runs),
        statistics.median(run.p99_ratio for run in runs),
        len(runs),
    )


def p99_ratio(
    scene: Scene, beside: int, alone: int, spoilt: Callable[[int, int], bool] | None = None
) -> float:
    """The ratio over all requests of the run, less those of which `spoilt` says so
    (Scene.latencies_us).

    Not a median over parts of it: a request after a pause that found offline on the card is late by
    some percent, and in a part with 100 requests whether p99 is such a one is a matter of where the
    part begins.
    """
    late, usual = (ev.percentile(scene.latencies_us(job, spoilt), 99) for job in (beside, alone))
    return late / usual


def measure(
    pattern: Sequence[str],
    seconds: float,
    release_ms: int = RELEASE_MS,
    tenants: int = 1,
    **settings: Any,
) -> Outcome:
    """One run of a pattern beside that number of offline tenants, and of its twin, with these
    settings.
    """
    shared = online_job(*pattern, **REQUEST)
    single = online_job(*pattern, card=1, **REQUEST)
    neighbours = offline_jobs(tenants, 200)
    actors = [shared, single, *neighbours]
    scene = calm_play(actors, seconds, cards=2, settings=settings | {"idle_release_ms": release_ms})
    release = release_ms * ev.NS_PER_MS
    online = scene.bursts(ONLINE_JOB, max(release // 2, ev.NS_PER_MS))
    offline = scene.of(*(actor.job_id for actor in neighbours))
    span = (scene.start, scene.end)
    wall = scene.end - scene.start
    return Outcome(
        ev.allowed_ns(online, *span, release) / wall,
        ev.harvest_ratio(online, offline, *span, release),
        ev.work_ns(offline, *span) / wall,
        p99_ratio(scene, ONLINE_JOB, single.job_id),
    )


def settled(pattern: Sequence[str], seconds: float) -> Outcome:
    """The same as `measure` beside one tenant, of one run where that is enough."""
    return of_runs(enough_runs(lambda: measure(pattern, seconds), lambda outcome: outcome.near))


def _each(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {value:.3f}" for name, value in values.items())


def judged(found: Mapping[str, Outcome]) -> Iterator[Figure]:
    """harvest_ratio over the patterns that allow something, and the worst p99 ratio of all."""
    harvests = {k: o.harvest for k, o in found.items() if o.allowed_share >= LEAST_ALLOWED}
    worst = min(harvests, key=lambda k: harvests[k])
    rest = [name for name in found if name not in harvests]
    nothing = f"; no pause to speak of at {', '.join(rest)}" if rest else ""
    note = f"(worst at {worst}; {_each(harvests)}{nothing})"
    runs = found[worst].runs
    yield Figure("harvest_ratio", harvests[worst], "", HARVEST, ">=", runs, note, detail=harvests)
    ratios = {k: o.p99_ratio for k, o in found.items()}
    worst = max(ratios, key=lambda k: ratios[k])
    note = f"(worst at {worst}; {_each(ratios)})"
    yield Figure(
        "online_p99_ratio",
        ratios[worst],
        "",
        P99_RATIO,
        "<=",
        found[worst].runs,
        note,
        detail=ratios,
    )


def reported(found: Mapping[str, Outcome]) -> Iterator[Figure]:
    """The same beside 16 offline tenants, without a target: they change context with each other in
    online's pauses.
    """
    why = (
        f"{TENANTS} offline tenants change context among themselves, which no arbiter can spare"
        " them"
    )
    harvests = {name: outcome.harvest for name, outcome in found.items()}
    note = f"({_each(harvests)}; no target: {why})"
    value = min(harvests.values())
    yield Figure(
        f"harvest_ratio_{TENANTS}_tenants", value, "", None, ">=", len(found), note, detail=harvests
    )
    ratios = {name: outcome.p99_ratio for name, outcome in found.items()}
    note = f"({_each(ratios)}; no target: the promise is judged beside one, with more patterns)"
    value = max(ratios.values())
    yield Figure(
        f"online_p99_ratio_{TENANTS}_tenants",
        value,
        "",
        None,
        "<=",
        len(found),
        note,
        detail=ratios,
    )


def figures(quick: bool) -> Iterator[Figure]:
    """All patterns, and some beside many tenants."""
    chosen = QUICK if quick else PATTERNS
    seconds = {name: FEW_SECONDS if quick else SELDOM.get(name, SECONDS) for name in chosen}
    yield from judged({name: settled(PATTERNS[name], seconds[name]) for name in chosen})
    few = dict.fromkeys(QUICK_MANY, FEW_SECONDS) if quick else MANY_SECONDS
    yield from reported(
        {name: measure(PATTERNS[name], length, tenants=TENANTS) for name, length in few.items()}
    )
