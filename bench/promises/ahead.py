"""Measures how long work is queued on the card, and how long the card waits for a stalled launch.

Offline work queued early delays an online tenant that comes. A program that launches without
waiting and does something else in between is the hard case: the end of each kernel is estimated
from the one before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.harness.figures import Figure
from bench.harness.machine import calmest
from bench.harness.node import Rig, wait_for
from bench.harness.scene import kernels, rig
from simulator.judge import evaluate as ev
from simulator.sim import Interval

ONLINE, OFFLINE, NEIGHBOUR = 1, 2, 3
LEARNING, COUNTED, QUICK = 200, 1200, 400  # kernels
STALL_US = 50_000
OVER_NS = 200_000_000  # after the order of a stall it is over for certain
AHEAD_US = 300.0  # 40 by the rules, and what a thread is early or late
HOLE_MS = (
    2.0  # a launch is passed over after some 100 us; a kernel of the one that stalls takes 10 ms
)
NEVER_WAITS = "--no-sync-each=1000000"


@dataclass(frozen=True)
class Case:
    """A program's kernels and its work between them; one of its launch calls may stall."""

    kernel_us: int
    pause_us: int
    stalls: bool = False

    @property
    def name(self) -> str:
        """In words."""
        return (
            f"{self.kernel_us} us each"
            f" {self.kernel_us + self.pause_us}{', a stall' if self.stalls else ''}"
        )


CASES = (
    Case(1000, 800),
    Case(2000, 1700),
    Case(1000, 0, stalls=True),
    Case(1000, 800, stalls=True),
    Case(2000, 1700, stalls=True),
)


def ahead_us(spans: Sequence[Interval], pid: int, since_ns: int) -> list[float]:
    """us that each kernel launched since then was queued on the card before it began."""
    own = sorted(span for span in spans if span.pid == pid and span.t_submit >= since_ns)
    return [(span.t_start - span.t_submit) / 1e3 for span in own]


def queue(node: Rig, case: Case, count: int) -> list[float]:
    """The same for a program beside an idle online tenant, once its kernels are known."""
    node.grant(ONLINE, "online")
    pace = (NEVER_WAITS, "--gap", f"{case.pause_us / 1e6:g}", "--requests", str(LEARNING + count))
    process = node.workload(node.grant(OFFLINE, "offline"), *kernels(case.kernel_us), *pace)
    since = 0
    if case.stalls:
        wait_for("it is known", lambda: max(t.launches for t in node.link.stats()) >= LEARNING)
        node.fault(f"delay call=cuLaunchKernel us={STALL_US} times=1 pid={process.pid}")
        since = time.monotonic_ns() + OVER_NS
    node.summary(process)
    found = ahead_us(node.trace(), process.pid, since)
    return found if case.stalls else found[LEARNING:]


def ahead(case: Case, count: int, governed: bool = True) -> list[float]:
    """On a node of its own, once more where the host disturbed it."""

    def once() -> list[float]:
        with rig(governed=governed) as node:
            return queue(node, case, count)

    return calmest(once)


def longest_hole_ms(spans: Sequence[Interval], begin_ns: int, end_ns: int) -> float:
    """ms of the card's longest idle stretch between its first and last
    piece of work in that time.
    """
    pieces = sorted((p.t_start, p.t_end) for p in spans if begin_ns <= p.t_start < end_ns)
    return (
        max((after[0] - before[1] for before, after in pairwise(pieces)), default=0) / ev.NS_PER_MS
    )


def launched(node: Rig, job: int, more: int) -> None:
    """Wait until the job has launched that number of further kernels."""

    def counted() -> int:
        return next(t.launches for t in node.link.stats() if t.job_id == job)

    before = counted()
    wait_for(f"{more} launches of job {job}", lambda: counted() >= before + more)


def holes(order: str, times: int) -> list[float]:
    """The longest hole after each of such faults: a tenant with kernels of 10 ms beside one with 1
    ms.
    """
    with rig() as node:
        long = node.workload(
            node.grant(OFFLINE, "offline"), "--length", "60", *kernels(10_000), NEVER_WAITS
        )
        node.workload(
            node.grant(NEIGHBOUR, "offline"), "--length", "60", *kernels(1000), NEVER_WAITS
        )
        launched(node, OFFLINE, 40)
        faults = []
        for _ in range(times):
            begun = time.monotonic_ns()
            node.fault(order.format(pid=long.pid))
            launched(node, NEIGHBOUR, 120)
            faults.append((begun, time.monotonic_ns()))
        end = faults[-1][1]
        wait_for("the trace is written", lambda: any(span.t_end > end for span in node.trace()))
        return [longest_hole_ms(node.trace(), *fault) for fault in faults]


def hole(name: str, order: str, times: int, control: bool = False) -> Figure:
    """The median hole after such a fault."""
    found = calmest(lambda: holes(order, times))
    note = f"(max {max(found):.1f} ms)"
    return Figure(name, statistics.median(found), "ms", HOLE_MS, "<=", times, note, control=control)


def figures(quick: bool) -> Iterator[Figure]:
    """The worst case of programs that queue, stalled launches, and the controls of both."""
    count, times = (QUICK, 5) if quick else (COUNTED, 12)
    found = {case.name: ev.percentile(ahead(case, count), 90) for case in CASES}
    each = ", ".join(f"{name}: {value:.0f}" for name, value in found.items())
    yield Figure(
        "queued_ahead_us_p90",
        max(found.values()),
        "us",
        AHEAD_US,
        "<=",
        len(CASES),
        f"({each})",
        detail=found,
    )
    free = ev.percentile(ahead(CASES[0], count, governed=False), 90)
    yield Figure(
        "control_ungoverned_queued_ahead_us_p90", free, "us", AHEAD_US, "<=", 1, control=True
    )
    call = f"delay call=cuLaunchKernel us={STALL_US} times=1 pid={{pid}}"
    yield hole("stalled_launch_idle_ms", call, times)
    yield hole("control_stalled_card_idle_ms", f"stall us={STALL_US}", times, control=True)
