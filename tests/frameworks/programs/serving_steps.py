"""What serving engines do with memory, in plain PyTorch: a decode loop of captured graphs over a
pool that grows, weights that sleep on the host, and models that take turns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from words import answer

DEVICE = "cuda"
MIB = 1 << 20
WIDTH, BATCH = 512, 8
BLOCK_MIB = 64
PAGE = 2 * MIB  # the granularity of virtual memory


def _free() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] // MIB


# ---- decode ----


class _Decoder(nn.Module):
    """A layer that writes a row of each sequence into the pool and reads it back."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, block: torch.Tensor, rows: torch.Tensor) -> Any:
        block.index_copy_(0, rows, self.into(tokens))
        return self.out(torch.index_select(block, 0, rows))


class _Graphs:
    """Captures in one stream and one pool, as engines do: cuBLAS has a workspace for each."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.stream = model, torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.tokens = torch.zeros(BATCH, WIDTH, device=DEVICE, dtype=torch.half)
        self.rows = torch.arange(BATCH, device=DEVICE)

    def capture(self, block: torch.Tensor) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self.model(self.tokens, block, self.rows)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.model(self.tokens, block, self.rows)
        return graph


def _block() -> torch.Tensor:
    return torch.empty(BLOCK_MIB * MIB // WIDTH // 2, WIDTH, device=DEVICE, dtype=torch.half)


@torch.inference_mode()
def decode(least: int = 4) -> dict[str, Any]:
    """Blocks until the cap, a graph for each, all replayed after each new one. At the cap half of
    them are dropped, and the loop goes on to the cap. Free MiB with one block in the end.
    """
    graphs = _Graphs(_Decoder().to(DEVICE, torch.half))
    first = _block()
    pool, most, replays = [(first, graphs.capture(first))], [], 0
    for _ in range(2):
        try:
            while True:
                block = _block()
                pool.append((block, graphs.capture(block)))
                for _, graph in pool:
                    graph.replay()
                replays += len(pool)
        except torch.OutOfMemoryError:
            torch.cuda.synchronize()
            most.append(len(pool))
        assert most[-1] >= least
        del block, graph, pool[len(pool) // 2 :]
        torch.cuda.empty_cache()
    del pool[1:]
    torch.cuda.empty_cache()
    return {"blocks": most, "replays": replays, "free": _free()}


# ---- sleep and wake ----


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 32),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


PINNED, ON_DEVICE, READ_WRITE = 1, 1, 3


class _Region:
    """Memory at one address for ever: mapped while awake, on the host while asleep."""

    def __init__(self, size: int) -> None:
        torch.cuda.synchronize()  # there is a context from now on
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.size, self.handle = ctypes.c_size_t(size), ctypes.c_uint64()
        self.address, self.backup = ctypes.c_uint64(), torch.empty(0)
        self._call("cuMemAddressReserve", ctypes.byref(self.address), self.size, 0, 0, 0)
        self._map()
        shape = {"shape": (size,), "typestr": "|u1", "version": 2}
        self.__cuda_array_interface__ = shape | {"data": (self.address.value, False)}
        self.bytes = torch.as_tensor(self, device=DEVICE)

    def _call(self, name: str, *arguments: Any) -> None:
        wide = (ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments)
        status = getattr(self.driver, name)(*wide)
        if status:
            raise RuntimeError(f"{name} answered {status}")

    def _map(self) -> None:
        where = _Location(ON_DEVICE, 0)
        wanted, access = _Properties(PINNED, 0, where), _Access(where, READ_WRITE)
        self._call("cuMemCreate", ctypes.byref(self.handle), self.size, ctypes.byref(wanted), 0)
        self._call("cuMemMap", self.address, self.size, 0, self.handle, 0)
        self._call("cuMemSetAccess", self.address, self.size, ctypes.byref(access), 1)

    def sleep(self) -> None:
        self.backup = self.bytes.to("cpu").pin_memory()
        torch.cuda.synchronize()
        self._call("cuMemUnmap", self.address, self.size)
        self._call("cuMemRelease", self.handle)

    def wake(self) -> None:
        self._map()
        self.bytes.copy_(self.backup, non_blocking=True)
        torch.cuda.synchronize()


def sleep(size: int = 512, times: int = 3) -> dict[str, Any]:
    """Weights at a fixed address, under a graph that was captured once: free MiB awake and asleep,
    and whether all bytes came back.
    """
    region = _Region(size * MIB)
    pattern = torch.arange(size * MIB // 4, dtype=torch.int32).view(torch.uint8)
    region.bytes.copy_(pattern)
    weights = region.bytes[: 2 * WIDTH * WIDTH].view(torch.half).view(WIDTH, WIDTH)
    tokens = torch.zeros(BATCH, WIDTH, device=DEVICE, dtype=torch.half)
    tokens @ weights  # cuBLAS takes what it needs before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens @ weights
    awake, asleep = [], []
    for _ in range(times):
        graph.replay()
        awake.append(_free())
        region.sleep()
        asleep.append(_free())
        region.wake()
    graph.replay()
    same = torch.equal(region.bytes.to("cpu"), pattern)
    region.sleep()
    return {"awake": awake, "asleep": asleep, "same": same}


# ---- turns ----


def _model(size: int, seed: int) -> nn.Sequential:
    """So many MiB of weights, on the host, all of them the same number."""
    layers = [nn.Linear(1024, 1024, bias=False) for _ in range(size // 4)]
    for layer in layers:
        nn.init.constant_(layer.weight, float(seed))
    return nn.Sequential(*layers)


@torch.inference_mode()
def turns(size: int = 512, rounds: int = 3) -> dict[str, Any]:
    """Two models of so many MiB, of which the cap takes one: what happens if both come, and free
    MiB after each went; whether weights are the same after all rounds.
    """
    models = [_model(size, seed) for seed in (1, 2)]
    free, refused = [], False
    models[0].to(DEVICE)
    try:
        models[1].to(DEVICE)
    except torch.OutOfMemoryError:
        refused = True
    for model in models:
        model.to("cpu")
    torch.cuda.empty_cache()
    for _ in range(rounds):
        for model in models:
            model.to(DEVICE)
            model(torch.zeros(BATCH, 1024, device=DEVICE))
            model.to("cpu")
            torch.cuda.empty_cache()
            free.append(_free())
    same = all(
        bool((layer.weight == seed).all()) for seed, one in enumerate(models, 1) for layer in one
    )
    return {"refused": refused, "free": free, "same": same}


if __name__ == "__main__":
    answer(decode, sleep, turns)
