"""Experiments 10 to 16: does the driver move a process's memory to the host and back, how fast.

Each acts on one program of its own, by `qgpu-checkpoint`, as qgpud does
(docs/specs/reclaim.md). The program's memory has known contents, which it compares at its end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.gpu.experiments.product import settings
from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node, Way, wait_for
from bench.gpu.place import BUILD, Place

GIB = 1 << 30
HELPER, WORKLOAD = BUILD / "bin/qgpu-checkpoint", BUILD / "bin/qgpu-workload"
LONGEST_S = 50  # of one operation, so that an item stays within a minute
SIZES = (1, 8, 32)
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")


class RefusedError(RuntimeError):
    """The driver did not move it; the text has its lines."""


def moved(node: Node, what: str, pid: int) -> float:
    """Move a process's memory; the seconds that it took. RefusedError with the driver's words."""
    began = time.monotonic()
    command = [str(HELPER), "--driver", str(node.libcuda), what, str(pid)]
    env = {"QGPU_SIM_DIR": f"{node.directory}/sim"} if node.place.simulated else {}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    if done.returncode:
        raise RefusedError(f"{what}: {done.stdout.strip()} {done.stderr.strip()}")
    return time.monotonic() - began


def loaded(
    node: Node, gib: float, way: Way, before: Sequence[str] = (), more: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A program that holds so much memory and works, and has begun."""
    log = node.place.work / f"checkpoint-{time.monotonic_ns()}.jsonl"
    log.touch(mode=0o666)
    log.chmod(0o666)
    pattern = ("--pattern", str(int(gib * GIB))) if gib else ()
    argv = [*before, WORKLOAD, "--json", "--length", "45", "--log", log, *pattern, *more]
    process = node.start(argv, way, mem=f"{int(gib) + 4}G")
    wait_for(
        "the program's start", lambda: process.poll() is not None or log.read_text(), LONGEST_S
    )
    log.unlink()
    return process


def ended(node: Node, process: subprocess.Popen[str]) -> Mapping[str, Any]:
    """End the load; what the program tells."""
    process.send_signal(signal.SIGTERM)
    return node.told(process, LONGEST_S)


def there_and_back(
    node: Node, process: subprocess.Popen[str], gib: float, name: str = ""
) -> Iterator[Yield]:
    """Move it, look at the card, move it back, and let it compare its memory."""
    try:
        before = node.card_memory()
        leave = moved(node, "leave", process.pid)
        freed = before - node.card_memory()
        back = moved(node, "return", process.pid)
    except RefusedError as error:
        yield f"not moved: {error}"
        yield figure(node, f"{name}moved", 0, "", 1, ">=")
        return
    told = ended(node, process)
    yield figure(node, f"{name}moved", 1, "", 1, ">=")
    yield figure(node, f"{name}freed", freed / GIB, "GiB", gib, ">=")
    yield figure(node, f"{name}leave", leave, "s", spread=f"({gib / leave:.2f} GiB/s)")
    yield figure(node, f"{name}return", back, "s", spread=f"({gib / back:.2f} GiB/s)")
    yield figure(node, f"{name}pages_changed", told["pattern"]["wrong"], "", 0)


def by_size(gib: int, way: Way) -> Callable[[Node], Iterator[Yield]]:
    """Of a program with or without our library, whose pages are registered with the driver."""

    def body(node: Node) -> Iterator[Yield]:
        yield from there_and_back(node, loaded(node, gib, way), gib)

    return body


def under_load(node: Node) -> Iterator[Yield]:
    """Beside a program that answers requests: what it pays while memory moves."""
    away = loaded(node, 8, "qgpu", more=("--no-sync-each",))
    yield from there_and_back(node, away, 8)
    busy = node.start([WORKLOAD, "--json", "--kernel-us", "100", "--length", "8"], "plain")
    away = loaded(node, 8, "qgpu", more=("--no-sync-each",))
    yield from there_and_back(node, away, 8, "beside_a_load_")
    told = node.told(busy)
    yield figure(node, "neighbour_p99", told["latency_us"]["p99"], "us")
    yield figure(node, "neighbour_errors", told["errors"], "", 0)


