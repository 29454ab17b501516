"""The memory cap: where each kind of allocation is refused, with which error, and the agreement
with NVML.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node, wait_for
from bench.gpu.place import BUILD, Place

MIB, GIB = 1 << 20, 1 << 30
CAP_MIB = 4096
STEP = 64 * MIB
BEYOND = (CAP_MIB + 2048) * MIB  # a missing cap shows, and a card with 8 GiB free takes no harm
KINDS = ("malloc", "pitch", "array", "async", "vmm", "managed")
POOL_CHUNK = 32 * MIB  # a driver's pool grows by more than was asked for
OUT_OF_MEMORY = 2


def judge(node: Node, told: dict[str, Any], step: int, overhead: int) -> Iterator[Yield]:
    """Stopped at the cap: not above it, and not a step and the context's own memory below it."""
    cap = CAP_MIB * MIB
    below = (cap - told["bytes"] - overhead) / MIB
    yield figure(
        node,
        "above_cap_with_context",
        max(0.0, -below),
        "MiB",
        spread="(until the first look at NVML)",
    )
    yield figure(node, "held_above_cap", max(0, told["bytes"] - cap) / MIB, "MiB", 0)
    yield figure(
        node,
        "short_of_cap",
        below,
        "MiB",
        (step + POOL_CHUNK) / MIB,
        spread="(the context's own memory taken off)",
    )
    yield figure(
        node, "recovers_after_free", float(told["again"] >= told["bytes"] // 2 - step), "", 1, ">="
    )


def held(node: Node) -> int:
    """Bytes of the one job that runs."""
    return sum(tenant.mem_used for tenant in node.tenants())


def beside(node: Node) -> int:
    """Bytes of it that are no allocation: reserved for contexts, or seen by NVML alone."""
    reserved = sum(process.mem_contexts for process in node.ledger())
    return reserved + max([0, *(tenant.mem_extra for tenant in node.tenants())])


def kind(name: str) -> Any:
    """One kind of allocation through the runtime."""

    def body(node: Node) -> Iterator[Yield]:
        argv = [node.place.program("memory"), name, str(STEP), str(BEYOND), "3"]
        process = node.start(argv, "qgpu", mem=f"{CAP_MIB}M")
        wait_for(
            "the program's hold on its memory",
            lambda: process.poll() is not None or held(node) >= CAP_MIB * MIB // 2,
            40,
        )
        extra = beside(node)
        told = node.told(process)
        yield (
            f"refused at {told['bytes'] / MIB:.0f} MiB with {told['error']}; total"
            f" {told['total'] / MIB:.0f} MiB"
        )
        yield figure(node, "own_error", float(told["code"] == OUT_OF_MEMORY), "", 1, ">=")
        yield figure(node, "told_total", told["total"] / MIB, "MiB", CAP_MIB)
        yield from judge(node, told, STEP, extra)

    return body


def workload(node: Node) -> Iterator[Yield]:
    """The driver API: the only one that the simulator can play."""
    argv = [
        BUILD / "bin/qgpu-workload",
        "--json",
        "--alloc-past",
        "6GiB",
        "--requests",
        "20",
        "--kernel-us",
        "100",
    ]
    told = node.run(argv, "qgpu", mem=f"{CAP_MIB}M")
    alloc = told["alloc"]
    yield (
        f"refused at {alloc['bytes'] / MIB:.0f} MiB with {alloc['error']}, then {told['requests']}"
        " requests"
    )
    yield figure(
        node, "own_error", float(alloc["error"] == "CUDA_ERROR_OUT_OF_MEMORY"), "", 1, ">="
    )
    yield figure(node, "held_above_cap", max(0, alloc["bytes"] - CAP_MIB * MIB) / MIB, "MiB", 0)
    yield figure(
        node,
        "short_of_cap",
        (CAP_MIB * MIB - alloc["bytes"]) / MIB,
        "MiB",
        512 + 64,
        spread="(with the context's own memory)",
    )
    yield figure(
        node,
        "recovers_after_free",
        float(told["requests"] == 20 and not told["errors"]),
        "",
        1,
        ">=",
    )


def books(node: Node) -> Iterator[Yield]:
    """The arbiter's account of each process against NVML's, for two processes with different
    amounts.
    """
    sizes = (512, 3072)
    length = "4" if node.place.quick else "8"
    argv = [
        BUILD / "bin/qgpu-workload",
        "--json",
        "--kernel-us",
        "200",
        "--length",
        length,
        "--busy",
        "0.01",
        "--idle",
        "0.05",
    ]
    programs = [
        node.start([*argv, "--memory", f"{size}M"], "qgpu", mem="6G", share=20) for size in sizes
    ]

    def own() -> dict[int, int]:
        return {row.pid: row.mem_used - row.mem_contexts for row in node.ledger()}

    def all_there() -> bool:
        rows = own()
        return all(
            rows.get(p.pid, 0) >= size * MIB for p, size in zip(programs, sizes, strict=True)
        )

    wait_for("both programs' memory in the books", all_there, 60)
    rows = own()
    seen = {p.pid: p.mem_used for p in node.nvml.processes(node.card.uuid)}
    extra = sorted(t.mem_extra / MIB for t in node.tenants())
    yield f"charged beside the ledger per tenant: {extra} MiB"
    if not all(p.pid in seen and seen[p.pid] for p in programs):
        yield (
            f"NVML does not tell memory by pid here: it lists {sorted(seen)}, not"
            f" {[p.pid for p in programs]}"
        )
        return
    overheads = [((seen[p.pid] or 0) - rows[p.pid]) / MIB for p in programs]
    yield figure(
        node,
        "context_overhead",
        max(overheads),
        "MiB",
        spread=f"(NVML less ledger, per process: {overheads})",
    )
    yield figure(node, "overhead_differs_by", max(overheads) - min(overheads), "MiB", 32)
    for program in programs:
        node.told(program)


def torch_cap(how: str) -> Any:
    """PyTorch's own error at the cap, and its life after it."""

    def body(node: Node) -> Iterator[Yield]:
        argv = [*node.place.script("torch_memory"), how, str(STEP), str(BEYOND)]
        process = node.start(argv, "qgpu", mem=f"{CAP_MIB}M")
        extra = 0

        def watch() -> bool:
            nonlocal extra
            extra = max(extra, beside(node))
            return process.poll() is not None

        wait_for("PyTorch's end", watch, 120)
        told = node.told(process)
        yield f"refused at {told['bytes'] / MIB:.0f} MiB with {told['error']}"
        yield figure(node, "own_error", float(told["error"] == "OutOfMemoryError"), "", 1, ">=")
        yield from judge(node, told, STEP, extra)

    return body


def items(place: Place) -> Iterator[Item]:
    """The driver API, each kind of the runtime, PyTorch's two allocators,
    and the allocation table.
    """
    del place
    yield Item("memory/driver-api", 8, workload)
    yield Item("memory/books", 25, books)
    for name in KINDS:
        yield Item(f"memory/{name}", 20, kind(name), ("card", "nvcc"))
    for how in ("caching", "expandable"):
        yield Item(f"memory/torch {how}", 40, torch_cap(how), ("card", "torch"))
