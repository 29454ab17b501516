"""Training with PyTorch that waits after each step, as one that loads data or writes a log does.

Arguments: WIDTH PAUSE_S. For each line of standard input, a number of seconds to train, one line of
JSON: how many steps it made and in what time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

DEVICE, LAYERS, BATCH = "cuda", 4, 256


def training(width: int) -> Callable[[], None]:
    """An eager step of SGD on equal linear layers, awaited."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(BATCH, width, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def train(step: Callable[[], None], seconds: float, pause_s: float) -> dict[str, float]:
    """Steps with pauses for so long."""
    began, steps = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        step()
        time.sleep(pause_s)
        steps += 1
    return {"steps": steps, "seconds": time.perf_counter() - began}


def main() -> None:
    torch.set_num_threads(1)
    step, pause_s = training(int(sys.argv[1])), float(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(train(step, float(line), pause_s)), flush=True)


if __name__ == "__main__":
    main()
