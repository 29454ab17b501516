"""Measures preemption and hand-back on the simulator, by the simulator's own trace.

16 offline jobs get quanta for 200 us kernels without pause. An online job works in patterns: 150 ms
of every 400 (many bursts in little time), random requests, and duty cycles. Meanwhile qgpud serves
the node and samples NVML (and so audits) ten times as often as by default; 20 times a second all
figures of the arbiter and qgpud's metrics are read.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.harness.daemons import free_port, polled, scraped, start_qgpud
from bench.harness.figures import Figure
from bench.harness.machine import calmest
from bench.harness.node import Rig
from bench.harness.patterns import PATTERNS, REQUEST
from bench.harness.scene import Actor, Scene, admit, endless, kernels, play, rig
from simulator.judge import evaluate as ev
from simulator.judge.gatetrace import Gate
from simulator.sim import Interval

RELEASE_MS = 100
RELEASE_NS = RELEASE_MS * ev.NS_PER_MS
ONLINE_JOB, OFFLINE_JOB = 101, 201
BUSY_S, IDLE_S = 0.15, 0.25
TENANTS = 16
POLL_S = 0.05
STEADY = "150 of 400 ms"
BURSTS, FEW_BURSTS = 70, 15  # of the steady pattern
LEAST_BURSTS = 100  # bursts of a pattern for a p99 of its own: with fewer it would be their maximum
# Seconds of each. The others leave offline no time (Poisson 100/s), or are like the last one.
SECONDS = {"Poisson 5/s": 16.0, "10 % of 1 s": 10.0}
QUICK_SECONDS = {"Poisson 5/s": 5.0}
Group = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Episodes:
    """What one run of online beside offline left behind. `online`: its bursts inside [start, end),
    `bursts`: all.
    """

    bursts: Sequence[ev.Burst]
    online: Sequence[ev.Burst]
    offline: Sequence[Interval]
    gates: Sequence[Gate]
    start: int
    end: int
    latencies_us: Sequence[float]
    harvest: float

    @property
    def handbacks_ms(self) -> list[float]:
        """Per burst with a pause behind it. The last pause may end with a burst that the end of the
        run cut.
        """
        cut = [burst.call for burst in self.bursts if burst.end > self.end]
        return ev.handback_ms(self.online, self.gates, min([*cut, self.end]), RELEASE_NS)


def offline_jobs(count: int, *lengths_us: float, **more: Any) -> list[Actor]:
    """Jobs with endless kernels of this length and equal shares."""
    share = max(1, 30 // count)
    return [
        Actor(OFFLINE_JOB + i, "offline", share, (*endless(*lengths_us), "--seed", str(i)), **more)
        for i in range(count)
    ]


def online_job(*pattern: str, kernel_us: float = 200, per_request: int = 5, card: int = 0) -> Actor:
    """The online job with a pattern of load."""
    args = (*kernels(kernel_us), "--kernels-per-request", str(per_request), *pattern)
    return Actor(ONLINE_JOB + card, "online", 60, args, card=card)


Company = Callable[[Rig], AbstractContextManager[object]]


def beside(
    offline: Sequence[Actor], count: int, company: Company | None = None, **options: Any
) -> Episodes:
    """Run `count` steady online bursts beside these offline jobs on one card, in this company."""
    online = online_job("--busy", f"{BUSY_S}", "--idle", f"{IDLE_S}")
    return watched(online, offline, count * (BUSY_S + IDLE_S), company, **options)


def watched(
    online: Actor,
    offline: Sequence[Actor],
    seconds: float,
    company: Company | None = None,
    **options: Any,
) -> Episodes:
    """That number of seconds of an online job beside these offline jobs, with the node's other
    load.
    """
    actors = [online, *offline]
    with rig(**options) as node:
        admit(node, actors)
        with company(node) if company else nullcontext():
            scene = play(node, actors, seconds)
    return episodes(scene, online, offline)


def episodes(scene: Scene, online: Actor, offline: Sequence[Actor]) -> Episodes:
    """The episodes of a scene's online job with these offline jobs."""
    jobs = [actor.job_id for actor in offline]
    bursts = scene.bursts(online.job_id, RELEASE_NS // 2)
    return Episodes(
        bursts,
        scene.whole_bursts(online.job_id, RELEASE_NS // 2),
        scene.of(*jobs),
        scene.gates_of(*jobs),
        scene.start,
        scene.end,
        scene.latencies_us(online.job_id),
        ev.harvest_ratio(bursts, scene.of(*jobs), scene.start, scene.end, RELEASE_NS),
    )


@contextmanager
def busy_daemons(node: Rig) -> Iterator[None]:
    """qgpud serves the node and samples ten times as often as by default; arbiter and metrics are
    polled.
    """
    port = free_port()
    start_qgpud(node, nvml_interval_ms=100, ledger_interval_ms=200, metrics_port=port)
    with polled(node.run_dir, POLL_S), scraped(port, POLL_S) as samples:
        yield
        if not samples():
            raise RuntimeError("qgpud's metrics were never read: it was not under load")


def spread(values: Sequence[float], unit: str, note: str = "") -> str:
    """p50 and max in words."""
    return f"(p50 {statistics.median(values):.1f}, max {max(values):.1f} {unit}{note})"


def grouped(found: Group) -> dict[str, list[float]]:
    """Patterns with many bursts stand for themselves, the others together: a p99 of few is the luck
    of one.
    """
    groups = {name: list(values) for name, values in found.items() if len(values) >= LEAST_BURSTS}
    few = {name: values for name, values in found.items() if 0 < len(values) < LEAST_BURSTS}
    return groups | (
        {" + ".join(few): [v for values in few.values() for v in values]} if few else {}
    )


def worst_pattern(name: str, found: Group, target: float, unit: str) -> Figure:
    """The worst p99 of all patterns or pools of them, with p50 and max,
    and what each pattern gave.
    """
    groups = grouped(found)
    tails = {group: ev.percentile(values, 99) for group, values in groups.items()}
    worst = max(tails, key=lambda group: tails[group])
    every = [value for values in groups.values() for value in values]
    each = ", ".join(f"{group} {tails[group]:.1f} of {len(groups[group])}" for group in groups)
    nothing = ", ".join(pattern for pattern, values in found.items() if not values)
    nothing = f"; no such burst at {nothing}" if nothing else ""
    note = f"; worst p99 at {worst}; p99s: {each}{nothing}; {TENANTS} offline tenants"
    detail = {
        f"{group} {word}": value
        for group, values in groups.items()
        for word, value in (
            ("p50", statistics.median(values)),
            ("p99", tails[group]),
            ("max", max(values)),
        )
    }
    return Figure(
        name, tails[worst], unit, target, "<=", len(every), spread(every, unit, note), detail=detail
    )


def judged(runs: Mapping[str, Episodes]) -> Iterator[Figure]:
    """gate_close, card_free and hand-back over all patterns.

    Only bursts that offline had to leave count: a request while online still holds the card finds
    it closed and free.
    """
    closes = {name: ev.gate_close_us(run.online, run.gates) for name, run in runs.items()}
    yield worst_pattern("gate_close_us_p99", closes, 200, "us")
    met = {
        name: ev.that_met_offline(run.online, run.offline, run.gates) for name, run in runs.items()
    }
    frees = {name: ev.card_free_us(met[name], run.offline) for name, run in runs.items()}
    yield worst_pattern("card_free_us_p99", frees, 1000, "us")
    backs = {name: run.handbacks_ms for name, run in runs.items()}
    yield worst_pattern("handback_ms_p99", backs, 102, "ms")
    every = [ms for values in backs.values() for ms in values]
    yield Figure("handback_ms_min", min(every), "ms", RELEASE_MS, ">=", len(every))


def pattern_run(pattern: str, seconds: float) -> Episodes:
    """One pattern beside 16 offline tenants and loaded daemons."""
    online = online_job(*PATTERNS[pattern], **REQUEST)
    return calmest(lambda: watched(online, offline_jobs(TENANTS, 200), seconds, busy_daemons))


def figures(quick: bool) -> Iterator[Figure]:
    """All patterns."""
    count, lengths = (FEW_BURSTS, QUICK_SECONDS) if quick else (BURSTS, SECONDS)
    steady = calmest(lambda: beside(offline_jobs(TENANTS, 200), count, busy_daemons))
    yield from judged(
        {STEADY: steady} | {name: pattern_run(name, s) for name, s in lengths.items()}
    )
