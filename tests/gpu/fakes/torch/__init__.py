"""A PyTorch that computes nothing: as much of it as bench/gpu/programs call, so that their
control flow can be run.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

CAP = 4 << 30
uint8, float32 = "uint8", "float32"
_SIZE = {uint8: 1, float32: 4}
_held = 0


class OutOfMemoryError(RuntimeError):
    """As PyTorch's."""


class Tensor:
    """Some bytes on a card that is not there."""

    def __init__(self, size: int) -> None:
        global _held
        if _held + size > CAP:
            raise OutOfMemoryError
        self.size, self.shape = size, (size,)
        _held += size

    def __del__(self) -> None:
        global _held
        _held -= getattr(self, "size", 0)

    def numpy(self) -> Any:
        return self

    def tobytes(self) -> bytes:
        return b"x"

    def sum(self) -> float:
        return 1.0

    def numel(self) -> int:
        return self.size // 4

    def __getitem__(self, _: object) -> Tensor:
        return self

    def _same(self, *_: object) -> Tensor:
        return self

    detach = reshape = view = cpu = backward = _same


def _tensor(*_: object, **__: object) -> Tensor:
    return Tensor(0)


def empty(size: int, *, dtype: str, device: str) -> Tensor:
    return Tensor(size * _SIZE[dtype])


ones = empty
randn = randint = _tensor
no_grad = contextlib.nullcontext


def manual_seed(_: int) -> None: ...


def use_deterministic_algorithms(_: bool) -> None: ...


class Module:
    """A network of no layers."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object) -> Tensor:
        time.sleep(0.002)
        return Tensor(0)

    def _same(self) -> Module:
        return self

    cuda = eval = _same

    def compile(self) -> None: ...

    def parameters(self) -> list[Tensor]:
        return [Tensor(0)]


class _Nn:
    Module = Sequential = Flatten = LazyLinear = TransformerEncoder = TransformerEncoderLayer = (
        Module
    )
    CrossEntropyLoss = Module


class _Sgd:
    def __init__(self, *_: object, **__: object) -> None: ...

    def zero_grad(self, set_to_none: bool) -> None: ...

    def step(self) -> None: ...


class _Optim:
    SGD = _Sgd


class _Event:
    def __init__(self, enable_timing: bool) -> None: ...

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: _Event) -> float:
        return (other.at - self.at) * 1000


class _Stream:
    def wait_stream(self, _: object) -> None: ...


class _Graph:
    def replay(self) -> None:
        time.sleep(0.001)


class _Sdp:
    @staticmethod
    def _set(_: bool) -> None: ...

    enable_flash_sdp = enable_mem_efficient_sdp = enable_cudnn_sdp = _set


class _Backends:
    cuda = _Sdp


class _Cuda:
    Event, Stream, CUDAGraph = _Event, _Stream, _Graph

    @staticmethod
    def synchronize() -> None: ...

    @staticmethod
    def empty_cache() -> None: ...

    @staticmethod
    def mem_get_info() -> tuple[int, int]:
        return CAP - _held, CAP

    @staticmethod
    def max_memory_allocated() -> int:
        return _held

    @staticmethod
    def current_stream() -> _Stream:
        return _Stream()

    @staticmethod
    def stream(_: object) -> Any:
        return contextlib.nullcontext()

    @staticmethod
    def graph(_: object) -> Any:
        return contextlib.nullcontext()


nn, optim, cuda, backends = _Nn, _Optim, _Cuda, _Backends
