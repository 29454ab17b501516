"""Run as a program with JAX: for each word of standard input one line of JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import hardware_utils

MIB = 1 << 20
# Before it asks the driver, JAX looks for device files of NVIDIA's kernel module.
hardware_utils._NVIDIA_GPU_DEVICES.append("/dev/null")


def _loss(weights: Any, data: Any) -> Any:
    return jnp.tanh(data @ weights).sum()


def train(number: int = 20) -> dict[str, Any]:
    """Compiled training steps of one layer."""
    weights, data = jnp.ones((128, 64)), jnp.ones((32, 128))
    step = jax.jit(lambda w, x: w - 0.01 * jax.grad(_loss)(w, x))
    for _ in range(number):
        weights = step(weights, data)
    weights.block_until_ready()
    return {"shape": list(weights.shape), "kind": jax.devices()[0].device_kind}


def memory() -> dict[str, Any]:
    """MiB that the allocator may use: 75 % of the GPU, taken at the start."""
    jnp.ones(8).block_until_ready()
    stats = jax.devices()[0].memory_stats()
    return {"limit": stats["bytes_limit"] // MIB}


def main() -> None:
    steps = {step.__name__: step for step in (train, memory)}
    for line in sys.stdin:
        print(json.dumps(steps[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
