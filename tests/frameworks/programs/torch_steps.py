"""Run as a program with PyTorch: for each word of standard input one line of JSON. A word is the
name of a step; `train 200` is the step with a number. No step reads a kernel's result: on the
simulated driver kernels do not compute.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

MIB = 1 << 20
DEVICE = "cuda"


def _sync() -> None:
    torch.cuda.synchronize()


def _model() -> nn.Module:
    first, last = nn.Linear(256, 512), nn.Linear(512, 16)
    return nn.Sequential(first, nn.ReLU(), nn.LayerNorm(512), nn.Dropout(0.1), last).to(DEVICE)


def _steps(model: nn.Module, number: int, scaler: Any = None, set_to_none: bool = True) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(64, 256, device=DEVICE)
    target = torch.zeros(64, dtype=torch.long, device=DEVICE)
    for _ in range(number):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = nn.functional.cross_entropy(model(data), target)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            optimizer.step()
    _sync()


def train(number: int = 20) -> dict[str, Any]:
    """Eager training of a small network: milliseconds a step."""
    model = _model()
    _steps(model, 3)
    begun = time.perf_counter()
    _steps(model, number)
    return {"ms": (time.perf_counter() - begun) * 1000 / number}


def infer() -> dict[str, Any]:
    """Inference of a network in half precision."""
    model = _model().half().eval()
    with torch.inference_mode():
        for _ in range(5):
            out = model(torch.randn(64, 256, device=DEVICE, dtype=torch.half))
    _sync()
    return {"shape": list(out.shape)}


def conv() -> dict[str, Any]:
    """A convolution by cuDNN, forward and backward, with normalisation and pooling."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
    ).to(DEVICE)
    out = model(torch.randn(8, 3, 64, 64, device=DEVICE))
    out.sum().backward()
    _sync()
    return {"shape": list(out.shape)}


def attention() -> dict[str, Any]:
    """A transformer layer, and attention by itself in bfloat16."""
    layer = nn.TransformerEncoderLayer(128, 4, batch_first=True).to(DEVICE)
    layer(torch.randn(4, 64, 128, device=DEVICE)).sum().backward()
    query = torch.randn(2, 8, 128, 64, device=DEVICE, dtype=torch.bfloat16)
    out = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    _sync()
    return {"shape": list(out.shape)}


def amp() -> dict[str, Any]:
    """Mixed precision."""
    model = _model()
    scaler = torch.amp.GradScaler(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.float16):
        _steps(model, 3, scaler)
    return {}


