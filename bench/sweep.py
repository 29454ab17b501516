"""The promises over a sweep of what the simulator assumes: none may hang on one guess.

Every corner of the hardware's time slice, the cost of a change of context and the cost of a launch, and besides:
other kernels, a card that stands still for 50 ms now and then, launches that stay in the driver for 50 ms. The queue
is 1024 commands deep everywhere. Each point is one run on three cards: 16 offline tenants beside online, one offline
tenant beside online, two tenants that share. Each promise is judged at each point, the worst is reported with its name.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import product
from typing import Any, Literal, TypeVar

from bench.figures import Figure
from bench.preempt import BUSY_S, IDLE_S, RELEASE_MS, TENANTS, episodes, offline_jobs, online_job
from bench.rig import Rig
from bench.scene import Actor, Scene, admit, endless, play, rig
from bench.shares import TARGET, TARGET_1S, judge
from enforcer import evaluate as ev
from enforcer import shares as sh
from enforcer.arbiter_link import CardSettings
from enforcer.sim import Interval, SimError

SLICES_US, SWITCHES_US, LAUNCHES_US = (500, 5000), (20, 500), (2.0, 6.0)
STALL_US, STALL_EACH_S, CALL_EACH_S = 50_000, 0.9, 0.25
STALL_NS = STALL_US * 1000
GATE_US, FREE_US, HARVEST = 200, 1000, 0.97
SHARES = {401: 30, 402: 70}
SECOND = 1_000_000_000
Stretch = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """One set of assumptions. `stalls`: of the whole card, or of a launch call of one offline tenant."""

    slice_us: int = 1000
    switch_us: int = 50
    launch_us: float = 3
    kernel_us: int = 200
    stalls: Literal["", "card", "call"] = ""

    @property
    def name(self) -> str:
        kernels = f", kernels {self.kernel_us} us" if self.kernel_us != 200 else ""
        stalls = f", {self.stalls} stalls 50 ms" if self.stalls else ""
        return f"slice {self.slice_us} switch {self.switch_us} launch {self.launch_us:g} us{kernels}{stalls}"

    @property
    def floor_us(self) -> float:
        """What card_free is where the driver goes to online and back in the midst of what the window let through.

        It does so where its slice is shorter than what may be on the card: the window and the kernel that fills it.
        """
        on_card = CardSettings("").window_us + self.kernel_us
        return self.slice_us + 2 * self.switch_us if self.slice_us < on_card else 0.0

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the simulator."""
        words = ("--slice-us", self.slice_us, "--switch-us", self.switch_us, "--launch-us", self.launch_us)
        return (*map(str, words), "--queue-depth", "1024")


CORNERS = tuple(Point(*values) for values in product(SLICES_US, SWITCHES_US, LAUNCHES_US))
POINTS = (
    *CORNERS,
    Point(),
    Point(kernel_us=20),
    Point(kernel_us=450, launch_us=6),
    Point(stalls="card"),
    Point(slice_us=5000, switch_us=500, launch_us=6, stalls="card"),
    Point(stalls="call"),
)


@dataclass(frozen=True)
class Result:
    """What one point says."""

    close_us: Sequence[float]
    free_us: Sequence[float]  # without the bursts that began while the card stood still
    spoilt: int  # those
    harvest: float  # of one offline tenant
    harvest_many: float  # of 16, who also pay for changes of context among themselves
    error: float  # by the time that a tenant held the card
    error_1s: float
    error_executed: float  # by what was executed: a card that stands still executes nothing


@dataclass(frozen=True)
class Cast:
    """Who plays at each point."""

    online: Actor
    many: Sequence[Actor]
    twin: Actor
    single: Actor
    sharing: Sequence[Actor]

    @property
    def actors(self) -> list[Actor]:
        """All of them."""
        return [self.online, *self.many, self.twin, self.single, *self.sharing]


