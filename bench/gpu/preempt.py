"""Online inference beside offline training: how soon offline is off the card, and what each side
pays, four ways.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.loads import LOADS, Load, Player, Scene, play, unit_of, work_of
from bench.gpu.node import Node, Way
from bench.gpu.place import Place
from bench.harness.figures import Figure
from simulator.judge import evaluate as ev

KERNELS_US = (50, 200, 1000, 5000)
ONLINE = Load("online", "spin", 200)
INFER = Load("infer", "infer", 200)
BUSY_S, IDLE_S = 0.05, 0.2
RELEASE_MS = 100
QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def seconds_of(place: Place) -> float:
    """How long is counted: 40 bursts, or 8."""
    return 2.0 if place.quick else 10.0


def latencies_us(scene: Scene) -> list[float]:
    """Of every online request that was due in the counted time."""
    rows = scene.played["online"].log
    return [
        row["latency_ns"] / 1000
        for row in rows
        if "latency_ns" in row and scene.start <= row["due_ns"] < scene.end
    ]


def bursts(scene: Scene) -> list[ev.Burst]:
    """Online's own notes of when it began and ended to work."""
    rows = [
        ev.Burst(row["start_ns"], row["end_ns"])
        for row in scene.played["online"].log
        if "burst" in row
    ]
    return [burst for burst in rows if burst.call >= scene.start and burst.end <= scene.end]


def quantiles(name: str, node: Node, values: Sequence[float]) -> Figure:
    """The whole distribution, for the plots; the value is the p99."""
    detail = {f"p{q:g}": ev.percentile(values, q) for q in QUANTILES}
    spread = f"(p50 {statistics.median(values):.1f}, max {max(values):.1f} us)"
    return Figure(
        name,
        detail["p99"],
        "us",
        None,
        "<=",
        len(values),
        spread,
        node.place.simulated,
        detail=detail,
    )


def together(node: Node, way: Way, online: Load, offline: Load) -> Iterator[Yield]:
    """Both on the card."""
    players = {
        "online": Player(online, 60, "online", BUSY_S, IDLE_S),
        "offline": Player(offline, 40, "offline"),
    }
    if way == "qgpu":
        node.policy("burst-share")
    unit_of(node, offline)
    scene = play(node, players, way, seconds_of(node.place))
    found, off = bursts(scene), sorted(scene.played["offline"].pieces)
    if not found:
        raise RuntimeError("no whole online burst in the counted time")
    yield quantiles(f"online_p99_{way}", node, latencies_us(scene))
    free = ev.card_free_us(found, off)
    bound = offline.us + 1000 if way == "qgpu" and offline.kind == "spin" else None
    note = (
        f"(p50 {statistics.median(free):.1f}, max {max(free):.1f} us; kernels of {offline.us:g} us)"
    )
    yield figure(
        node,
        f"card_free_us_p99_{way}",
        ev.percentile(free, 99),
        "us",
        bound,
        runs=len(free),
        spread=note,
    )
    work = work_of(node, scene, players)["offline"]
    yield figure(
        node,
        f"offline_part_of_solo_{way}",
        work.within(scene.start, scene.end) / (scene.end - scene.start),
    )
    if way == "qgpu":
        allowed = ev.free_stretches(found, scene.start, scene.end, RELEASE_MS * ev.NS_PER_MS)
        total = sum(high - low for low, high in allowed)
        done = sum(work.within(*stretch) for stretch in allowed)
        yield figure(node, "harvest_ratio", done / total if total else 0.0, "", 0.9, ">=")


def solo(node: Node, online: Load) -> Iterator[Yield]:
    """Online with the card to itself, without qgpu."""
    scene = play(
        node,
        {"online": Player(online, 60, "online", BUSY_S, IDLE_S)},
        "plain",
        seconds_of(node.place),
    )
    yield quantiles("online_p99_alone", node, latencies_us(scene))


def body(way: Way, online: Load, offline: Load) -> Any:
    """The item's function."""

    def run(node: Node) -> Iterator[Yield]:
        if way != "mps":
            yield from together(node, way, online, offline)
            return
        unit_of(node, offline)
        with node.mps():
            yield from together(node, way, online, offline)

    return run


def _needs(place: Place, way: Way, *more: str) -> tuple[str, ...]:
    if place.simulated:
        return ("mps",) if way == "mps" else ()
    return ("card", *more, *(("mps",) if way == "mps" else ()))


def items(place: Place) -> Iterator[Item]:
    """Kernels of every length in every way, then PyTorch against PyTorch."""
    ways: tuple[Way, ...] = ("qgpu", "plain", "mps")
    yield Item(
        "preempt/online alone", 18, lambda node: solo(node, ONLINE), _needs(place, "plain", "nvcc")
    )
    for us in KERNELS_US[1:2] if place.quick else KERNELS_US:
        load = Load(f"offline {us} us", "spin", us)
        for way in ways:
            name = f"preempt/{us} us {way}"
            yield Item(name, 20, body(way, ONLINE, load), _needs(place, way, "nvcc"))
    if place.quick or place.simulated:
        return
    yield Item(
        "preempt/infer alone", 50, lambda node: solo(node, INFER), _needs(place, "plain", "torch")
    )
    for way in ways:
        yield Item(
            f"preempt/train {way}",
            60,
            body(way, INFER, LOADS["train"]),
            _needs(place, way, "torch"),
        )
