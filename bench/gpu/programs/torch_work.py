"""A training or inference loop in PyTorch: what it computed, how fast, and when each step ran on
the card.

Prints one JSON line. The steps are stamped with CUDA events, which the card itself writes. Runs
with whatever Python holds PyTorch; imports nothing of qgpu.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Both are read once, when PyTorch and cuBLAS start; with the second, products are deterministic.
if "expandable" in sys.argv:
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = (
        "expandable_segments:True"
    )
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

FEATURES, CLASSES = 1024, 100


def model() -> torch.nn.Module:
    """A transformer encoder and a convolution, small enough for steps of a few ms."""
    layer = torch.nn.TransformerEncoderLayer(FEATURES, 8, 2048, dropout=0.0, batch_first=True)
    parts = [torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Flatten()]
    return torch.nn.Sequential(*parts, torch.nn.LazyLinear(CLASSES)).cuda()


def training(batch: int) -> tuple[Callable[[], torch.Tensor], torch.nn.Module]:
    """One step of training on data that is the same for every run, and the network."""
    network = model()
    x = torch.randn(batch, 32, FEATURES, device="cuda")
    y = torch.randint(CLASSES, (batch,), device="cuda")
    network(x)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        error = loss(network(x), y)
        error.backward()
        optimizer.step()
        return error.detach()

    return step, network


def inference(batch: int) -> tuple[Callable[[], torch.Tensor], torch.nn.Module]:
    """One forward pass, and the network."""
    network = model().eval()
    x = torch.randn(batch, 32, FEATURES, device="cuda")
    with torch.no_grad():
        network(x)

    def step() -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = network(x)
            return result

    return step, network


def captured(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


class Steps:
    """When each step ended on the card, in nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self.base = torch.cuda.Event(enable_timing=True)
        self.base.record()
        self.base.synchronize()
        self.base_ns = time.monotonic_ns()
        self.events: list[Any] = []
        self.launched: list[int] = []

    def __call__(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.launched.append(time.monotonic_ns())
        start.record()
        result = step()
        end.record()
        self.events.append((start, end))
        return result

    def spans(self) -> list[list[int]]:
        """Start and end of each step."""
        torch.cuda.synchronize()
        at = [[self.base.elapsed_time(event) for event in pair] for pair in self.events]
        return [[self.base_ns + int(ms * 1e6) for ms in pair] for pair in at]


def sleep_until(ns: int) -> None:
    """Until this time of CLOCK_MONOTONIC."""
    while (left := ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def endless(
    step: Callable[[], torch.Tensor], length: float, steps: Steps, ahead: int = 3
) -> torch.Tensor:
    """Steps back to back, a few ahead of the card, as a training loop runs."""
    end = time.monotonic() + length
    result = steps(step)
    while time.monotonic() < end:
        result = steps(step)
        if len(steps.events) > ahead:
            steps.events[-ahead - 1][1].synchronize()
    return result


def bursts(
    step: Callable[[], torch.Tensor],
    length: float,
    busy: float,
    idle: float,
    log: str,
    steps: Steps,
) -> torch.Tensor:
    """Requests one after another for `busy` seconds, then a pause; each request is waited for."""
    end = time.monotonic() + length
    lines: list[dict[str, int]] = []
    result = steps(step)
    torch.cuda.synchronize()
    while time.monotonic() < end:
        began, until = time.monotonic_ns(), time.monotonic() + busy
        while time.monotonic() < until:
            start = time.monotonic_ns()
            result = steps(step)
            torch.cuda.synchronize()
            lines.append(
                {"due_ns": start, "start_ns": start, "latency_ns": time.monotonic_ns() - start}
            )
        lines.append({"burst": 1, "start_ns": began, "end_ns": time.monotonic_ns()})
        time.sleep(max(0.0, min(idle, end - time.monotonic())))
    with Path(log).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return result


def digest(tensors: list[torch.Tensor]) -> str:
    """Of every bit."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return total.hexdigest()[:16]


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["train", "infer"], default="train")
    parser.add_argument("--how", choices=["eager", "graphs", "compile"], default="eager")
    parser.add_argument("--alloc", choices=["caching", "expandable"], default="caching")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--steps", type=int, default=0, help="so many steps instead of --length seconds"
    )
    parser.add_argument("--length", type=float, default=5)
    parser.add_argument("--busy", type=float, default=0)
    parser.add_argument("--idle", type=float, default=0)
    parser.add_argument("--start-at", type=int, default=0)
    parser.add_argument("--spans")
    parser.add_argument("--log", default=os.devnull)
    return parser.parse_args()


def prepare(args: argparse.Namespace) -> tuple[Callable[[], torch.Tensor], torch.nn.Module]:
    """The step as it shall run, and the network."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    for fused in (
        "flash",
        "mem_efficient",
        "cudnn",
    ):  # their backward passes add up in no fixed order
        getattr(torch.backends.cuda, f"enable_{fused}_sdp")(False)
    step, network = training(args.batch) if args.mode == "train" else inference(args.batch)
    if args.how == "compile":
        network.compile()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return (captured(step) if args.how == "graphs" else step), network


def main() -> None:
    """Prepare, wait for the start, work, report."""
    args = arguments()
    step, network = prepare(args)
    ready = time.monotonic_ns()
    if args.start_at:
        sleep_until(args.start_at)
    steps = Steps()
    began = time.monotonic_ns()
    if args.steps:
        for _ in range(args.steps):
            result = steps(step)
    elif args.busy:
        result = bursts(step, args.length, args.busy, args.idle, args.log, steps)
    else:
        result = endless(step, args.length, steps)
    spans = steps.spans()
    ended = time.monotonic_ns()
    if args.spans:
        with Path(args.spans).open("w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "spans": spans}, file)
    told: dict[str, object] = {
        "pid": os.getpid(),
        "ready_ns": ready,
        "start_ns": began,
        "end_ns": ended,
        "steps": len(spans),
    }
    told |= {"seconds": (ended - began) / 1e9, "steps_per_s": len(spans) * 1e9 / (ended - began)}
    told |= {
        "sum": digest([result, *network.parameters()]),
        "peak": torch.cuda.max_memory_allocated(),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
