"""One rank of data-parallel training through NCCL; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
are in the environment, and the rank's card has its number. Parameters are not compared at the start
(init_sync=False): that reads results of kernels.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from words import answer

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH = 1024


def train(steps: int = 5) -> dict[str, Any]:
    """Steps of a wrapped model, then other collective calls; the card and the MiB of the model.

    What else is allocated depends on time: NCCL's watchdog frees tensors of ended calls later.
    """
    torch.cuda.set_device(RANK)
    torch.distributed.init_process_group("nccl")
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
    model = nn.parallel.DistributedDataParallel(layers, device_ids=[RANK], init_sync=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
    parts = [torch.zeros(WIDTH, device="cuda") for _ in range(RANKS)]
    torch.distributed.all_gather(parts, torch.ones(WIDTH, device="cuda"))
    torch.distributed.broadcast(parts[0], src=0)
    torch.distributed.barrier()
    torch.cuda.synchronize()
    states = [part for one in optimizer.state.values() for part in one.values() if part.is_cuda]
    tensors = [*model.parameters(), *(one.grad for one in model.parameters()), *states]
    model_mib = sum(one.nbytes for one in tensors) >> 20
    held = torch.cuda.memory_allocated() >> 20
    torch.distributed.destroy_process_group()
    return {"card": torch.cuda.current_device(), "held": held, "model": model_mib}


if __name__ == "__main__":
    answer(train)
