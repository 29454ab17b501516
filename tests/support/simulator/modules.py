"""A client's calls about modules, for code in processes of its own (see sim_tools.run)."""

from __future__ import annotations

import ctypes as c
import struct

import images
from images import Kernel, Variable
from sim_client import Cuda

KERNELS = (
    Kernel("add", ((0, 8), (8, 4)), registers=40, shared=512, bounds=(128, 2, 1)),
    Kernel("fat", ((0, 4),), registers=255),
    Kernel("plain"),
)
VARIABLES = (
    Variable("table", 3 << 20),
    Variable("start", 4, ".nv.global.init", b"\1\2\3\4"),
    Variable("shown", 8, ".nv.global.init", b"\x2a", managed=True),
    Variable("factor", 112, ".nv.constant3", b"\7"),
)
CODE = images.cubin(KERNELS, VARIABLES)
LATER = images.cubin((Kernel("later"),), (Variable("table", 4),), 100)


def wrapped(container: bytes) -> bytes:
    """What a compiled program has in its data; keeps the container alive."""
    kept = c.create_string_buffer(container, len(container))
    _alive.append(kept)
    return struct.pack("<IIQQ", 0x466243B1, 1, c.addressof(kept), 0)


_alive: list[object] = []


class Modules(Cuda):
    def loaded(self, image: bytes) -> c.c_void_p:
        handle = c.c_void_p()
        self.call("cuModuleLoadData", c.byref(handle), image)
        return handle

    def opened(self, image: bytes) -> c.c_void_p:
        handle = c.c_void_p()
        self.call("cuLibraryLoadData", c.byref(handle), image, None, None, 0, None, None, 0)
        return handle

    def function(self, module: c.c_void_p, name: bytes) -> c.c_void_p:
        handle = c.c_void_p()
        self.call("cuModuleGetFunction", c.byref(handle), module, name)
        return handle

    def variable(
        self, owner: c.c_void_p, name: bytes, call: str = "cuModuleGetGlobal_v2"
    ) -> object:
        """Address and size, or the error."""
        at, size = c.c_uint64(), c.c_size_t()
        status = self.raw(call, c.byref(at), c.byref(size), owner, name)
        return status or (at.value, size.value)

    def bytes_at(self, address: int, size: int) -> str:
        data = c.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, c.c_uint64(address), c.c_size_t(size))
        return data.raw.hex()

    def start(self, f: c.c_void_p, blocks: int, threads: int, shared: int = 0) -> int:
        return self.raw("cuLaunchKernel", f, blocks, 1, 1, threads, 1, 1, shared, None, None, None)
