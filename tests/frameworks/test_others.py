"""CuPy, JAX and Numba, unmodified, on the simulated driver under the shim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from runtime_support import CAP_MIB, OFFLINE, Program

Start = Callable[..., Program]
# Autotuning reads results of kernels, which the simulated driver does not compute; and CUPTI, whose
# tables are not served, is asked for versions.
JAX = {
    "JAX_PLATFORMS": "cuda",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",
}
PREALLOCATED = 0.75  # of the GPU: JAX's default


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
@pytest.mark.parametrize("step", ["arrays", "raw"])
def test_cupy(program: Start, job: int | None, step: str) -> None:
    running = program("cupy", "cupy", job)
    assert running.ask(step)
    running.end()


@pytest.mark.parametrize("name", ["cupy", "numba"])
def test_the_cap_is_out_of_memory(program: Start, name: str) -> None:
    running = program(name, name, OFFLINE)
    told = running.ask("fill")
    assert told["total"] == CAP_MIB and CAP_MIB - 1024 <= told["held"] <= CAP_MIB
    assert "refused: job 2 holds" in running.end()


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_numba(program: Start, job: int | None) -> None:
    running = program("numba", "numba", job)
    assert running.ask("kernels")["shape"] == [4096]
    running.end()


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_jax_trains_on_the_gpu(program: Start, job: int | None) -> None:
    running = program("jax", "jax", job, **JAX)
    assert running.ask("train") == {"shape": [128, 64], "kind": "NVIDIA H200"}
    running.end()


def test_jax_takes_three_quarters_of_the_cap(program: Start) -> None:
    running = program("jax", "jax", OFFLINE, **JAX)
    limit = running.ask("memory")["limit"]
    assert PREALLOCATED * (CAP_MIB - 512) <= limit <= PREALLOCATED * CAP_MIB
    running.end()
