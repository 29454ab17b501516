"""One tenant dies, or a daemon does: the neighbour goes on, with proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node, Way, wait_for
from bench.gpu.place import BUILD, Place
from simulator.sim import SimConfig, Simulator

MIB = 1 << 20
ILLEGAL = 700
Process = Any
RESTART_S = 20.0  # a daemon's new start was seen to take 6 s on two cores with a load of 10


def workload(*more: str) -> list[Any]:
    """The workload program."""
    return [BUILD / "bin/qgpu-workload", "--json", *more]


def start_neighbour(node: Node, way: Way = "qgpu", least_s: float = 0) -> Process:
    """A program that computes the same again and again and compares every result with its first.

    On the simulator it runs until neighbour_is_well() ends it: beside other work that needs the
    processors no fixed length is long enough.
    """
    seconds = max(least_s, 4.0 if node.place.quick else 8.0)
    if node.place.simulated:
        argv = workload(
            "--kernel-us", "200", "--iters", "200000", "--length", "600", "--memory", "64M"
        )
    else:
        argv = [node.place.program("features"), "loop", f"{seconds}"]
    return node.start(argv, way, share=50)


def neighbour_is_well(node: Node, process: Process) -> Iterator[Yield]:
    """It was still at work, or ended by itself, with every result right."""
    if node.place.simulated:
        process.terminate()
    told = node.told(process, 120)
    right = told["errors"] == 0 if node.place.simulated else told["wrong"] == 0
    yield f"neighbour: {told.get('rounds', told.get('requests'))} results"
    yield figure(node, "neighbour_unharmed", float(right), "", 1, ">=")


def working(node: Node, count: int) -> None:
    """Wait until that number of processes is registered and has launched."""
    wait_for(
        f"{count} programs at work",
        lambda: sum(t.launches > 0 for t in node.tenants()) >= count,
        30,
    )


def memory_returns(node: Node, process: Process, before: int) -> Iterator[Yield]:
    """The card has the dead program's memory back, and qgpu forgot it."""
    began = time.monotonic()
    wait_for(
        "the return of the dead program's memory",
        lambda: node.card_memory() <= before + 64 * MIB,
        20,
    )
    wait_for(
        "the end of its account", lambda: process.pid not in {row.pid for row in node.ledger()}, 20
    )
    yield figure(node, "memory_back_after", time.monotonic() - began, "s", 10)


def kill_in_kernel(node: Node) -> Iterator[Yield]:
    """kill -9 while one of its kernels runs for seconds."""
    neighbour = start_neighbour(node)
    working(node, 1)
    before = node.card_memory()
    long = ["--iters", "5000000000"] if node.place.simulated else ["--iters", "3000000000"]
    victim = node.start(
        workload("--kernel-us", "5000000", *long, "--memory", "1G", "--requests", "1"),
        "qgpu",
        share=50,
    )
    working(node, 2)
    time.sleep(0.3)
    held = (node.card_memory() - before) / MIB
    yield figure(node, "victim_held", held, "MiB", 1024, ">=")
    victim.kill()
    victim.wait()
    yield from memory_returns(node, victim, before)
    yield from neighbour_is_well(node, neighbour)


def illegal_address(node: Node, way: Way = "qgpu") -> Iterator[Yield]:
    """A sticky error in one tenant."""
    neighbour = start_neighbour(node, way)
    if way == "qgpu":
        working(node, 1)
    else:
        time.sleep(3)
    if node.place.simulated:
        victim = node.start(
            workload("--kernel-us", "200", "--iters", "200000", "--length", "600"), way
        )
        working(node, 2)
        sim = Simulator(SimConfig(node.directory / "sim", "local"), BUILD, node.simulator)
        sim.control(f"sticky pid={victim.pid} code={ILLEGAL}")
        node.told(victim, 30, status=1)
        yield figure(node, "victim_gets_its_error", 1, "", 1, ">=")
    else:
        told = node.told(
            node.start([node.place.program("features"), "illegal"], way), 30, status=None
        )
        yield f"victim: {told}"
        yield figure(node, "victim_gets_its_error", float(told.get("code") == ILLEGAL), "", 1, ">=")
    if way == "qgpu":
        yield from neighbour_is_well(node, neighbour)
        return
    told = node.told(neighbour, 60, status=None)
    yield figure(
        node, "neighbour_unharmed_under_mps", float(told["status"] == 0 and told.get("wrong") == 0)
    )


def daemon_killed(which: str) -> Callable[[Node], Iterator[Yield]]:
    """A daemon's kill -9: programs run on, and are accounted again when it is back."""

    def body(node: Node) -> Iterator[Yield]:
        neighbour = start_neighbour(node, least_s=RESTART_S)
        working(node, 1)
        daemon, start = {
            "arbiter": (node.arbiter, node.start_arbiter),
            "qgpud": (node.qgpud, node.start_qgpud),
        }[which]
        daemon.kill()
        daemon.wait()
        time.sleep(0.5)
        if neighbour.poll() is not None:
            raise RuntimeError(f"the program ended with {which}: {node.told(neighbour, 5, None)}")
        began = time.monotonic()
        start()
        wait_for(
            "the program's registration",
            lambda: neighbour.pid in {row.pid for row in node.ledger()},
            60,
        )
        yield figure(node, "known_again_after", time.monotonic() - began, "s", 10)
        yield from neighbour_is_well(node, neighbour)

    return body


def under_mps(node: Node) -> Iterator[Yield]:
    """The same fault for clients of one MPS server, for comparison."""
    node.place.program("features")
    with node.mps():
        yield from illegal_address(node, "mps")


def items(place: Place) -> Iterator[Item]:
    """Four faults, and one of them under MPS."""
    needs = () if place.simulated else ("card", "nvcc")
    yield Item("faults/kill -9 in a kernel", 25, kill_in_kernel, needs)
    yield Item("faults/illegal address", 20, illegal_address, needs)
    for which in ("qgpud", "arbiter"):
        yield Item(f"faults/{which} killed", 35, daemon_killed(which), needs)
    yield Item("faults/illegal address under mps", 30, under_mps, ("card", "nvcc", "mps"))
