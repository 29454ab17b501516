"""Does it work: the same program with and without qgpu gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.node import Node
from bench.gpu.place import BUILD, SHARED, VARIANTS, Place

FEATURES = ("plain", "graph", "cooperative", "threads", "vmm", "pool", "managed", "ipc")
DRIVER_API = {
    "plain": ("--requests", "300"),
    "graph": ("--requests", "100", "--kernels-per-request", "10", "--graph"),
    "streams": ("--requests", "300", "--streams", "8"),
    "queued": ("--requests", "640", "--no-sync-each"),
    "memory": ("--requests", "50", "--memory", "1GiB"),
}
TORCH = [
    (mode, how, alloc)
    for mode in ("train", "infer")
    for how in ("eager", "graphs", "compile")
    for alloc in ("caching", "expandable")
    # A training step makes new gradients, so inference covers capture; compiled code allocates as
    # eager code does.
    if (mode, how) != ("train", "graphs") and (how, alloc) != ("compile", "expandable")
]
WORKLOAD = BUILD / "bin/qgpu-workload"


def same(
    node: Node, argv: Sequence[object], keys: Sequence[str], seconds: float, **more: Any
) -> Iterator[Yield]:
    """Twice without qgpu, to see whether it is deterministic at all, then under it."""
    runs = [node.run(argv, "plain", seconds, **more) for _ in range(2)]
    ours = node.run(argv, "qgpu", seconds, share=100, mem="16G", **more)
    first, second, governed = ([run[key] for key in keys] for run in (*runs, ours))
    if first != second:
        yield f"not deterministic without qgpu either: {first} and {second}; under qgpu {governed}"
        yield figure(node, "ran_under_qgpu", 1, "", 1, ">=")
        return
    yield f"{dict(zip(keys, governed, strict=True))}"
    yield figure(node, "same_bits", float(first == governed), "", 1, ">=", runs=3)


def driver_api(args: Sequence[str]) -> Any:
    """The workload program: every request is done and nothing failed."""

    def body(node: Node) -> Iterator[Yield]:
        argv = [WORKLOAD, "--json", "--kernel-us", "100", *args]
        yield from same(node, argv, ("requests", "kernels", "errors"), 60)

    return body


def feature(name: str, variant: str) -> Any:
    """One feature of the runtime API."""

    def body(node: Node) -> Iterator[Yield]:
        argv = [node.place.program("features", variant), name]
        yield from same(node, argv, ("sum",), 60, env=node.place.runtime_env(variant))

    return body


def torch_loop(mode: str, how: str, alloc: str) -> Any:
    """30 steps of PyTorch with deterministic algorithms, the parameters' bits compared."""

    def body(node: Node) -> Iterator[Yield]:
        words = ["--mode", mode, "--how", how, "--alloc", alloc, "--steps", "30"]
        yield from same(node, [*node.place.script("torch_work"), *words], ("sum", "steps"), 240)

    return body


def library(name: str) -> Any:
    """JAX or CuPy."""

    def body(node: Node) -> Iterator[Yield]:
        yield from same(node, [*node.place.script("arrays"), name], ("sum", "finite"), 180)

    return body


def items(place: Place) -> Iterator[Item]:
    """Driver API, runtime API in three builds, PyTorch, JAX, CuPy."""
    for name, args in list(DRIVER_API.items())[: 2 if place.quick else None]:
        yield Item(f"works/driver-api {name}", 6, driver_api(args))
    for variant in VARIANTS:
        for name in FEATURES:
            label = f"works/runtime{variant} {name}"
            yield Item(
                label,
                12,
                feature(name, variant),
                ("card", "toolkit" if variant == SHARED else "nvcc"),
            )
    for mode, how, alloc in TORCH:
        needs = ("card", "torch", "triton") if how == "compile" else ("card", "torch")
        yield Item(
            f"works/torch {mode} {how} {alloc}",
            120 if how == "compile" else 45,
            torch_loop(mode, how, alloc),
            needs,
        )
    for name in ("jax", "cupy"):
        yield Item(f"works/{name}", 60, library(name), ("card", name))
