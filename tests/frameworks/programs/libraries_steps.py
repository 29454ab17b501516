"""NVIDIA's libraries through PyTorch, a step for each. Results of kernels are not read, but by the
libraries themselves: status words are 0, as fresh memory is.
"""

from __future__ import annotations

from typing import Any

import torch
from words import answer

DEVICE = "cuda"


def _shapes(*tensors: torch.Tensor) -> dict[str, Any]:
    torch.cuda.synchronize()
    return {"shapes": [list(tensor.shape) for tensor in tensors]}


def fft() -> dict[str, Any]:
    """cuFFT: complex and real, in several dimensions, of a prime length, and windows."""
    signal = torch.ones(64, 250, device=DEVICE)
    return _shapes(
        torch.fft.fft(signal.to(torch.complex64)),
        torch.fft.rfft(signal),
        torch.fft.fft2(signal),
        torch.fft.irfftn(torch.ones(4, 33, 65, dtype=torch.complex64, device=DEVICE)),
        torch.fft.ifft(torch.ones(8, 1009, dtype=torch.complex128, device=DEVICE)),
        torch.stft(signal, 100, window=torch.ones(100, device=DEVICE), return_complex=True),
    )


def linalg() -> dict[str, Any]:
    """cuSOLVER and cuBLAS: factors, values and solutions, of one matrix and of many."""
    one, right = torch.rand(64, 64, device=DEVICE), torch.rand(64, 8, device=DEVICE)
    many = torch.rand(16, 8, 8, device=DEVICE)
    return _shapes(
        torch.linalg.cholesky_ex(one)[0],
        torch.linalg.qr(one)[0],
        torch.linalg.svd(one)[0],
        torch.linalg.eigh(one)[0],
        torch.linalg.lu_factor_ex(many)[0],
        torch.linalg.solve_ex(one, right)[0],
        torch.linalg.inv_ex(many)[0],
        torch.linalg.lstsq(one, right)[0],
        torch.linalg.solve_triangular(one, right, upper=True),
        torch.linalg.det(one),
    )


def sparse() -> dict[str, Any]:
    """cuSPARSE: products with dense and sparse ones."""
    rows, columns = torch.arange(65), torch.arange(64)
    matrix = torch.sparse_csr_tensor(rows, columns, torch.ones(64), (64, 64)).to(DEVICE)
    dense = torch.ones(64, 8, device=DEVICE)
    entries = torch.stack((columns, columns)).to(DEVICE)
    pairs = torch.sparse_coo_tensor(entries, dense[:, 0], (64, 64), is_coalesced=True)
    return _shapes(matrix @ dense, matrix @ dense[:, 0], (matrix @ matrix).values(), pairs @ dense)


def rand() -> dict[str, Any]:
    """Random numbers of PyTorch's own kernels."""
    return _shapes(
        torch.randn(8, device=DEVICE),
        torch.randperm(64, device=DEVICE),
        torch.bernoulli(torch.rand(8, device=DEVICE)),
        torch.empty(8, device=DEVICE).exponential_(),
    )


def quantised() -> dict[str, Any]:
    """cuBLASLt with 8-bit numbers of both kinds."""
    scale = torch.ones((), device=DEVICE)
    eight = torch.zeros(64, 64, device=DEVICE, dtype=torch.float8_e4m3fn)
    whole = torch.zeros(64, 64, device=DEVICE, dtype=torch.int8)
    product = torch._scaled_mm(
        eight, eight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
    )
    return _shapes(product, torch._int_mm(whole, whole))


def recurrent() -> dict[str, Any]:
    """cuDNN: an LSTM."""
    layer = torch.nn.LSTM(16, 16, 2).to(DEVICE)
    return _shapes(layer(torch.rand(5, 3, 16, device=DEVICE))[0])


if __name__ == "__main__":
    answer(fft, linalg, sparse, rand, quantised, recurrent)
