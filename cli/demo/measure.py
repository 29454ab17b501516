"""From what a node's simulator and arbiter recorded to the figures that the demo shows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from cli.demo.jobs import Job
from cli.sandbox.layout import NodePaths
from simulator.judge import evaluate as ev
from simulator.judge.gatetrace import read_gates
from simulator.sim import Interval, read_trace

RELEASE_NS = 100 * ev.NS_PER_MS  # idle release of the demo, as qgpu.yaml has it by default


@dataclass(frozen=True)
class Pair:
    """An online and an offline job on one card, between start and end (ns, CLOCK_MONOTONIC)."""

    online_spans: Sequence[Interval]
    offline_spans: Sequence[Interval]
    start: int
    end: int
    gate_close_us: Sequence[float]
    card_free_us: Sequence[float]
    handback_ms: Sequence[float]
    offline_during_online: float
    harvest: float
    solo: float
    p99_alone_us: float
    p99_beside_us: float


@dataclass(frozen=True)
class Row:
    """What the demo reads of one job's report."""

    preemptions: int | None
    denied: int | None


def bursts_ended(job: Job) -> int:
    """How many bursts of work the workload has logged as ended."""
    return sum(1 for entry in job.logged() if "burst" in entry)


def latencies(job: Job) -> list[list[float]]:
    """Request latencies in µs, one list per burst."""
    bursts: list[list[float]] = [[]]
    for entry in job.logged():
        if "latency_ns" in entry:
            bursts[-1].append(int(str(entry["latency_ns"])) / 1000)
        elif "burst" in entry:
            bursts.append([])
    return [burst for burst in bursts if burst]


def spans_of(node: NodePaths, job: Job) -> list[Interval]:
    """What the job's workload executed on its node so far."""
    pid = job.pid
    return [span for span in read_trace(node.trace) if span.pid == pid]


def ran_after(node: NodePaths, job: Job, t_ns: int) -> bool:
    """Whether the job executed something that it submitted after t_ns."""
    return any(span.t_submit > t_ns for span in spans_of(node, job))


def busy_fraction(node: NodePaths, job: Job, start: int, end: int) -> float:
    """Part of [start, end) in which the job executed."""
    return ev.work_ns(spans_of(node, job), start, end) / (end - start)


def pair(node: NodePaths, online: Job, offline: Job, solo_s: float) -> Pair:
    """The figures of the two jobs after both ended; the offline one ran alone for the last solo_s
    seconds.
    """
    ours = spans_of(node, online)
    theirs = spans_of(node, offline)
    gates = [g for g in read_gates(node.gates) if g.job_id == offline.id]
    calls = [int(str(entry["start_ns"])) for entry in online.logged() if "burst" in entry]
    found = ev.with_calls(ev.bursts(ours, RELEASE_NS // 2), calls, RELEASE_NS // 2)
    first_offline, last_offline = theirs[0].t_start, theirs[-1].t_end
    beside = [b for b in found if b.call > first_offline]
    frees = ev.card_free_us(beside, theirs)
    inside = sum(
        ev.work_ns(theirs, b.call + int(free * 1000), b.end)
        for b, free in zip(beside, frees, strict=True)
    )
    last = beside[-1].end
    solo_start = last + 2 * RELEASE_NS
    per_burst = latencies(online)
    return Pair(
        ours,
        theirs,
        ours[0].t_start,
        last_offline,
        ev.gate_close_us(beside, gates),
        frees,
        ev.handback_ms(beside, gates, last_offline, RELEASE_NS),
        inside / sum(b.end - b.call for b in beside),
        statistics.median(ev.harvest_by_gap(beside, theirs, RELEASE_NS)),
        ev.work_ns(theirs, solo_start, last_offline) / (last_offline - solo_start),
        ev.percentile(per_burst[0], 99),
        min(
            ev.percentile(burst, 99) for burst in per_burst[1:]
        ),  # a stall of the machine spoils single bursts
    )


def below(values: Sequence[float], limit: float, unit: str) -> tuple[bool, str]:
    """Whether the median keeps the limit (single values are at the mercy of the machine), and all
    values.
    """
    if not values:
        return False, "nothing was measured"
    each = " ".join(f"{v:.0f}" if v >= 10 else f"{v:.1f}" for v in values)
    return statistics.median(values) <= limit, f"{each} {unit}"


def report_rows(text: str) -> dict[int, Row]:
    """The parts of `qgpu report --json` that the demo checks, by job id."""
    rows = {}
    for job in json.loads(text)["jobs"]:
        grants = job["grants"]
        if grants:
            rows[int(job["raw_id"])] = Row(grants[-1]["preempted"], grants[-1]["denied"])
    return rows
