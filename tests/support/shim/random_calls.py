"""A random program of driver calls, right and wrong: `random_calls.py SEED STEPS`. Prints each name
and result.

Same seed, same program: the next call never depends on an answer that may differ from run to run.
"""

from __future__ import annotations

import ctypes as c
import random
import sys
from collections.abc import Callable

import sim_client

MIB = 1 << 20
NOT_READY = 600
HANDLES = (
    "context",
    "stream",
    "event",
    "memory",
    "module",
    "function",
    "pool",
    "graph",
    "exec",
    "array",
    "range",
    "physical",
)


class Program:
    """Handles of each kind, those that are gone among them: a wrong call is as good a question
    as a right one.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cuda = sim_client.Cuda()
        self.have: dict[str, list[int]] = {kind: [] for kind in HANDLES}
        self.have["context"].append(self.cuda.ctx.value or 0)
        self.have["function"].append(self.cuda.work.value or 0)
        self.host = c.create_string_buffer(4 * MIB)
        self.kept: list[object] = []  # what calls under way still read
        self.calls = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def answer(self, name: str) -> int:
        """The driver's answer to this call; unfinished work is no error."""
        call: Callable[[], int] = self.calls[name]
        status = call()
        return 0 if status == NOT_READY else status

    def pick(self, kind: str) -> c.c_void_p:
        """Mostly the newest, sometimes any, which may be gone, sometimes none."""
        known, chance = self.have[kind], self.random.random()
        if not known or chance < 0.03:
            return c.c_void_p(0)
        return c.c_void_p(known[-1] if chance < 0.6 else self.random.choice(known))

    def made(self, kind: str, name: str, *args: object) -> int:
        """A call whose first parameter is where the handle goes."""
        out = c.c_uint64()
        status = self.cuda.raw(name, c.byref(out), *args)
        # The same number of draws follow whatever the answer was, so a handle is noted in any case.
        self.have[kind].append(out.value if status == 0 else 0)
        del self.have[kind][:-12]
        return status

    def over(self, kind: str, name: str, *args: object) -> int:
        """Ends what is picked. An address that was given back may be anything later, so it is
        not picked again.
        """
        handle = self.pick(kind)
        status = self.cuda.raw(name, handle, *args)
        if status == 0:
            self.have[kind] = [known for known in self.have[kind] if known != handle.value]
        return status

    def ended(self, status: int) -> int:
        """A context is gone, and its memory."""
        if status == 0:
            self.have["memory"].clear()
        return status

    def stream(self) -> c.c_void_p:
        chance = self.random.random()
        return self.pick("stream") if chance < 0.7 else c.c_void_p(self.random.choice((0, 1, 2)))

    def size(self, largest: int = 1 << 42) -> c.c_size_t:
        return c.c_size_t(self.random.choice((0, 1, 512, 4096, 65536, MIB, 3 * MIB, largest)))

    def room(self) -> c.c_size_t:
        """Never too much: which of two mistakes in one call is named is not our promise."""
        return self.size(8 * MIB)

    # ---- contexts, streams, events

    def do_ctx_create(self) -> int:
        return self.made(
            "context",
            "cuCtxCreate_v2",
            self.random.choice((0, 1, 4)),
            self.random.choice((0, 0, 0, 9)),
        )

    def do_ctx_destroy(self) -> int:
        return self.ended(self.cuda.raw("cuCtxDestroy_v2", self.pick("context")))

    def do_ctx_push(self) -> int:
        return self.cuda.raw("cuCtxPushCurrent_v2", self.pick("context"))

    def do_ctx_pop(self) -> int:
        return self.cuda.raw("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))

    def do_ctx_set(self) -> int:
        return self.cuda.raw("cuCtxSetCurrent", self.pick("context"))

    def do_ctx_sync(self) -> int:
        return self.cuda.raw("cuCtxSynchronize")

    def do_primary(self) -> int:
        return self.made("context", "cuDevicePrimaryCtxRetain", 0)

    def do_primary_release(self) -> int:
        return self.ended(self.cuda.raw("cuDevicePrimaryCtxRelease_v2", 0))

    def do_primary_reset(self) -> int:
        return self.ended(self.cuda.raw("cuDevicePrimaryCtxReset_v2", 0))

    def do_stream_create(self) -> int:
        return self.made("stream", "cuStreamCreate", self.random.choice((0, 1, 1, 7)))

    def do_stream_priority(self) -> int:
        return self.made(
            "stream", "cuStreamCreateWithPriority", 1, self.random.choice((0, -1, -99))
        )

    def do_stream_destroy(self) -> int:
        return self.cuda.raw("cuStreamDestroy_v2", self.stream())

    def do_stream_sync(self) -> int:
        return self.cuda.raw("cuStreamSynchronize", self.stream())

    def do_stream_query(self) -> int:
        return self.cuda.raw("cuStreamQuery", self.stream())

    def do_stream_waits(self) -> int:
        return self.cuda.raw("cuStreamWaitEvent", self.stream(), self.pick("event"), 0)

    def do_event_create(self) -> int:
        return self.made("event", "cuEventCreate", self.random.choice((0, 2, 99)))

    def do_event_record(self) -> int:
        return self.cuda.raw("cuEventRecord", self.pick("event"), self.stream())

    def do_event_sync(self) -> int:
        return self.cuda.raw("cuEventSynchronize", self.pick("event"))

    def do_event_query(self) -> int:
        return self.cuda.raw("cuEventQuery", self.pick("event"))

    def do_event_destroy(self) -> int:
        return self.cuda.raw("cuEventDestroy_v2", self.pick("event"))

    # ---- work

    def do_load(self) -> int:
        return self.made("module", "cuModuleLoadData", sim_client.PTX)

    def do_function(self) -> int:
        return self.made(
            "function",
            "cuModuleGetFunction",
            self.pick("module"),
            self.random.choice((b"qgpu_work", b"other", b"no")),
        )

    def do_unload(self) -> int:
        return self.cuda.raw("cuModuleUnload", self.pick("module"))

    def do_launch(self) -> int:
        length = c.c_uint64(self.random.choice((1000, 20000, 300000)))
        params = (c.c_void_p * 1)(c.addressof(length))
        name = "cuLaunchKernel" + self.random.choice(("", "_ptsz"))
        grid = self.random.choice((1, 1, 1, 0))
        return self.cuda.raw(
            name, self.pick("function"), grid, 1, 1, 1, 1, 1, 0, self.stream(), params, None
        )

    def do_copy_in(self) -> int:
        return self.cuda.raw(
            "cuMemcpyHtoDAsync_v2",
            self.pick("memory"),
            self.host,
            self.size(4 * MIB),
            self.stream(),
        )

    def do_copy_out(self) -> int:
        size = c.c_size_t(self.random.choice((0, 8, 4096)))
        return self.cuda.raw("cuMemcpyDtoH_v2", self.host, self.pick("memory"), size)

    def do_copy_within(self) -> int:
        return self.cuda.raw(
            "cuMemcpyDtoDAsync_v2",
            self.pick("memory"),
            self.pick("memory"),
            self.size(),
            self.stream(),
        )

    def do_copy_any(self) -> int:
        return self.cuda.raw(
            "cuMemcpyDtoDAsync_v2_ptsz",
            self.pick("memory"),
            self.pick("memory"),
            self.size(),
            self.stream(),
        )

    def do_fill(self) -> int:
        return self.cuda.raw("cuMemsetD32Async", self.pick("memory"), 7, self.size(), self.stream())

    def do_fill_now(self) -> int:
        return self.cuda.raw("cuMemsetD8_v2", self.pick("memory"), 7, self.size())

    # ---- memory

    def do_alloc(self) -> int:
        return self.made("memory", "cuMemAlloc_v2", self.room())

    def do_managed(self) -> int:
        return self.made("memory", "cuMemAllocManaged", self.room(), self.random.choice((1, 2, 9)))

    def do_pitch(self) -> int:
        pitch = c.byref(c.c_size_t())
        return self.made(
            "memory",
            "cuMemAllocPitch_v2",
            pitch,
            c.c_size_t(100),
            c.c_size_t(10),
            self.random.choice((4, 5)),
        )

    def do_free(self) -> int:
        return self.over("memory", "cuMemFree_v2")

    def do_alloc_async(self) -> int:
        return self.made("memory", "cuMemAllocAsync", self.room(), self.stream())

    def do_alloc_pool(self) -> int:
        return self.made(
            "memory", "cuMemAllocFromPoolAsync", self.room(), self.pick("pool"), self.stream()
        )

    def do_free_async(self) -> int:
        return self.over("memory", "cuMemFreeAsync", self.stream())

    def do_pool(self) -> int:
        properties = (c.c_uint32 * 64)(1, 0, 1, 0)
        return self.made("pool", "cuMemPoolCreate", properties)

    def do_pool_trim(self) -> int:
        return self.cuda.raw("cuMemPoolTrimTo", self.pick("pool"), c.c_size_t(0))

    def do_pool_set(self) -> int:
        return self.cuda.raw("cuDeviceSetMemPool", 0, self.pick("pool"))

    def do_pool_destroy(self) -> int:
        return self.cuda.raw("cuMemPoolDestroy", self.pick("pool"))

    def do_array(self) -> int:
        about = (c.c_uint64 * 4)(
            256, self.random.choice((0, 256)), 0x1 | self.random.choice((1, 4, 3)) << 32, 0
        )
        return self.made("array", "cuArrayCreate_v2", about)

    def do_array_destroy(self) -> int:
        return self.cuda.raw("cuArrayDestroy", self.pick("array"))

    def do_reserve(self) -> int:
        return self.made(
            "range",
            "cuMemAddressReserve",
            c.c_size_t(2 * MIB),
            c.c_size_t(0),
            c.c_uint64(0),
            c.c_uint64(0),
        )

    def do_physical(self) -> int:
        about = (c.c_uint32 * 16)(1, 0, 1, 0)
        return self.made("physical", "cuMemCreate", c.c_size_t(2 * MIB), about, c.c_uint64(0))

    def do_map(self) -> int:
        place, handle = self.pick("range"), self.pick("physical")
        return self.cuda.raw(
            "cuMemMap", place, c.c_size_t(2 * MIB), c.c_size_t(0), handle, c.c_uint64(0)
        )

    def do_unmap(self) -> int:
        return self.cuda.raw("cuMemUnmap", self.pick("range"), c.c_size_t(2 * MIB))

    def do_release(self) -> int:
        return self.cuda.raw("cuMemRelease", self.pick("physical"))

    def do_unreserve(self) -> int:
        return self.over("range", "cuMemAddressFree", c.c_size_t(2 * MIB))

    # ---- graphs and captures

    def do_capture(self) -> int:
        return self.cuda.raw(
            "cuStreamBeginCapture_v2", self.stream(), self.random.choice((0, 1, 2, 2, 2))
        )

    def do_captured(self) -> int:
        out = c.c_uint64()
        status = self.cuda.raw("cuStreamEndCapture", self.stream(), c.byref(out))
        self.have["graph"].append(out.value if status == 0 else 0)
        return status

    def do_graph(self) -> int:
        return self.made("graph", "cuGraphCreate", 0)

    def do_instantiate(self) -> int:
        return self.made(
            "exec",
            "cuGraphInstantiateWithFlags",
            self.pick("graph"),
            c.c_uint64(self.random.choice((0, 1))),
        )

    def do_graph_launch(self) -> int:
        return self.cuda.raw("cuGraphLaunch", self.pick("exec"), self.stream())

    def do_graph_upload(self) -> int:
        return self.cuda.raw("cuGraphUpload", self.pick("exec"), self.stream())

    def do_exec_destroy(self) -> int:
        return self.cuda.raw("cuGraphExecDestroy", self.pick("exec"))

    def do_graph_destroy(self) -> int:
        return self.cuda.raw("cuGraphDestroy", self.pick("graph"))


LIKELY = (
    "launch",
    "launch",
    "launch",
    "copy_in",
    "alloc",
    "ctx_set",
    "stream_create",
    "captured",
    "instantiate",
    "graph_launch",
)
RARE = ("ctx_destroy", "primary_release", "primary_reset", "ctx_pop", "unload", "capture")


def names_of(program: Program) -> list[str]:
    """What is drawn from: each call as often as it is likely."""
    return [name for name in sorted(program.calls) for _ in range(1 if name in RARE else 4)] + list(
        LIKELY
    ) * 6


def main(seed: int, steps: int) -> None:
    """Runs it."""
    program = Program(seed)
    names = names_of(program)
    for _ in range(steps):
        name = program.random.choice(names)
        print(name, end=" ", flush=True)
        print(program.answer(name), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
