"""PyTorch at its memory cap: takes until refused, catches its own error, frees, and works on."""

from __future__ import annotations

import json
import os
import sys

if "expandable" in sys.argv:  # read once, when PyTorch starts
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = (
        "expandable_segments:True"
    )

import torch


def main() -> None:
    """usage: torch_memory.py caching|expandable STEP UNTIL"""
    how, step, until = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    free, total = torch.cuda.mem_get_info()
    held: list[torch.Tensor] = []
    error = ""
    try:
        while len(held) * step < until:
            held.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as refused:
        error = type(refused).__name__
    count = len(held)
    held.clear()
    torch.cuda.empty_cache()
    again = torch.ones(count * step // 8, dtype=torch.float32, device="cuda")
    told = {
        "kind": f"torch {how}",
        "bytes": count * step,
        "error": error,
        "again": again.numel() * 4,
    }
    print(
        json.dumps(told | {"sum": float(again[:1000].sum()), "total": total, "free": free}),
        flush=True,
    )


if __name__ == "__main__":
    main()
