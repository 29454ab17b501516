"""qgpu's own hardware preemption on this card: shim and arbiter with `hardware=on`, judged by the
card's own clock.

A thousand online launches beside kernels of 500 ms, a graph of as much, and a kernel that never
ends; what online pays, what offline gets; and the same with hardware off, which must come out
short.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator

from bench.gpu.items import Item, Yield, figure
from bench.gpu.loads import Load, Player, Scene, play
from bench.gpu.node import Node
from bench.gpu.place import Place
from bench.gpu.preempt import bursts, latencies_us
from bench.promises.hardware_report import HardwareReports
from simulator.judge import evaluate as ev

ONLINE = Load("online", "spin", 200)
LAUNCH_S, PAUSE_S, RELEASE_MS = 0.002, 0.033, 5
TARGET_US, RATIO, HARVEST = 1000, 1.05, 0.97
OFFLINE = {
    "5 ms": Load("offline 5 ms", "spin", 5_000, beat=True),
    "50 ms": Load("offline 50 ms", "spin", 50_000, beat=True),
    "500 ms": Load("offline 500 ms", "spin", 500_000, beat=True),
    "graph": Load("offline graph of 500 ms", "graph", 5_000, beat=True, nodes=100),
    "persistent": Load("offline persistent", "persistent", 3_000_000, beat=True),
}


def seconds_of(place: Place) -> float:
    """Long enough for a thousand launches."""
    return 2.0 if place.quick else 40.0


def episodes(scene: Scene, release_ns: int) -> list[ev.Burst]:
    """Stretches of online requests, divided where online itself asked for nothing for idle_release.

    By its own log and not by its pattern: a program that this machine stalls for so long gives the
    card back meanwhile.
    """
    found: list[ev.Burst] = []
    rows = (row for row in scene.played["online"].log if "latency_ns" in row)
    for row in sorted(rows, key=lambda row: row["due_ns"]):
        end = row["due_ns"] + row["latency_ns"]
        if found and row["due_ns"] - found[-1].end < release_ns:
            found[-1] = ev.Burst(found[-1].call, end)
        else:
            found.append(ev.Burst(row["due_ns"], end))
    return [burst for burst in found if burst.call >= scene.start and burst.end <= scene.end]


@contextlib.contextmanager
def settings(node: Node, *words: str) -> Iterator[None]:
    """These settings of the card while inside."""
    node.qgpu("card", "set", "0", *words)
    try:
        yield
    finally:
        node.qgpu("card", "reset", "0")


def launches(kind: str, hardware: str) -> Callable[[Node], Iterator[Yield]]:
    """Online launches again and again; how long offline went on after each."""

    def body(node: Node) -> Iterator[Yield]:
        players = {
            "online": Player(ONLINE, 60, "online", LAUNCH_S, PAUSE_S),
            "offline": Player(OFFLINE[kind], 40),
        }
        with (
            settings(node, f"hardware={hardware}", f"idle_release={RELEASE_MS}ms"),
            HardwareReports(f"{node.directory}/run") as told,
        ):
            scene = play(node, players, "qgpu", seconds_of(node.place))
        yield told.words() or "the arbiter was told of no channel group"
        found, off = (
            episodes(scene, RELEASE_MS * ev.NS_PER_MS),
            sorted(scene.played["offline"].pieces),
        )
        if not found:
            raise RuntimeError("no whole online burst in the counted time")
        free = ev.card_free_us(found, off)
        spread = f"(p50 {statistics.median(free):.1f}, max {max(free):.1f} us)"
        control = hardware == "off"
        name = "control_hardware_off_last_progress_us_p99" if control else "last_progress_us_p99"
        yield figure(
            node, name, ev.percentile(free, 99), "us", TARGET_US, "<=", len(free), spread, control
        )
        if not control:
            yield figure(node, "stops", told.stops, "", 1, ">=")

    return body


def ratio(kind: str) -> Callable[[Node], Iterator[Yield]]:
    """Online's p99 beside offline kernels of this length over its p99 alone, in the same item."""

    def body(node: Node) -> Iterator[Yield]:
        online = {"online": Player(ONLINE, 60, "online", 0.05, 0.1)}
        seconds = seconds_of(node.place) / 2
        found = {}
        with settings(node, "hardware=on", "idle_release=20ms"):
            for name, more in (("alone", {}), ("beside", {"offline": Player(OFFLINE[kind], 40)})):
                values = latencies_us(play(node, online | more, "qgpu", seconds))
                found[name] = ev.percentile(values, 99)
                yield figure(node, f"online_p99_us_{name}", found[name], "us", runs=len(values))
        if node.place.simulated:
            yield (
                "one after the other on a busy machine: make bench measures it with a twin at the"
                " same time"
            )
        target = None if node.place.simulated else RATIO
        yield figure(node, "online_p99_ratio", found["beside"] / found["alone"], "", target)

    return body


def harvest(node: Node) -> Iterator[Yield]:
    """What offline kernels of 500 ms do in online's pauses, of what policy allows; online sleeps
    most of the time.
    """
    players = {
        "online": Player(ONLINE, 60, "online", 0.05, 1.0),
        "offline": Player(OFFLINE["500 ms"], 40),
    }
    release_ms = 100
    with settings(node, "hardware=on", f"idle_release={release_ms}ms"):
        scene = play(node, players, "qgpu", seconds_of(node.place))
    off = sorted(scene.played["offline"].pieces)
    release = release_ms * ev.NS_PER_MS
    value = ev.harvest_ratio(bursts(scene), off, scene.start, scene.end, release)
    yield figure(node, "harvest_ratio", value, "", HARVEST, ">=")


def doctor(node: Node) -> Iterator[Yield]:
    """What qgpu doctor says of it with a program on the card, and that a self-test passed there."""
    with settings(node, "hardware=on"), HardwareReports(f"{node.directory}/run") as told:
        play(node, {"offline": Player(OFFLINE["5 ms"], 40)}, "qgpu", 3.0)
    yield told.words() or "the arbiter was told of no channel group"
    yield figure(node, "self_test_passed", told.usable, "", 1, ">=")


def items(place: Place) -> Iterator[Item]:
    """After the commands themselves are known to work."""
    needs = () if place.simulated else ("card", "nvcc")
    yield Item("experiments/product self-test", 20, doctor, needs)
    for kind in ("500 ms", "graph", "persistent"):
        yield Item(f"experiments/product {kind}", 58, launches(kind, "on"), needs)
    yield Item("experiments/product control", 58, launches("500 ms", "off"), needs)
    for kind in ("5 ms", "50 ms", "500 ms"):
        yield Item(f"experiments/product p99 {kind}", 58, ratio(kind), needs)
    yield Item("experiments/product harvest", 58, harvest, needs)
