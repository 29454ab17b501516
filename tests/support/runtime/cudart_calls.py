"""Run as a program: calls of NVIDIA's CUDA runtime, whose library is the argument, one line of JSON
after each word of standard input. `calls` makes all that need no kernel and gives their statuses.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from typing import Any

MIB = 1 << 20
RELAXED = 2  # cudaStreamCaptureModeRelaxed
TO_HOST, TO_DEVICE, ON_DEVICE = 2, 1, 3  # enum cudaMemcpyKind


class Runtime:
    """The library; `calls` are (name, cudaError_t) in order."""

    def __init__(self, path: str) -> None:
        self.library = c.CDLL(path)
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def call(*arguments: Any) -> int:
            status = int(function(*arguments))
            self.calls.append((name, status))
            return status

        return call


def number(ask: Any, *more: Any, kind: Any = c.c_int) -> int:
    """What a call writes through its first argument."""
    out = kind()
    ask(c.byref(out), *more)
    return int(out.value or 0)


def handle(ask: Any, *more: Any) -> c.c_void_p:
    """What a call makes."""
    out = c.c_void_p()
    ask(c.byref(out), *more)
    return out


def memory(rt: Runtime) -> tuple[int, int]:
    """Free and total MiB."""
    free, total = c.c_size_t(), c.c_size_t()
    rt.cudaMemGetInfo(c.byref(free), c.byref(total))
    return free.value // MIB, total.value // MIB


def devices(rt: Runtime) -> dict[str, Any]:
    """Of the library and of device 0."""
    properties = c.create_string_buffer(8192)
    rt.cudaSetDevice(0)
    rt.cudaGetDeviceProperties_v2(properties, 0) if hasattr(
        rt.library, "cudaGetDeviceProperties_v2"
    ) else rt.cudaGetDeviceProperties(properties, 0)
    return {
        "count": number(rt.cudaGetDeviceCount),
        "runtime": number(rt.cudaRuntimeGetVersion),
        "driver": number(rt.cudaDriverGetVersion),
        "device": number(rt.cudaGetDevice),
        "major": number(rt.cudaDeviceGetAttribute, 75, 0),
        "name": properties.value.decode(),
    }


def copies(rt: Runtime) -> dict[str, Any]:
    """Fills and copies of one MiB, in the stream and without."""
    size = c.c_size_t(MIB)
    stream = handle(rt.cudaStreamCreate)
    one, two = handle(rt.cudaMalloc, size), handle(rt.cudaMalloc, size)
    pinned = handle(rt.cudaMallocHost, size)
    rt.cudaMemset(one, 7, size)
    rt.cudaMemcpy(two, one, size, ON_DEVICE)
    rt.cudaMemcpyAsync(pinned, two, size, TO_HOST, stream)
    rt.cudaStreamSynchronize(stream)
    seen = set(c.string_at(pinned, MIB))
    rt.cudaMemcpyAsync(one, pinned, size, TO_DEVICE, stream)
    rt.cudaMemsetAsync(two, 0, size, stream)
    rt.cudaStreamQuery(stream) in (0, 600) and rt.calls.pop()
    rt.cudaStreamSynchronize(stream)
    for free, what in ((rt.cudaFree, one), (rt.cudaFree, two), (rt.cudaFreeHost, pinned)):
        free(what)
    rt.cudaStreamDestroy(stream)
    return {"bytes": sorted(seen)}


def events(rt: Runtime) -> dict[str, Any]:
    """Two events around a fill: milliseconds between them."""
    stream, first, last = handle(rt.cudaStreamCreate), *(handle(rt.cudaEventCreate) for _ in "ab")
    size, between = c.c_size_t(64 * MIB), c.c_float()
    buffer = handle(rt.cudaMallocAsync, size, stream)
    rt.cudaEventRecord(first, stream)
    rt.cudaMemsetAsync(buffer, 1, size, stream)
    rt.cudaEventRecord(last, stream)
    rt.cudaStreamWaitEvent(stream, last, 0)
    rt.cudaFreeAsync(buffer, stream)
    rt.cudaEventSynchronize(last)
    rt.cudaEventElapsedTime(c.byref(between), first, last)
    for event in (first, last):
        rt.cudaEventDestroy(event)
    rt.cudaStreamDestroy(stream)
    return {"milliseconds": between.value}


def graphs(rt: Runtime) -> dict[str, Any]:
    """A captured fill, launched twice."""
    size, stream = c.c_size_t(MIB), handle(rt.cudaStreamCreate)
    buffer, graph, ready = handle(rt.cudaMalloc, size), c.c_void_p(), c.c_void_p()
    rt.cudaStreamBeginCapture(stream, RELAXED)
    rt.cudaMemsetAsync(buffer, 5, size, stream)
    rt.cudaStreamEndCapture(stream, c.byref(graph))
    rt.cudaGraphInstantiate(c.byref(ready), graph, c.c_ulonglong(0))
    for _ in range(2):
        rt.cudaGraphLaunch(ready, stream)
    rt.cudaStreamSynchronize(stream)
    byte = c.create_string_buffer(1)
    rt.cudaMemcpy(byte, buffer, c.c_size_t(1), TO_HOST)
    rt.cudaGraphExecDestroy(ready)
    rt.cudaGraphDestroy(graph)
    rt.cudaFree(buffer)
    rt.cudaStreamDestroy(stream)
    return {"byte": byte.raw[0]}


def again(rt: Runtime) -> dict[str, Any]:
    """The device is reset: the runtime begins anew in the same process, and leaves nothing."""
    handle(rt.cudaMalloc, c.c_size_t(256 * MIB))
    before = memory(rt)[0]
    rt.cudaDeviceReset()
    handle(rt.cudaMalloc, c.c_size_t(MIB))
    rt.cudaDeviceSynchronize()
    return {"freed": memory(rt)[0] - before}


def calls(rt: Runtime) -> dict[str, Any]:
    """All of the above."""
    told: dict[str, Any] = {}
    for part in (devices, copies, events, graphs, again):
        told |= part(rt)
    return told | {
        "memory": memory(rt),
        "number": len(rt.calls),
        "failed": [(name, status) for name, status in rt.calls if status],
    }


def fill(rt: Runtime, step: int = 256) -> dict[str, Any]:
    """Allocate steps of MiB until one is refused: MiB held, the refusal, and free MiB then."""
    held: list[c.c_void_p] = []
    while True:
        out = c.c_void_p()
        status = rt.cudaMalloc(c.byref(out), c.c_size_t(step * MIB))
        if status:
            break
        held.append(out)
    told = {"held": len(held) * step, "status": status, "memory": memory(rt)}
    rt.cudaGetLastError()
    for each in held:
        rt.cudaFree(each)
    return told | {"after": memory(rt)}


def main() -> None:
    rt = Runtime(sys.argv[1])
    for word in sys.stdin:
        print(json.dumps({"calls": calls, "fill": fill}[word.strip()](rt)), flush=True)


if __name__ == "__main__":
    main()
