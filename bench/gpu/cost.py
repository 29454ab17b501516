"""What qgpu costs a program that has the card to itself: per launch, and end to end, in interleaved
pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.gpu.items import Item, Yield, figure, spread_of
from bench.gpu.loads import LOADS, ns_per_iter
from bench.gpu.node import Node, Way
from bench.gpu.place import BUILD, Place

PAIRS = 5
SLOWDOWN_PERCENT = 0.5


def pairs_of(place: Place) -> int:
    """How many."""
    return 2 if place.quick else PAIRS


def interleaved(
    node: Node, argv: Sequence[Any], key: str, pairs: int
) -> Iterator[tuple[float, float]]:
    """The same program without and with qgpu, alternating; the order changes from pair to pair."""
    for number in range(pairs):
        order: tuple[Way, Way] = ("plain", "qgpu") if number % 2 == 0 else ("qgpu", "plain")
        found = {way: node.run(argv, way, 180, share=100, mem="16G")[key] for way in order}
        yield found["plain"], found["qgpu"]


def launches(node: Node) -> Iterator[Yield]:
    """Nanoseconds per call of the runtime's launch and event record, on the real driver."""
    argv = [node.place.program("tenant"), "--launch-cost", "200"]
    for key in ("launch_ns", "event_record_ns"):
        found = list(interleaved(node, argv, key, pairs_of(node.place)))
        extra = [ours - plain for plain, ours in found]
        base = statistics.median(plain for plain, _ in found)
        note = f"{spread_of(extra, 'ns')}; without qgpu {base:.0f} ns"
        yield figure(
            node,
            key.replace("_ns", "_overhead"),
            statistics.median(extra),
            "ns",
            None,
            runs=len(found),
            spread=note,
        )


def slowdown(make: Callable[[Node], Sequence[Any]], key: str) -> Any:
    """Percent by which the rate falls for a 100 % tenant."""

    def body(node: Node) -> Iterator[Yield]:
        found = list(interleaved(node, make(node), key, pairs_of(node.place)))
        lost = [100 * (plain / ours - 1) for plain, ours in found]
        base = statistics.median(plain for plain, _ in found)
        note = f"{spread_of(lost, '%')}; {base:.1f} per s without qgpu"
        yield figure(
            node,
            "slowdown_percent",
            statistics.median(lost),
            "%",
            SLOWDOWN_PERCENT,
            runs=len(found),
            spread=note,
        )

    return body


def endless(us: float, *more: str) -> Callable[[Node], Sequence[Any]]:
    """The workload program with kernels back to back."""

    def make(node: Node) -> Sequence[Any]:
        length = "1" if node.place.quick else "4"
        argv = [BUILD / "bin/qgpu-workload", "--json", "--kernel-us", f"{us:g}", "--length", length]
        fixed = ["--iters", str(round(us * 1000))] if node.place.simulated else []
        return [*argv, *fixed, *more]

    return make


def torch_loop(mode: str, how: str) -> Callable[[Node], Sequence[Any]]:
    """PyTorch at full speed."""

    def make(node: Node) -> Sequence[Any]:
        return [*node.place.script("torch_work"), "--mode", mode, "--how", how, "--length", "5"]

    return make


def requests(node: Node) -> Sequence[Any]:
    """One request after another, each waited for: what a wait costs more under qgpu."""
    ns_per_iter(node)
    return endless(LOADS["small"].us, "--kernels-per-request", "5")(node)


def items(place: Place) -> Iterator[Item]:
    """Launch cost, then the rates."""
    yield Item("cost/launch", 60, launches, ("card", "nvcc"))
    yield Item("cost/queued 200 us", 60, slowdown(endless(200, "--no-sync-each"), "kernels_per_s"))
    yield Item("cost/waited 100 us", 60, slowdown(requests, "requests_per_s"))
    if place.quick:
        return
    yield Item(
        "cost/graph",
        60,
        slowdown(endless(50, "--graph", "--kernels-per-request", "20"), "requests_per_s"),
    )
    for mode, how in (("train", "eager"), ("infer", "eager"), ("infer", "graphs")):
        yield Item(
            f"cost/torch {mode} {how}",
            170,
            slowdown(torch_loop(mode, how), "steps_per_s"),
            ("card", "torch"),
        )
