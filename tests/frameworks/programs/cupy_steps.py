"""Run as a program with CuPy: for each word of standard input one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import cupy

MIB = 1 << 20


def _sync() -> None:
    cupy.cuda.Device().synchronize()


def arrays() -> dict[str, Any]:
    """Elementwise work, a product by cuBLAS, a sum, random numbers, in a stream of its own."""
    with cupy.cuda.Stream(non_blocking=True):
        one = cupy.random.rand(256, 256, dtype=cupy.float32)
        two = cupy.ones((256, 256), dtype=cupy.float32)
        out = (one @ two + one * 2).sum(axis=0)
    _sync()
    return {"shape": list(out.shape)}


def raw() -> dict[str, Any]:
    """A kernel that NVRTC compiles."""
    kernel = cupy.RawKernel(
        'extern "C" __global__ void twice(float *x, int n)'
        "{ int i = blockDim.x * blockIdx.x + threadIdx.x; if (i < n) x[i] *= 2; }",
        "twice",
    )
    data = cupy.zeros(1024, dtype=cupy.float32)
    for _ in range(10):
        kernel((4,), (256,), (data, 1024))
    _sync()
    return {"registers": kernel.num_regs, "threads": kernel.max_threads_per_block}


def fill(step: int = 64) -> dict[str, Any]:
    """Allocate until OutOfMemoryError, free, and allocate again."""
    held = []
    try:
        while True:
            held.append(cupy.empty(step * MIB, dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError:
        most = len(held) * step
    held.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.empty(step * MIB, dtype=cupy.uint8)
    _sync()
    free, total = cupy.cuda.runtime.memGetInfo()
    return {"held": most, "free": free // MIB, "total": total // MIB}


def main() -> None:
    steps = {step.__name__: step for step in (arrays, raw, fill)}
    for line in sys.stdin:
        print(json.dumps(steps[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
