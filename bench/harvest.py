"""What offline gets out of online's pauses, and what online pays for it.

Online is a service (Poisson requests of 50 dependent kernels of 100 µs) or works in duty cycles with the same requests;
offline submits 200 µs kernels without pause. Each run has a twin at the same time on a second card: the same online
job with the same draws and nobody beside it. So a stall of this machine meets both, and what is compared is the card,
not the CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures import Figure
from bench.preempt import ONLINE_JOB, RELEASE_MS, offline_jobs, online_job
from bench.scene import Scene, play, rig
from enforcer import evaluate as ev

PARTS = 3
LEAST_ALLOWED = 0.05  # of the time; where policy allows offline less, a ratio of it says nothing
RATES = (5, 20, 100)
DUTIES = tuple((period, duty) for period in (1, 4) for duty in (10, 50, 90))
PATTERNS: dict[str, tuple[str, ...]] = {f"Poisson {rate}/s": ("--poisson", str(rate)) for rate in RATES} | {
    f"{duty} % of {period} s": ("--period", str(period), "--duty", str(duty)) for period, duty in DUTIES
}
QUICK = ("Poisson 20/s", "50 % of 1 s")


@dataclass(frozen=True)
class Outcome:
    """One pattern: offline's work over what policy allows, over the wall time, and p99 ratios of parts of the run."""

    allowed_share: float
    harvest: float
    offline_share: float
    p99_ratios: Sequence[float]

    @property
    def p99_ratio(self) -> float:
        """p99 beside an offline neighbour over p99 alone; the median over the parts, since one stall fills a part."""
        return statistics.median(self.p99_ratios)


def p99_ratios(scene: Scene, beside: int, alone: int) -> list[float]:
    """The ratio in each part of the run in which both jobs had requests."""
    pairs = (
        (scene.latencies_us(beside, i, PARTS), scene.latencies_us(alone, i, PARTS)) for i in range(PARTS)
    )
    return [ev.percentile(b, 99) / ev.percentile(a, 99) for b, a in pairs if a and b]


def measure(pattern: Sequence[str], seconds: float, release_ms: int = RELEASE_MS) -> Outcome:
    """One run of a pattern and its twin."""
    load: dict[str, Any] = {"kernel_us": 100, "per_request": 50}
    shared = online_job(*pattern, **load)
    single = online_job(*pattern, card=1, **load)
    actors = [shared, single, *offline_jobs(1, 200)]
    with rig(cards=2, settings={"idle_release_ms": release_ms}) as node:
        scene = play(node, actors, seconds)
    release = release_ms * ev.NS_PER_MS
    online = scene.bursts(ONLINE_JOB, max(release // 2, ev.NS_PER_MS))
    offline = scene.of(actors[2].job_id)
    span = (scene.start, scene.end)
    allowed = ev.allowed_ns(online, *span, release)
    wall = scene.end - scene.start
    done = ev.work_ns(offline, *span)
    return Outcome(
        allowed / wall,
        done / allowed if allowed else 0.0,
        done / wall,
        p99_ratios(scene, ONLINE_JOB, single.job_id),
    )


def judged(found: Mapping[str, Outcome]) -> Iterator[Figure]:
    """harvest_ratio over the patterns that allow something, and the worst p99 ratio of all."""
    harvests = {k: o.harvest for k, o in found.items() if o.allowed_share >= LEAST_ALLOWED}
    worst = min(harvests, key=lambda k: harvests[k])
    note = f"(worst at {worst}; " + ", ".join(f"{k}: {v:.3f}" for k, v in harvests.items()) + ")"
    yield Figure("harvest_ratio", harvests[worst], "", 0.97, ">=", len(harvests), note, detail=harvests)
    ratios = {k: o.p99_ratio for k, o in found.items()}
    worst = max(ratios, key=lambda k: ratios[k])
    note = f"(worst at {worst}; " + ", ".join(f"{k}: {v:.3f}" for k, v in ratios.items()) + ")"
    yield Figure("online_p99_ratio", ratios[worst], "", 1.05, "<=", len(ratios), note, detail=ratios)


def figures(quick: bool) -> Iterator[Figure]:
    """All patterns."""
    chosen = {name: pattern for name, pattern in PATTERNS.items() if not quick or name in QUICK}
    yield from judged({name: measure(pattern, 6.0 if quick else 14.0) for name, pattern in chosen.items()})
