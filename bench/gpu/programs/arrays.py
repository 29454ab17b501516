"""The same small computation in JAX or CuPy, with a checksum of every bit.

usage: arrays.py jax|cupy
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import numpy as np

N, ROUNDS = 1024, 50


def with_jax(a: Any, b: Any) -> Any:
    """Compiled products and sums."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    import jax

    if jax.devices()[0].platform != "gpu":
        raise SystemExit("JAX sees no card")

    @jax.jit
    def step(x: Any, y: Any) -> Any:
        return (x @ y) / N + x * 0.5

    x, y = jax.numpy.asarray(a), jax.numpy.asarray(b)
    for _ in range(ROUNDS):
        x = step(x, y)
    return np.asarray(x)


def with_cupy(a: Any, b: Any) -> Any:
    """Products, an elementwise kernel of its own and a sort."""
    import cupy

    x, y = cupy.asarray(a), cupy.asarray(b)
    blend = cupy.ElementwiseKernel(
        "float32 p, float32 q", "float32 r", "r = p / 1024 + q * 0.5f", "blend"
    )
    for _ in range(ROUNDS):
        x = blend(x @ y, x)
    return cupy.asnumpy(cupy.sort(x, axis=1))


def main() -> None:
    """Compute and print the result."""
    which = {"jax": with_jax, "cupy": with_cupy}[sys.argv[1]]
    random = np.random.default_rng(1)
    a, b = (random.random((N, N), dtype=np.float32) for _ in range(2))
    result = which(a, b)
    told = {"library": sys.argv[1], "sum": hashlib.sha256(result.tobytes()).hexdigest()[:16]}
    print(json.dumps(told | {"finite": bool(np.isfinite(result).all())}), flush=True)


if __name__ == "__main__":
    main()
