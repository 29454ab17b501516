"""Measures what offline gets of online's pauses, and what online pays for it.

Online is a service (Poisson requests of 50 dependent kernels of 100 us) or works in duty cycles
with the same requests; offline submits 200 us kernels without pause. Each run has a twin at the
same time on a second card: the same online job with the same draws and no neighbour. So a stall of
this machine hits both, and the comparison is of the card, not the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.harness.figures import Figure
from bench.harness.patterns import PATTERNS, REQUEST
from bench.harness.scene import Scene, calm_play
from bench.promises.preempt import ONLINE_JOB, RELEASE_MS, offline_jobs, online_job
from simulator.judge import evaluate as ev

# Requests that find offline on the card are the rule at Poisson 5/s, one of 20 is such a one with a
# duty of 10 % of 1 s, one of 100 with 50 %. At 100/s offline gets nothing, and online must not pay.
SECONDS = {
    "Poisson 5/s": 18.0,
    "Poisson 20/s": 12.0,
    "Poisson 100/s": 6.0,
    "10 % of 1 s": 20.0,
    "50 % of 1 s": 10.0,
}
HARVEST, P99_RATIO = 0.95, 1.08
LEAST_ALLOWED = 0.05  # of the time; where policy allows offline less, a ratio of it says nothing
QUICK_SECONDS = {"Poisson 20/s": 6.0, "10 % of 1 s": 6.0}


@dataclass(frozen=True)
class Outcome:
    """One pattern: what policy allows offline as a part of the time, offline's work over it and
    over the time, and online's p99 and mean beside offline over those alone.
    """

    allowed_share: float
    harvest: float
    offline_share: float
    p99_ratio: float
    card_use: float  # part of the time in which online or offline was on the card
    mean_ratio: float
    alone_ms: float  # online's mean alone


def p99_ratio(scene: Scene, beside: int, alone: int) -> float:
    """The ratio over all requests of the run.

    Not a median over parts of it: a request after a pause that found offline on the card is late by
    some percent, and in a part with 100 requests whether p99 is such a one is a matter of where the
    part begins.
    """
    late, usual = (ev.percentile(scene.latencies_us(job), 99) for job in (beside, alone))
    return late / usual


def measure(
    pattern: Sequence[str],
    seconds: float,
    release_ms: int = RELEASE_MS,
    online_delay_us: int = 0,
) -> Outcome:
    """One run of a pattern beside an offline tenant, and of its twin. With an online_delay it is
    `idle_release: auto`.
    """
    shared = online_job(*pattern, **REQUEST)
    single = online_job(*pattern, card=1, **REQUEST)
    (neighbour,) = offline_jobs(1, 200)
    actors = [shared, single, neighbour]
    settings = {"idle_release_ms": release_ms, "online_delay_us": online_delay_us}
    scene = calm_play(actors, seconds, cards=2, settings=settings)
    release = release_ms * ev.NS_PER_MS
    online = scene.bursts(ONLINE_JOB, max(release // 2, ev.NS_PER_MS))
    offline = scene.of(neighbour.job_id)
    span = (scene.start, scene.end)
    wall = scene.end - scene.start
    mean_us, alone_us = (fmean(scene.latencies_us(job)) for job in (ONLINE_JOB, single.job_id))
    return Outcome(
        ev.allowed_ns(online, *span, release) / wall,
        ev.harvest_ratio(online, offline, *span, release),
        ev.work_ns(offline, *span) / wall,
        p99_ratio(scene, ONLINE_JOB, single.job_id),
        (ev.work_ns(scene.of(ONLINE_JOB), *span) + ev.work_ns(offline, *span)) / wall,
        mean_us / alone_us,
        alone_us / 1000,
    )


def _each(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {value:.3f}" for name, value in values.items())


def judged(found: Mapping[str, Outcome]) -> Iterator[Figure]:
    """harvest_ratio over the patterns that allow something, and the worst p99 ratio of all."""
    harvests = {k: o.harvest for k, o in found.items() if o.allowed_share >= LEAST_ALLOWED}
    worst = min(harvests, key=lambda k: harvests[k])
    rest = [name for name in found if name not in harvests]
    nothing = f"; no pause to speak of at {', '.join(rest)}" if rest else ""
    use = _each({name: o.card_use for name, o in found.items()})
    note = f"(worst at {worst}; {_each(harvests)}{nothing}; card use: {use})"
    yield Figure("harvest_ratio", harvests[worst], "", HARVEST, ">=", 1, note, detail=harvests)
    ratios = {k: o.p99_ratio for k, o in found.items()}
    worst = max(ratios, key=lambda k: ratios[k])
    note = f"(worst at {worst}; {_each(ratios)})"
    yield Figure("online_p99_ratio", ratios[worst], "", P99_RATIO, "<=", 1, note, detail=ratios)


def figures(quick: bool) -> Iterator[Figure]:
    """All patterns."""
    seconds = QUICK_SECONDS if quick else SECONDS
    yield from judged({name: measure(PATTERNS[name], length) for name, length in seconds.items()})