def graph() -> dict[str, Any]:
    """A captured step, replayed."""
    model, data = _model(), torch.randn(64, 256, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(data)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = model(data)
    for _ in range(20):
        captured.replay()
    _sync()
    return {"shape": list(out.shape)}


def streams() -> dict[str, Any]:
    """Two streams, an event between them, and pinned memory that goes there and back."""
    first, second, done = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    host = torch.full((MIB,), 7, dtype=torch.uint8).pin_memory()
    with torch.cuda.stream(first):
        there = host.to(DEVICE, non_blocking=True)
        done.record()
    back = torch.empty_like(host).pin_memory()
    with torch.cuda.stream(second):
        second.wait_event(done)
        back.copy_(there, non_blocking=True)
    second.synchronize()
    return {"pinned": host.is_pinned(), "same": bool((back == 7).all())}


_kept: list[tuple[torch.Tensor, torch.Tensor]] = []


def keep() -> dict[str, Any]:
    """Tensors with random contents, here and on the card."""
    for size in (1, 1000, MIB, 3 * MIB + 7):
        here = torch.randint(0, 256, (size,), dtype=torch.uint8)
        _kept.append((here, here.to(DEVICE)))
    return {}


def kept() -> dict[str, Any]:
    """Whether they are the same still."""
    return {"same": all(bool((there.cpu() == here).all()) for here, there in _kept)}


def memory() -> dict[str, Any]:
    """MiB: free and total by the driver, and what the caching allocator says."""
    free, total = torch.cuda.mem_get_info()
    return {
        "free": free // MIB,
        "total": total // MIB,
        "properties": torch.cuda.get_device_properties(0).total_memory // MIB,
        "allocated": torch.cuda.memory_allocated() // MIB,
        "reserved": torch.cuda.memory_reserved() // MIB,
    }


def nvml() -> dict[str, Any]:
    """Free and total MiB by NVML, as nvidia-smi sees them."""
    import pynvml

    pynvml.nvmlInit()
    found = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {"free": found.free // MIB, "total": found.total // MIB}


def fill(step: int = 64) -> dict[str, Any]:
    """Allocate until torch.OutOfMemoryError, free, and allocate again."""
    held: list[torch.Tensor] = []
    words = ""
    try:
        while True:
            held.append(torch.empty(step * MIB, dtype=torch.uint8, device=DEVICE))
    except torch.OutOfMemoryError as error:
        words = str(error)
    most = len(held) * step
    held.clear()
    torch.cuda.empty_cache()
    again = torch.empty(step * MIB, dtype=torch.uint8, device=DEVICE)
    _sync()
    return {"held": most, "words": words, "again": again.numel() // MIB}


def _operation(held: list[Any], choice: random.Random) -> None:
    """One random operation of memory, or some work."""
    kind = choice.random()
    if kind < 0.45 or not held:
        size = choice.choice((1 << 10, 1 << 16, MIB, 3 * MIB, 20 * MIB, 100 * MIB))
        held.append(torch.empty(choice.randrange(1, size), dtype=torch.uint8, device=DEVICE))
    elif kind < 0.85:
        held.pop(choice.randrange(len(held)))
    elif kind < 0.9:
        torch.cuda.empty_cache()
    elif kind < 0.95:
        held.append(torch.empty(choice.randrange(1, 4 * MIB), dtype=torch.uint8).pin_memory())
    else:
        _steps(_model(), 1)


def churn(number: int = 1000) -> dict[str, Any]:
    """Random operations of memory; what does not fit is refused and goes on."""
    choice, held, refused = random.Random(number), [], 0  # type: ignore[var-annotated]
    for _ in range(number):
        try:
            _operation(held, choice)
        except torch.OutOfMemoryError:
            refused += 1
            held.clear()
    _sync()
    return {"refused": refused} | memory()


def sleep_wake(number: int = 3) -> dict[str, Any]:
    """As serving engines do: all weights are freed, and allocated again."""
    free = []
    for _ in range(number):
        weights = [torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
        _sync()
        del weights
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0] // MIB)
    return {"free": free}


class _Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1024,), float(index))


def loader() -> dict[str, Any]:
    """DataLoader with processes of both kinds, into pinned memory."""
    seen = {}
    for kind in ("fork", "spawn"):
        batches = torch.utils.data.DataLoader(
            _Numbers(), 8, num_workers=2, pin_memory=True, multiprocessing_context=kind
        )
        seen[kind] = sum(len(batch.to(DEVICE, non_blocking=True)) for batch in batches)
    return seen


def _receive(queue: Any, done: Any) -> None:
    tensor = queue.get()
    done.put((tensor.numel() // MIB, torch.cuda.mem_get_info()[0] // MIB))


def share(size: int = 1024) -> dict[str, Any]:
    """A tensor of some MiB that another process maps: free MiB there and here."""
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, done))
    child.start()
    tensor = torch.ones(size * MIB, dtype=torch.uint8, device=DEVICE)
    queue.put(tensor)
    there, free = done.get(timeout=120)
    child.join()
    return {"there": there, "free": free, "status": child.exitcode}


def ddp() -> dict[str, Any]:
    """One process group of one rank on NCCL, and a wrapped model's step."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(_model())
    _steps(model, 2)
    torch.distributed.destroy_process_group()
    return {}


def main() -> None:
    steps: dict[str, Callable[..., dict[str, Any]]] = {
        step.__name__: step
        for step in (train, infer, conv, attention, amp, graph, streams, memory, nvml, fill)
    } | {step.__name__: step for step in (churn, sleep_wake, loader, share, ddp, keep, kept)}
    for line in sys.stdin:
        word, *more = line.split()
        print(json.dumps(steps[word](*map(int, more))), flush=True)


if __name__ == "__main__":
    main()