@dataclass
class Stalls:
    """Stalls of the cards that were ordered, as stretches of time."""

    stretches: list[Stretch] = field(default_factory=list)

    def meet(self, low: int, high: int) -> bool:
        """Whether any has a moment of [low, high)."""
        return any(begin < high and end > low for begin, end in self.stretches)

    def inside(self, low: int, high: int) -> int:
        """Nanoseconds of [low, high) that they take."""
        return sum(max(0, min(high, end) - max(low, begin)) for begin, end in self.stretches)


def cast(kernel_us: float) -> Cast:
    """16 offline tenants beside online, one beside online, two that share: each on a card of its own."""
    pattern = ("--busy", f"{BUSY_S}", "--idle", f"{IDLE_S}")
    many = offline_jobs(TENANTS, kernel_us)
    single = Actor(301, "offline", 30, endless(kernel_us), card=1)
    sharing = [Actor(job, "offline", share, endless(1000), card=2) for job, share in SHARES.items()]
    return Cast(online_job(*pattern), many, online_job(*pattern, card=1), single, sharing)


def _order(node: Rig, kind: str, tenants: Sequence[Actor], turn: int, found: Stalls) -> None:
    if kind == "card":
        began = time.monotonic_ns()
        for card in range(node.cards):
            node.fault(f"stall us={STALL_US} card={card}")
        found.stretches.append((began, time.monotonic_ns() + STALL_NS))
        return
    log = f"job{tenants[turn % len(tenants)].job_id}.log"
    if (node.directory / log).exists() and (begun := node.logged(log)):
        with contextlib.suppress(SimError):  # it has just ended
            node.fault(f"delay call=cuLaunchKernel us={STALL_US} times=1 pid={begun[0]['pid']}")


@contextmanager
def stalled(node: Rig, kind: str, tenants: Sequence[Actor]) -> Iterator[Stalls]:
    """Stalls of this kind again and again while inside; none for ""."""
    stop, found = threading.Event(), Stalls()

    def stall() -> None:
        for turn in numbers():
            if stop.wait(STALL_EACH_S if kind == "card" else CALL_EACH_S):
                return
            _order(node, kind, tenants, turn, found)

    thread = threading.Thread(target=stall)
    if kind:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        if kind:
            thread.join()


def held(spans: Sequence[Interval]) -> list[Interval]:
    """The pieces of one card with a stall counted as time of the kernel that it stopped and nobody else used."""
    joined: list[Interval] = []
    for span in spans:
        before = joined[-1] if joined else None
        if (
            before
            and not before.last
            and (before.pid, before.ctx, before.seq) == (span.pid, span.ctx, span.seq)
        ):
            joined[-1] = span._replace(t_start=before.t_start)
        else:
            joined.append(span)
    return joined


