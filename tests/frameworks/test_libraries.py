"""NVIDIA's libraries as they come with PyTorch and CuPy, on the simulated driver: cuFFT, cuSOLVER,
cuSPARSE, cuRAND, cuBLASLt and cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from runtime_support import OFFLINE, Program

Start = Callable[..., Program]
STEPS = {
    "fft": [[64, 250], [64, 126], [64, 250]],
    "linalg": [[64, 64], [64, 64], [64, 64], [64]],
    "sparse": [[64, 8], [64]],
    "rand": [[8], [64]],
    "quantised": [[64, 64], [64, 64]],
    "recurrent": [[5, 3, 16]],
}
CUPY = {
    "fft": [[64, 250], [64, 126], [64, 250], [8, 1009]],
    "linalg": [[64, 64], [64, 64], [64, 64], [64], [64, 8], [64, 64], [64, 8]],
    "sparse": [[64, 8], [64, 64], [64, 64]],
    "rand": [[8], [16], [8]],
}


@pytest.mark.parametrize("torch", ["torch-cuda13", "torch-cuda12"])
@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_libraries_of_pytorch(program: Start, torch: str, job: int | None) -> None:
    running = program(torch, "libraries", job)
    for step, shapes in STEPS.items():
        assert running.ask(step)["shapes"][: len(shapes)] == shapes, step
    running.end()


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_libraries_of_cupy(program: Start, job: int | None) -> None:
    running = program("cupy", "cupy_libraries", job)
    for step, shapes in CUPY.items():
        assert running.ask(step)["shapes"] == shapes, step
    running.end()
