"""Preemption and hand-back on the simulator, judged by the simulator's own trace.

16 offline jobs take turns with 200 µs kernels without pause; an online job alternates work and silence. Meanwhile qgpud
serves the node, reads NVML (and so audits) ten times as often as by default, somebody asks the arbiter for all figures
and somebody reads qgpud's metrics 20 times a second each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.daemons import free_port, polled, scraped, start_qgpud
from bench.figures import Figure
from bench.machine import calmest
from bench.rig import Rig
from bench.scene import Actor, Scene, admit, endless, kernels, play, rig
from enforcer import evaluate as ev
from enforcer.gatetrace import Gate
from enforcer.sim import Interval

RELEASE_MS = 100
RELEASE_NS = RELEASE_MS * ev.NS_PER_MS
ONLINE_JOB, OFFLINE_JOB = 101, 201
BUSY_S, IDLE_S = 0.15, 0.25
TENANTS = 16
POLL_S = 0.05


@dataclass(frozen=True)
class Episodes:
    """What one run of online beside offline left behind."""

    online: Sequence[ev.Burst]
    offline: Sequence[Interval]
    gates: Sequence[Gate]
    start: int
    end: int
    latencies_us: Sequence[float]
    harvest: float


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


def beside(
    offline: Sequence[Actor],
    count: int,
    company: Callable[[Rig], AbstractContextManager[object]] | None = None,
    **options: Any,
) -> Episodes:
    """Run `count` online bursts beside these offline jobs on one card, in whatever company the node has meanwhile."""
    online = online_job("--busy", f"{BUSY_S}", "--idle", f"{IDLE_S}")
    actors = [online, *offline]
    with rig(**options) as node:
        admit(node, actors)
        with company(node) if company else nullcontext():
            scene = play(node, actors, count * (BUSY_S + IDLE_S))
    return episodes(scene, online, offline)


def episodes(scene: Scene, online: Actor, offline: Sequence[Actor]) -> Episodes:
    """What a scene says about its online job and these offline jobs."""
    jobs = [actor.job_id for actor in offline]
    release = RELEASE_MS * ev.NS_PER_MS
    return Episodes(
        scene.whole_bursts(online.job_id, release // 2),
        scene.of(*jobs),
        scene.gates_of(*jobs),
        scene.start,
        scene.end,
        scene.latencies_us(online.job_id),
        ev.harvest_ratio(
            scene.bursts(online.job_id, release // 2), scene.of(*jobs), scene.start, scene.end, release
        ),
    )


@contextmanager
def busy_daemons(node: Rig) -> Iterator[None]:
    """qgpud serves the node, ten times as curious as by default; somebody polls the arbiter, somebody reads metrics."""
    port = free_port()
    start_qgpud(node, nvml_interval_ms=100, ledger_interval_ms=200, metrics_port=port)
    with polled(node.run_dir, POLL_S), scraped(port, POLL_S) as samples:
        yield
        if not samples():
            raise RuntimeError("nobody could read qgpud's metrics: it was not under load")


def spread(values: Sequence[float], unit: str, note: str = "") -> str:
    """p50 and max in words."""
    return f"(p50 {statistics.median(values):.1f}, max {max(values):.1f} {unit}{note})"


def figures(quick: bool) -> Iterator[Figure]:
    """gate_close, card_free and hand-back with 16 offline tenants and loaded daemons."""
    run = calmest(lambda: beside(offline_jobs(TENANTS, 200), 15 if quick else 120, busy_daemons))
    note = f"; {TENANTS} offline tenants"
    for name, values, target, unit in (
        ("gate_close_us_p99", ev.gate_close_us(run.online, run.gates), 200, "us"),
        ("card_free_us_p99", ev.card_free_us(run.online, run.offline), 1000, "us"),
        ("handback_ms_p99", ev.handback_ms(run.online, run.gates, run.end, RELEASE_NS), 102, "ms"),
    ):
        value = ev.percentile(values, 99)
        yield Figure(name, value, unit, target, "<=", len(values), spread(values, unit, note))
    yield from paid(run)


def paid(run: Episodes) -> Iterator[Figure]:
    """The price of sharing in online's pauses: changes of process, and what of the allowed time nobody used."""
    release = RELEASE_MS * ev.NS_PER_MS
    allowed = ev.allowed_ns(run.online, run.start, run.end, release)
    changes = sum(a.pid != b.pid for a, b in pairwise(run.offline)) * 1e9 / allowed
    note = f"(in what policy allows offline; {TENANTS} offline tenants)"
    yield Figure("preempt_switches_per_s", changes, "1/s", None, "<=", len(run.online), note)
    lost = 100 * (1 - run.harvest)
    yield Figure("preempt_lost_percent", lost, "%", None, "<=", len(run.online), note)
