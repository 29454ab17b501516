"""As torch_loads.py, in JAX and in CuPy: whichever of them is there."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Pass = Callable[[], None]


def jitted() -> tuple[Pass, Pass]:
    """Compiled training steps of a network of four layers, in JAX; and how to wait for them."""
    import jax
    import jax.numpy as jnp
    from jax._src import hardware_utils

    # Before it asks the driver, JAX looks for device files of NVIDIA's kernel module.
    hardware_utils._NVIDIA_GPU_DEVICES.append("/dev/null")

    def loss(weights: Any, data: Any) -> Any:
        for layer in weights:
            data = jnp.tanh(data @ layer)
        return data.sum()

    update = jax.jit(
        lambda w, x: [a - 0.01 * b for a, b in zip(w, jax.grad(loss)(w, x), strict=True)]
    )
    held = {"weights": [jnp.ones((1024, 1024)) for _ in range(4)]}
    data = jnp.ones((4096, 1024))

    def step() -> None:
        held["weights"] = update(held["weights"], data)

    return step, lambda: jax.block_until_ready(held["weights"])


def signals() -> tuple[Pass, Pass]:
    """A batch job in CuPy: transforms, elementwise work and sums; each answer goes to the host."""
    import cupy

    data = cupy.ones((64, 65536), dtype=cupy.complex64)

    def step() -> None:
        spectrum = cupy.fft.fft(data, axis=1)
        power = cupy.abs(spectrum) ** 2
        cupy.asnumpy(cupy.log1p(power).sum(axis=1))

    return step, cupy.cuda.Device().synchronize


def main() -> None:
    load = jitted if importlib.util.find_spec("jax") else signals
    for line in sys.stdin:
        _, passes = line.split()
        (one, wait), begun = load(), []
        one()
        wait()
        for _ in range(int(passes)):
            begun.append(time.monotonic_ns())
            one()
        wait()
        print(json.dumps([*begun, time.monotonic_ns()]), flush=True)


if __name__ == "__main__":
    main()
