"""Eager training of a small network with PyTorch: steps that are mostly launches.

For each line of standard input, `STEPS SPIN_US`, one line of JSON: seconds of the clock and of this
process's own CPU time that the steps took. After each step it computes for SPIN_US.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

DEVICE = "cuda"


def training() -> Callable[[], None]:
    """A step of AdamW on four small layers."""
    layers: list[nn.Module] = [nn.Linear(128, 256), nn.ReLU(), nn.LayerNorm(256)]
    layers += [nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 16)]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(32, 128, device=DEVICE)
    target = torch.zeros(32, dtype=torch.long, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    return step


def spin(seconds: float) -> None:
    """Use the CPU for this time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def timed(step: Callable[[], None], steps: int, spin_us: float) -> dict[str, float]:
    """That number of steps, the last one awaited."""
    torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
        if spin_us:
            spin(spin_us / 1e6)
    torch.cuda.synchronize()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def main() -> None:
    torch.set_num_threads(1)
    step = training()
    for line in sys.stdin:
        steps, spin_us = line.split()
        print(json.dumps(timed(step, int(steps), float(spin_us))), flush=True)


if __name__ == "__main__":
    main()