def other_user(node: Node) -> Iterator[Yield]:
    """A process of another user, moved by root."""
    yield from there_and_back(node, loaded(node, 1, "plain", before=NOBODY), 1)


def with_hardware(node: Node) -> Iterator[Yield]:
    """With qgpu's hardware preemption on: its channel groups are known to the arbiter."""
    with settings(node, "hardware=on"):
        yield from there_and_back(node, loaded(node, 1, "qgpu"), 1)


def killed(node: Node) -> Iterator[Yield]:
    """kill -9 of a process whose memory is away: everything is given back, and the card works."""
    before = node.card_memory()
    process = loaded(node, 1, "qgpu")
    try:
        moved(node, "leave", process.pid)
    except RefusedError as error:
        yield f"not moved: {error}"
        yield figure(node, "moved", 0, "", 1, ">=")
        return
    process.kill()
    process.wait()
    wait_for("the memory's return", lambda: node.card_memory() <= before + (32 << 20), 20)
    after = node.run([WORKLOAD, "--json", "--requests", "200"])
    yield figure(node, "others_compute", float(after["errors"] == 0), "", 1, ">=")


def torch_training(node: Node) -> Iterator[Yield]:
    """PyTorch in the middle of its training, and the bits of its parameters at the end."""
    words = [*node.place.script("torch_work"), "--mode", "train", "--how", "eager"]
    words += ["--alloc", "caching", "--steps", "300"]
    alone = node.run(words, "qgpu", 240, share=100, mem="16G")
    process = node.start(words, "qgpu", share=100, mem="16G")
    wait_for("its memory", lambda: any(each.mem_used > GIB // 4 for each in node.ledger()), 60)
    try:
        leave = moved(node, "leave", process.pid)
        back = moved(node, "return", process.pid)
    except RefusedError as error:
        yield f"not moved: {error}"
        yield figure(node, "moved", 0, "", 1, ">=")
        return
    told = node.told(process, 240)
    yield figure(node, "leave", leave, "s")
    yield figure(node, "return", back, "s")
    yield figure(node, "same_bits", float(told["sum"] == alone["sum"]), "", 1, ">=")


def managed(node: Node) -> Iterator[Yield]:
    """Managed memory: which error the driver answers, and that the program goes on."""
    argv = [node.place.program("memory"), "managed", str(64 << 20), str(GIB), "3"]
    process = node.start(argv, "plain")
    wait_for("its memory", lambda: process.poll() is not None or node.card_memory() > GIB // 2, 40)
    try:
        moved(node, "leave", process.pid)
        yield "the driver moved managed memory"
    except RefusedError as error:
        yield str(error)
    told = node.told(process)
    yield json.dumps(told)


def items(place: Place) -> Iterator[Item]:
    """By what decides most. Moving to another card needs two of them."""
    sizes = SIZES[:1] if place.quick else SIZES
    for gib in sizes:
        name = f"experiments/10 checkpoint {gib} GiB"
        yield Item(f"{name} plain", 15 + gib, by_size(gib, "plain"))
        yield Item(f"{name} qgpu", 15 + gib, by_size(gib, "qgpu"))
    yield Item("experiments/11 checkpoint of PyTorch", 55, torch_training, ("torch",))
    yield Item("experiments/12 checkpoint under load", 55, under_load)
    yield Item("experiments/13 checkpoint of another user", 20, other_user)
    yield Item("experiments/14 checkpoint with hardware preemption", 25, with_hardware)
    yield Item("experiments/15 kill -9 while checkpointed", 25, killed)
    yield Item("experiments/16 checkpoint of managed memory", 25, managed, ("card", "nvcc"))
