"""Run as a program with Numba: for each word of standard input one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from numba import cuda

MIB = 1 << 20


@cuda.jit
def twice(data: Any) -> None:
    """A kernel that Numba compiles."""
    i = cuda.grid(1)
    if i < data.size:
        data[i] *= 2


def kernels() -> dict[str, Any]:
    """Compile, launch in a stream, copy back."""
    stream = cuda.stream()
    data = cuda.to_device(np.ones(4096, dtype=np.float32), stream=stream)
    for _ in range(10):
        twice[16, 256, stream](data)
    back = data.copy_to_host(stream=stream)
    stream.synchronize()
    return {"shape": list(back.shape)}


def fill(step: int = 64) -> dict[str, Any]:
    """Allocate until the driver refuses."""
    held = []
    try:
        while True:
            held.append(cuda.device_array(step * MIB, dtype=np.uint8))
    except cuda.cudadrv.driver.CudaAPIError as error:
        words = str(error)
    info = cuda.current_context().get_memory_info()
    return {"held": len(held) * step, "words": words, "total": info.total // MIB}


def main() -> None:
    steps = {step.__name__: step for step in (kernels, fill)}
    for line in sys.stdin:
        print(json.dumps(steps[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
