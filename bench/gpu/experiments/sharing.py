"""Experiments 17 to 20: what equal tenants, and a service with a neighbour, make of one card.

The simulated card has assumptions about that: what a change of contexts costs, and that kernels of
two processes never run side by side. These items ask the card. What a tenant had of it is its
launches times its kernel's length on the idle card.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from bench.gpu.experiments.product import settings
from bench.gpu.items import Item, Yield, figure
from bench.gpu.loads import LATE_S, Load, Player, play
from bench.gpu.node import Node, NodeError, Way
from bench.gpu.place import BUILD, Place
from bench.gpu.truth import Piece, merged
from simulator.judge import evaluate as ev

WORKLOAD = BUILD / "bin/qgpu-workload"
ROWS_US, COUNTS = (1000, 500, 200), (2, 4)
LEADS_S = (3.0, 6.0, 12.0)  # from the start of the programs to the common start
TARGET = 0.95  # of the better of isolation none and taking turns
BEAT = Load("kernels that note progress", "spin", 5_000, beat=True)
SMALL_US = 100
TOGETHER = 1.2  # gain of two endless tenants above which their kernels did run side by side
SERVICE_US, PER_REQUEST, RATE, NEIGHBOUR_US = 100, 20, 50, 200
RELEASES = ("100ms", "auto")


@dataclass(frozen=True)
class Tenant:
    """A program of the workload, and its part of the card."""

    words: Sequence[str]
    share: int
    job_class: str = "offline"


def seconds_of(place: Place) -> float:
    """How long each run is."""
    return 1.5 if place.quick else 4.0


def calibrated(node: Node) -> float:
    """Steps of the workload's kernel in a microsecond, asked while the card is idle: beside others
    each program would find another number.
    """
    if node.place.simulated:
        return 1000.0
    told = node.run([WORKLOAD, "--json", "--kernel-us", "1000", "--requests", "200"])
    return float(told["iterations"]) / 1000


def kernels(us: float, per_us: float) -> tuple[str, ...]:
    """Options for kernels of this length."""
    return ("--kernel-us", f"{us:g}", "--iters", str(round(us * per_us)))


def together(
    node: Node, way: Way, tenants: Sequence[Tenant], seconds: float
) -> list[dict[str, Any]]:
    """What each tells, all from one moment on. Once more with more time where one came late."""
    for lead in LEADS_S:
        begin = time.monotonic_ns() + int(lead * 1e9)
        common = ("--json", "--length", f"{seconds:g}", "--start-at", str(begin))
        running = [
            node.start(
                [WORKLOAD, *t.words, *common], way, share=t.share, job_class=t.job_class, mem="4G"
            )
            for t in tenants
        ]
        told = [node.told(process, 60) for process in running]
        if max(row["start_ns"] for row in told) <= begin + LATE_S * 1e9:
            return told
    raise NodeError("a program began late; the machine is too busy to measure")


# ---- 17: the change of contexts ------------------------------------------------------------------


@dataclass(frozen=True)
class Turns:
    """How two programs took turns. `both`: part of the time of progress in which both had it."""

    switches_us: Sequence[float]
    lengths_us: Sequence[float]
    both: float


def turns(one: Sequence[Piece], other: Sequence[Piece]) -> Turns:
    """From the stretches of progress of each."""
    own = [merged(one), merged(other)]
    rows = sorted((p.t_start, p.t_end, who) for who in (0, 1) for p in own[who])
    any_of = sum(p.t_end - p.t_start for p in merged([*one, *other]))
    each = sum(end - start for start, end, _ in rows)
    switches, lengths, began = [], [], rows[0][0]
    for (_, end, who), (start, _, following) in pairwise(rows):
        if who != following:
            switches.append((start - end) / 1000)
            lengths.append((end - began) / 1000)
            began = start
    return Turns(switches, lengths, (each - any_of) / any_of)


def switch(node: Node) -> Iterator[Yield]:
    """Two endless programs without qgpu, by the card's own slices: from the last progress of one
    to the first of the other.
    """
    scene = play(node, {name: Player(BEAT, 50) for name in "ab"}, "plain", seconds_of(node.place))
    one, other = (
        [p for p in scene.played[name].pieces if scene.start <= p.t_start < scene.end]
        for name in "ab"
    )
    found = turns(one, other)
    yield figure(node, "both_progress", 100 * found.both, "%")
    if not found.switches_us:
        yield "the two never took turns"
        return
    doubt = max(played.told.get("clock_doubt_ns", 0) for played in scene.played.values()) / 1000
    worst, count = ev.percentile(found.switches_us, 99), len(found.switches_us)
    spread = f"(p99 {worst:.1f} us; clocks doubt {doubt:.1f} us)"
    yield figure(node, "switch_us", median(found.switches_us), "us", runs=count, spread=spread)
    yield figure(node, "turn_us", median(found.lengths_us), "us", runs=count)


# ---- 18: what tenants with pauses gain -----------------------------------------------------------


def gained(
    node: Node, name: str, us: float, rates: Sequence[float], alone: float
) -> Iterator[Yield]:
    """Card use of tenants with these launches per second, and their gain."""
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    note = f"({sum(rates):.0f} launches/s: {each}; one alone {alone:.0f})"
    yield figure(node, f"card_use_{name}", sum(rates) * us / 1e6, runs=1, spread=note)
    yield figure(node, f"gain_{name}", sum(rates) / alone)


def gain(us: int) -> Callable[[Node], Iterator[Yield]]:
    """Kernels and pauses of one length: a tenant alone, then two and four, without gates and with
    them.
    """

    def body(node: Node) -> Iterator[Yield]:
        words = (*kernels(us, calibrated(node)), "--gap", f"{us / 1e6:g}")

        def rates(count: int) -> list[float]:
            tenants = [Tenant(words, 100 // count)] * count
            told = together(node, "qgpu", tenants, seconds_of(node.place))
            return [float(row["kernels_per_s"]) for row in told]

        (alone,) = rates(1)
        yield figure(node, "card_use_alone", alone * us / 1e6)
        for count in COUNTS[: 1 if node.place.quick else None]:
            with settings(node, "isolation.offline=none"):
                free = rates(count)
            ours = rates(count)
            yield from gained(node, f"{count}_none", us, free, alone)
            yield from gained(node, f"{count}_qgpu", us, ours, alone)
            target = None if node.place.simulated else TARGET
            best = max(sum(free), alone)
            yield figure(node, f"over_better_{count}", sum(ours) / best, "", target, ">=")

    return body


# ---- 19: side by side ----------------------------------------------------------------------------


def side_by_side(way: Way) -> Callable[[Node], Iterator[Yield]]:
    """Two endless tenants of kernels of one thread: whether they do more than one does."""

    def pair(node: Node) -> Iterator[Yield]:
        tenant = Tenant((*kernels(SMALL_US, calibrated(node)), "--no-sync-each=64"), 50)
        counts = ([tenant], [tenant] * 2)
        one, two = (together(node, way, some, seconds_of(node.place)) for some in counts)
        alone = float(one[0]["kernels_per_s"])
        rates = [float(row["kernels_per_s"]) for row in two]
        yield from gained(node, "2", SMALL_US, rates, alone)
        beside = sum(rates) / alone >= TOGETHER
        yield f"kernels of two processes run {'side by side' if beside else 'in turn'}"

    def body(node: Node) -> Iterator[Yield]:
        if way != "mps":
            yield from pair(node)
            return
        with node.mps():
            yield from pair(node)

    return body


# ---- 20: idle_release ----------------------------------------------------------------------------


def served(
    node: Node, name: str, way: Way, tenants: Sequence[Tenant], seconds: float
) -> tuple[float, list[dict[str, Any]]]:
    """Let a service run, the first one of these; its mean, and what all of them tell."""
    log = node.place.work / "sharing.log"
    service, *others = tenants
    logging = Tenant((*service.words, "--log", str(log), "--log-requests"), 60, "online")
    told = together(node, way, [logging, *others], seconds)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return fmean(row["latency_ns"] / 1000 for row in rows if "latency_ns" in row), told


def release(node: Node) -> Iterator[Yield]:
    """A small service alone, and beside an endless tenant with each way of idle_release: what it
    pays, and how much the other one does.
    """
    seconds, per_us = 2.5 * seconds_of(node.place), calibrated(node)
    words = ("--poisson", str(RATE), "--kernels-per-request", str(PER_REQUEST))
    service = Tenant((*kernels(SERVICE_US, per_us), *words), 60, "online")
    other = Tenant((*kernels(NEIGHBOUR_US, per_us), "--no-sync-each=64"), 40)
    mean_alone, (alone,) = served(node, "alone", "plain", [service], seconds)
    usual = float(alone["latency_us"]["p99"])
    yield figure(node, "online_mean_us_alone", mean_alone, "us", runs=alone["requests"])
    yield figure(node, "online_p99_us_alone", usual, "us", runs=alone["requests"])
    for value in RELEASES:
        with settings(node, f"idle_release={value}"):
            mean, (online, offline) = served(node, value, "qgpu", [service, other], seconds)
        p99, launches = float(online["latency_us"]["p99"]), float(offline["kernels_per_s"])
        use = (online["kernels_per_s"] * SERVICE_US + launches * NEIGHBOUR_US) / 1e6
        runs = online["requests"]
        beside = (f"({mean / mean_alone:.2f} of alone)", f"({p99 / usual:.2f} of alone)")
        yield figure(node, f"online_mean_us_{value}", mean, "us", runs=runs, spread=beside[0])
        yield figure(node, f"online_p99_us_{value}", p99, "us", runs=runs, spread=beside[1])
        note = f"(card use {100 * use:.0f} %)"
        yield figure(node, f"offline_launches_{value}", launches, "per s", spread=note)


def items(place: Place) -> Iterator[Item]:
    """By what decides most."""
    needs = () if place.simulated else ("card", "nvcc")
    yield Item("experiments/17 sharing: change of contexts", 20, switch, needs)
    for us in ROWS_US[: 1 if place.quick else None]:
        yield Item(f"experiments/18 sharing: gain {us} us", 58, gain(us))
    yield Item("experiments/19 sharing: side by side", 20, side_by_side("plain"))
    yield Item("experiments/19 sharing: side by side mps", 30, side_by_side("mps"), ("mps",))
    yield Item("experiments/20 sharing: idle_release", 55, release)
