"""A program that makes and ends contexts as it is told, one order a line on stdin.

Each answer is the driver's result, or for `info` free and total MiB. It runs under the shim, as a
script: orders keep their handles in variables of it.
"""

from __future__ import annotations

import ctypes
import os
import sys

MIB = 1 << 20


class Contexts:
    """The contexts of this process."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.made: list[ctypes.c_void_p] = []
        self.result = self.cuda.cuInit(0)

    def create(self) -> int:
        """A context beside the others."""
        context = ctypes.c_void_p()
        result: int = self.cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
        if not result:
            self.made.append(context)
        return result

    def destroy(self) -> int:
        """The last of them ends."""
        return int(self.cuda.cuCtxDestroy_v2(self.made.pop()))

    def retain(self) -> int:
        """One more reference to the primary context."""
        context = ctypes.c_void_p()
        result = int(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        return result or int(self.cuda.cuCtxSetCurrent(context))

    def release(self) -> int:
        """One less."""
        return int(self.cuda.cuDevicePrimaryCtxRelease_v2(0))

    def reset(self) -> int:
        """No primary context any more."""
        return int(self.cuda.cuDevicePrimaryCtxReset_v2(0))

    def alloc(self) -> int:
        """One MiB."""
        pointer = ctypes.c_void_p()
        return int(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), MIB))

    def info(self) -> str:
        """Free and total MiB of the card, as programs see it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return f"{free.value // MIB} {total.value // MIB}"

    def fork(self) -> str:
        """What a child, which may not use CUDA, gets for a context."""
        reader, writer = os.pipe()
        if not os.fork():
            os.write(writer, str(self.create()).encode())
            os._exit(0)
        os.wait()
        return os.read(reader, 20).decode()


def main() -> None:
    """Answer until stdin ends."""
    contexts = Contexts()
    print(contexts.result, flush=True)
    for line in sys.stdin:
        print(getattr(contexts, line.strip())(), flush=True)


main()
