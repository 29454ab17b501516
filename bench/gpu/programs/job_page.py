"""Can the card write into each kind of memory that arbiter and job may share? One JSON line: kind,
CUDA's results.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct

PAGE, PAGES = 4096, 129
SYS_BPF, MAP_CREATE, ARRAY, MMAPABLE = 321, 0, 2, 1 << 10
PORTABLE_MAPPED = 3
libc = ctypes.CDLL(None, use_errno=True)
cuda = ctypes.CDLL("libcuda.so.1")


def bpf_array() -> int:
    """As qg_kept_create makes one; OSError where the kernel refuses."""
    attr = ctypes.create_string_buffer(
        struct.pack("IIIII", ARRAY, 4, PAGE * PAGES, 1, MMAPABLE), 128
    )
    fd: int = libc.syscall(SYS_BPF, MAP_CREATE, attr, len(attr))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def memory_file() -> int:
    """The same as a memfd."""
    fd = os.memfd_create("job-page")
    os.ftruncate(fd, PAGE * PAGES)
    return fd


def written(fd: int) -> dict[str, int]:
    """CUDA's result of registering one page of it and of writing there,
    and the word that arrived.
    """
    memory = mmap.mmap(fd, PAGE * PAGES)
    word = ctypes.c_uint32.from_buffer(memory, PAGE + 512)
    page = ctypes.c_void_p(ctypes.addressof(word) - 512)
    device = ctypes.c_uint64()
    register = cuda.cuMemHostRegister_v2(page, ctypes.c_size_t(PAGE), PORTABLE_MAPPED)
    cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(device), page, 0)
    write = cuda.cuStreamWriteValue32_v2(None, ctypes.c_uint64(device.value + 512), 4711, 0)
    cuda.cuCtxSynchronize()
    told = {"register": register, "write": write, "word": word.value}
    cuda.cuMemHostUnregister(page)
    return told


def main() -> None:
    """Both kinds, in a context of the first card."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        raise SystemExit("no card")
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    print(json.dumps({"array": written(bpf_array()), "file": written(memory_file())}))


if __name__ == "__main__":
    main()