def harvest(scene: Scene, online: Actor, offline: Sequence[Actor], stalls: Stalls) -> float:
    """harvest_ratio of these jobs, less what the card stood still in the time that policy allows them."""
    span, release = (scene.start, scene.end), RELEASE_MS * ev.NS_PER_MS
    bursts = scene.bursts(online.job_id, release // 2)
    edges = [span[0] - release, *(t for b in bursts for t in (b.call, b.end)), span[1]]
    lost = sum(
        stalls.inside(max(opened + release, span[0]), min(closed, span[1]))
        for opened, closed in zip(edges[0::2], edges[1::2], strict=True)
    )
    done = ev.work_ns(scene.of(*(a.job_id for a in offline)), *span)
    return done / (ev.allowed_ns(bursts, *span, release) - lost)


def share_errors(scene: Scene, jobs: Mapping[int, float]) -> tuple[float, float, float]:
    """Points over all and in the worst second by the time held; over all by what was executed."""
    served = sh.services(held(scene.of(*jobs)), {job: scene.pids[job] for job in jobs})
    span = (scene.start, scene.end)
    total = sh.worst(sh.errors(served, jobs, *span, sh.burst_rule), span[0]).points
    within = sh.worst_window(served, jobs, span, min(SECOND, span[1] - span[0]), sh.burst_rule).points
    return total, within, judge(scene, jobs, "burst-share", 1000).total


def measure(point: Point, count: int, **settings: Any) -> Result:
    """So many online bursts at this point, with these settings of the cards."""
    who = cast(point.kernel_us)
    with rig(cards=3, sim_options=point.options, settings=settings) as node:
        admit(node, who.actors)
        with stalled(node, point.stalls, who.many) as stalls:
            scene = play(node, who.actors, count * (BUSY_S + IDLE_S))
    run = episodes(scene, who.online, who.many)
    fair = [b for b in run.online if not stalls.meet(b.call, b.call + FREE_US * 1000)]
    return Result(
        ev.gate_close_us(run.online, run.gates),
        ev.card_free_us(fair, run.offline),
        len(run.online) - len(fair),
        harvest(scene, who.twin, [who.single], stalls),
        harvest(scene, who.online, who.many, stalls),
        *share_errors(scene, SHARES),
    )


def worst(
    name: str, values: Mapping[str, float], unit: str, target: float | None, runs: int, lowest: bool = False
) -> Figure:
    """The worst point of one promise, and how many are short of it."""
    at = (min if lowest else max)(values, key=lambda point: values[point])
    note = f"(at {at}; median of points {statistics.median(values.values()):.3g}"
    if target is not None:
        short = sum(value < target if lowest else value > target for value in values.values())
        note += f"; {short} of {len(values)} points short"
    sense: Literal["<=", ">="] = ">=" if lowest else "<="
    return Figure(name, values[at], unit, target, sense, runs, note + ")", detail=values)


def _without(values: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}


def _only(values: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def judged(found: Mapping[Point, Result]) -> Iterator[Figure]:
    """Each promise at its worst point, and what is reported beside it (docs/measurements/README.md says why)."""
    runs, points = sum(len(seen.free_us) for seen in found.values()), len(found)
    steady = {point.name: seen for point, seen in found.items() if point.stalls != "call"}
    closes = {point.name: ev.percentile(seen.close_us, 99) for point, seen in found.items()}
    frees = {name: ev.percentile(seen.free_us, 99) for name, seen in steady.items()}
    yield worst("sweep_gate_close_us_p99", closes, "us", GATE_US, runs)
    beyond = {point.name for point in found if point.floor_us > FREE_US}
    yield worst("sweep_card_free_us_p99", _without(frees, beyond), "us", FREE_US, runs)
    if far := _only(frees, beyond):
        yield worst("sweep_card_free_beyond_reach_us_p99", far, "us", FREE_US, len(far))
    yield worst("sweep_harvest_ratio", {n: s.harvest for n, s in steady.items()}, "", HARVEST, points, True)
    yield worst("sweep_share_error_points", {n: s.error for n, s in steady.items()}, "points", TARGET, points)
    cards = {p.name: s for p, s in found.items() if p.stalls == "card"}
    seconds = {name: seen.error_1s for name, seen in _without(steady, cards).items()}
    yield worst("sweep_share_error_points_1s", seconds, "points", TARGET_1S, points)
    many = {point.name: seen.harvest_many for point, seen in found.items()}
    yield worst("sweep_harvest_16_tenants", many, "", None, points, True)
    if cards:
        executed = {name: seen.error_executed for name, seen in cards.items()}
        yield worst("sweep_card_stalls_executed_error", executed, "points", None, len(cards))
    calls = {p.name: s for p, s in found.items() if p.stalls == "call"}
    if calls:
        frees = {name: ev.percentile(seen.free_us, 99) for name, seen in calls.items()}
        yield worst("sweep_call_stalls_card_free_us_p99", frees, "us", FREE_US, len(calls))


def figures(quick: bool) -> Iterator[Figure]:
    """Every promise over all points."""
    points, count = ((CORNERS[0], CORNERS[-1]), 8) if quick else (POINTS, 22)
    yield from judged({point: measure(point, count) for point in points})
