"""A thin ctypes client of the simulated libcuda; runs in processes of its own (see
sim_tools.run).
"""

from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

PTX = (
    b".version 6.3\n.target sm_75\n"
    b".visible .entry qgpu_work(.param .u64 n)\n{ ret; }\n.entry other()\n{ ret; }\n"
)


class Cuda:
    """Current primary context of device 0 with the kernel loaded; call() asserts success."""

    def __init__(self, device: int = 0, init: bool = True) -> None:
        driver = str(Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]) / "libcuda.so.1")
        self.lib = c.CDLL("libcuda.so.1" if "LD_PRELOAD" in os.environ else driver)
        if not init:
            return
        self.call("cuInit", 0)
        self.ctx = c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", c.byref(self.ctx), device)
        self.call("cuCtxSetCurrent", self.ctx)
        self.load()

    def load(self) -> None:
        """The kernel, into the current context."""
        self.module, self.work = c.c_void_p(), c.c_void_p()
        self.call("cuModuleLoadData", c.byref(self.module), PTX)
        self.call("cuModuleGetFunction", c.byref(self.work), self.module, b"qgpu_work")

    def raw(self, name: str, *args: object) -> int:
        return int(getattr(self.lib, name)(*args))

    def call(self, name: str, *args: object) -> None:
        status = self.raw(name, *args)
        assert status == 0, f"{name} returned {status}"

    def launch(self, us: float, stream: object = None) -> None:
        n = c.c_uint64(int(us * 1000))
        params = (c.c_void_p * 1)(c.addressof(n))
        self.call("cuLaunchKernel", self.work, 1, 1, 1, 1, 1, 1, 0, stream, params, None)

    def stream(self, flags: int = 1) -> c.c_void_p:
        handle = c.c_void_p()
        self.call("cuStreamCreate", c.byref(handle), flags)
        return handle

    def event(self) -> c.c_void_p:
        handle = c.c_void_p()
        self.call("cuEventCreate", c.byref(handle), 0)
        return handle

    def elapsed_ms(self, a: c.c_void_p, b: c.c_void_p) -> float:
        ms = c.c_float()
        self.call("cuEventElapsedTime", c.byref(ms), a, b)
        return ms.value

    def try_alloc(self, size: int) -> int:
        """The pointer, or 0 when the memory is refused; any other error fails."""
        ptr = c.c_uint64()
        status = self.raw("cuMemAlloc_v2", c.byref(ptr), c.c_size_t(size))
        assert status in (0, 2), f"cuMemAlloc returned {status}"
        return 0 if status else ptr.value

    def alloc(self, size: int) -> c.c_uint64:
        ptr = c.c_uint64()
        self.call("cuMemAlloc_v2", c.byref(ptr), c.c_size_t(size))
        return ptr

    def free_memory(self) -> int:
        free, total = c.c_size_t(), c.c_size_t()
        self.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value
