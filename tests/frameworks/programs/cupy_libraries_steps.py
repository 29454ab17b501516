"""NVIDIA's libraries through CuPy, a step for each."""

from __future__ import annotations

from typing import Any

import cupy
import cupyx.scipy.sparse
from words import answer


def _shapes(*arrays: cupy.ndarray) -> dict[str, Any]:
    cupy.cuda.Device().synchronize()
    return {"shapes": [list(array.shape) for array in arrays]}


def fft() -> dict[str, Any]:
    """cuFFT: complex and real, in several dimensions, and of a prime length."""
    signal = cupy.ones((64, 250), dtype=cupy.float32)
    prime = cupy.ones((8, 1009), dtype=cupy.complex128)
    return _shapes(
        cupy.fft.fft(signal), cupy.fft.rfft(signal), cupy.fft.fft2(signal), cupy.fft.ifft(prime)
    )


def linalg() -> dict[str, Any]:
    """cuSOLVER and cuBLAS."""
    one, right = cupy.random.rand(64, 64), cupy.random.rand(64, 8)
    return _shapes(
        cupy.linalg.cholesky(one),
        cupy.linalg.qr(one)[0],
        cupy.linalg.svd(one)[0],
        cupy.linalg.eigh(one)[0],
        cupy.linalg.solve(one, right),
        cupy.linalg.inv(one),
        cupy.linalg.lstsq(one, right)[0],
    )


def sparse() -> dict[str, Any]:
    """cuSPARSE: products with dense and sparse ones, and another order."""
    places = (cupy.arange(64, dtype=cupy.int32), cupy.arange(65, dtype=cupy.int32))
    parts = (cupy.ones(64, dtype=cupy.float32), *places)
    matrix = cupyx.scipy.sparse.csr_matrix(parts, shape=(64, 64))
    return _shapes(matrix @ cupy.ones((64, 8)), matrix @ matrix, matrix.tocsc())


def rand() -> dict[str, Any]:
    """cuRAND, by the host's interface and in kernels."""
    return _shapes(
        cupy.random.normal(size=8),
        cupy.random.permutation(16),
        cupy.random.default_rng(1).random(8),
    )


if __name__ == "__main__":
    answer(fft, linalg, sparse, rand)
