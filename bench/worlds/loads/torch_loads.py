"""Loads that `python -m bench.worlds.capture` captures, in PyTorch.

For each line of standard input, `LOAD PASSES`, one line of JSON: when each pass began, and when the
last one ended (CLOCK_MONOTONIC, ns). A pass is a step of training, or a request.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

DEVICE = "cuda"
Pass = Callable[[], None]


def _training(model: nn.Module, data: torch.Tensor, classes: int, fused: bool = False) -> Pass:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    target = torch.zeros(len(data), dtype=torch.long, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        out = model(data)
        nn.functional.cross_entropy(out.reshape(-1, classes)[: len(data)], target).backward()
        optimizer.step()

    return step


def train() -> Pass:
    """A small network: mostly launches."""
    layers: list[nn.Module] = [nn.Linear(256, 512), nn.ReLU(), nn.LayerNorm(512), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(512, 16)).to(DEVICE)
    return _training(model, torch.randn(64, 256, device=DEVICE), 16)


def amp() -> Pass:
    """The same in mixed precision: the loss is scaled, and each step looks at a number."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(DEVICE)
    data, scaler = torch.randn(256, 256, device=DEVICE), torch.amp.GradScaler(DEVICE)
    target = torch.zeros(256, dtype=torch.long, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(data), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _convolutions(depth: int, width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).to(
        DEVICE
    )


def conv() -> Pass:
    """Training of a network of convolutions on large images: long kernels."""
    return _training(_convolutions(6, 64), torch.randn(96, 3, 112, 112, device=DEVICE), 10, True)


def attention() -> Pass:
    """Training of a transformer: middling kernels."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(512, 32)).to(DEVICE)
    return _training(model, torch.randn(48, 256, 512, device=DEVICE), 32, True)


class _Images(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 64, 64), float(index % 7))


def _batches(size: int) -> Iterator[torch.Tensor]:
    yield from torch.utils.data.DataLoader(_Images(), size, num_workers=1, pin_memory=True)


def loader() -> Pass:
    """Training that waits for its DataLoader and copies each batch to the card."""
    model, batches = _convolutions(3, 32), _batches(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.zeros(64, dtype=torch.long, device=DEVICE)

    def step() -> None:
        data = next(batches).to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    return step


def _request(model: nn.Module, data: torch.Tensor) -> Pass:
    """Input comes from the host, and the answer goes there."""
    host = data.cpu().pin_memory()

    @torch.inference_mode()
    def request() -> None:
        model(host.to(DEVICE, non_blocking=True)).cpu()

    return request


def infer() -> Pass:
    """Requests to a small network in half precision."""
    layers: list[nn.Module] = [nn.Linear(256, 512), nn.ReLU(), nn.LayerNorm(512)]
    model = nn.Sequential(*layers, nn.Linear(512, 16)).to(DEVICE).half().eval()
    return _request(model, torch.randn(64, 256, device=DEVICE, dtype=torch.half))


def images() -> Pass:
    """Requests to a network of convolutions."""
    return _request(_convolutions(12, 64).eval(), torch.randn(16, 3, 112, 112, device=DEVICE))


def encoder() -> Pass:
    """Requests to a transformer, eager."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE).half().eval()
    return _request(model, torch.randn(8, 128, 512, device=DEVICE, dtype=torch.half))


class _Decoder(nn.Module):
    """Writes a row of each sequence into a pool and reads it back, in four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8))
        self.pool = torch.zeros(4096, 1024, device=DEVICE, dtype=torch.half)

    def forward(self, tokens: torch.Tensor, rows: torch.Tensor) -> Any:
        for into, out in zip(self.layers[::2], self.layers[1::2], strict=True):
            self.pool.index_copy_(0, rows, into(tokens))
            tokens = out(torch.index_select(self.pool, 0, rows))
        return tokens.argmax(-1)


def _captured(model: nn.Module, tokens: torch.Tensor, rows: torch.Tensor) -> Any:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        model(tokens, rows)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out = model(tokens, rows)
    return graph, out


def decode() -> Pass:
    """Serving of a language model: a prefill, then tokens one by one from captured graphs. Each
    token goes to the host, and answers are of different lengths.
    """
    dice = random.Random(1)
    with torch.inference_mode():
        model = _Decoder().to(DEVICE, torch.half)
        prompt = torch.zeros(512, 1024, device=DEVICE, dtype=torch.half)
        graph, out = _captured(model, prompt[:8].clone(), torch.arange(8, device=DEVICE))

    @torch.inference_mode()
    def request() -> None:
        model(prompt, torch.arange(512, device=DEVICE))
        for _ in range(dice.randint(4, 24)):
            graph.replay()
            out.cpu()

    return request


LOADS = {
    load.__name__: load
    for load in (train, amp, conv, attention, loader, infer, images, encoder, decode)
}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, passes = line.split()
        one, begun = LOADS[name](), []
        one()
        torch.cuda.synchronize()
        for _ in range(int(passes)):
            begun.append(time.monotonic_ns())
            one()
        torch.cuda.synchronize()
        print(json.dumps([*begun, time.monotonic_ns()]), flush=True)


if __name__ == "__main__":
    main()
