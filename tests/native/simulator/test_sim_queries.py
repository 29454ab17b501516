"""What programs ask the simulated driver about pointers, functions, pools and tensor maps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import run, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native

BAD_VALUE, BAD_DEVICE, BAD_HANDLE, BAD_CLUSTER = "1", "101", "400", "912"


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim", cards=2, memory_mib=4096) as running:
        yield running


def lines(sim: Simulator, code: str) -> list[str]:
    return run(sim, code).splitlines()


def test_attributes_of_a_pointer_come_together(sim: Simulator) -> None:
    """Of memory, and of what the driver does not know: no error, but nothing."""
    out = lines(
        sim,
        """
        g = Cuda(); p = g.alloc(1 << 20)
        TYPE, HOST, MANAGED, DEVICE, START, SIZE, IPC, MAPPED, POOL = 2, 4, 8, 9, 11, 12, 10, 13, 17
        asked = (TYPE, HOST, MANAGED, DEVICE, START, SIZE, IPC, MAPPED, POOL)
        def ask(ptr, asked=asked, n=None):
            values = [c.c_uint64(7) for _ in asked]
            data = (c.c_void_p * len(asked))(*[c.addressof(v) for v in values])
            status = g.raw("cuPointerGetAttributes", len(asked) if n is None else n,
                           (c.c_int * len(asked))(*asked), data, c.c_uint64(ptr))
            small = {TYPE: 4, MANAGED: 4, DEVICE: 4, IPC: 1, MAPPED: 1}
            return status, [v.value & ((1 << 8 * small.get(a, 8)) - 1)
                            for a, v in zip(asked, values)]
        status, got = ask(p.value + 5)
        print(status, [got[0], got[1], got[2], got[3], got[4] == p.value, *got[5:]])
        print(ask(0x1234))
        q = c.c_uint64(); pool = c.c_void_p()
        g.call("cuDeviceGetDefaultMemPool", c.byref(pool), 0)
        g.call("cuMemAllocAsync", c.byref(q), c.c_size_t(4096), None)
        print(ask(q.value)[1][asked.index(IPC)], ask(q.value)[1][-1] == pool.value)
        print(ask(p.value, (99,))[0], ask(p.value, n=0)[0])
        print(g.raw("cuPointerSetAttribute", c.byref(c.c_int(1)), 6, p),
              g.raw("cuPointerSetAttribute", c.byref(c.c_int(1)), TYPE, p),
              g.raw("cuPointerSetAttribute", c.byref(c.c_int(1)), 6, c.c_uint64(0x1234)))
        """,
    )
    unknown = [0, 0, 0, 0xFFFFFFFE, 0, 0, 0, 0, 0]
    assert out == [
        f"0 {[2, 0, 0, 0, True, 1 << 20, 1, 1, 0]}",
        f"(0, {unknown})",
        "0 True",
        f"{BAD_VALUE} {BAD_VALUE}",
        f"0 {BAD_VALUE} {BAD_VALUE}",
    ]


FUNCTION = """
REGISTERS, SHARED, DYNAMIC, BEYOND = 4, 1, 8, 14
g = Cuda(); f = g.work; n, size = c.c_int(), c.c_size_t()
def blocks(threads, shared=0):
    g.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", c.byref(n), f, threads,
           c.c_size_t(shared))
    return n.value
"""


def test_occupancy_counts_threads_and_shared_memory(sim: Simulator) -> None:
    """As the card divides them: 64 warps, 32 blocks, 228 KiB, of which each block takes 1 KiB."""
    out = lines(
        sim,
        FUNCTION
        + """
print(blocks(1024), blocks(96), blocks(32), blocks(1025), blocks(32, 48 << 10))
print(blocks(32, (48 << 10) + 1))
g.call("cuFuncSetAttribute", f, DYNAMIC, 232448); print(blocks(32, 232448), blocks(32, 100 << 10))
free = lambda k, t: (g.raw("cuOccupancyAvailableDynamicSMemPerBlock", c.byref(size), f, k, t),
                     size.value)
print(free(1, 1024), free(2, 1024), free(3, 1024)[0], free(0, 32)[0], free(1, 0)[0])
grid, block = c.c_int(), c.c_int()
CALLBACK = c.CFUNCTYPE(c.c_size_t, c.c_int)
def best(size, limit=0):
    g.call("cuOccupancyMaxPotentialBlockSize", c.byref(grid), c.byref(block), f, size,
           c.c_size_t(0), limit)
    return grid.value, block.value
print(best(CALLBACK()), best(CALLBACK(), 96), best(CALLBACK(lambda t: 512 * t)))
print(g.raw("cuOccupancyMaxActiveBlocksPerMultiprocessor", c.byref(n), None, 32, c.c_size_t(0)))
""",
    )
    assert out == [
        "2 21 32 0 4",
        "0",
        "1 2",
        f"(0, 232448) (0, 115712) {BAD_VALUE} {BAD_VALUE} {BAD_VALUE}",
        "(264, 1024) (4224, 64) (132, 448)",
        BAD_HANDLE,
    ]


def test_clusters_fit_into_groups_of_multiprocessors(sim: Simulator) -> None:
    out = lines(
        sim,
        FUNCTION
        + """
class Attribute(c.Structure):
    _fields_ = [("id", c.c_int), ("pad", c.c_int), ("value", c.c_uint * 16)]
class Config(c.Structure):
    _fields_ = [("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint),
                ("stream", c.c_void_p), ("attrs", c.POINTER(Attribute)), ("n", c.c_uint)]
def config(cluster, threads=1024, shared=0):
    attribute = Attribute(id=4); attribute.value[:3] = (cluster, 1, 1)
    return Config((c.c_uint * 3)(1, 1, 1), (c.c_uint * 3)(threads, 1, 1), shared, None,
                  c.pointer(attribute), 1 if cluster else 0)
def active(*args):
    status = g.raw("cuOccupancyMaxActiveClusters", c.byref(n), f, c.byref(config(*args)))
    return status or -n.value
def largest(*args):
    g.call("cuOccupancyMaxPotentialClusterSize", c.byref(n), f, c.byref(config(*args)))
    return n.value
g.call("cuFuncSetAttribute", f, DYNAMIC, 232448)
print(active(1, 1024, 200 << 10), active(2, 1024, 200 << 10), active(8, 1024, 200 << 10))
print(active(2), active(16), active(0), largest(0), largest(0, 1025))
g.call("cuFuncSetAttribute", f, BEYOND, 1); print(active(16, 1024, 200 << 10), largest(0))
print(g.raw("cuOccupancyMaxActiveClusters", c.byref(n), f, None))
""",
    )
    assert out == ["-132 -66 -16", f"-132 {BAD_CLUSTER} {BAD_CLUSTER} 8 0", "-8 16", BAD_VALUE]


def test_functions_are_loaded_and_know_their_library(sim: Simulator) -> None:
    out = lines(
        sim,
        """
        from sim_client import PTX
        g = Cuda(); library, of, kernel, n = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_int()
        g.call("cuLibraryLoadData", c.byref(library), PTX, None, None, 0, None, None, 0)
        g.call("cuLibraryGetKernel", c.byref(kernel), library, b"other")
        g.call("cuKernelGetLibrary", c.byref(of), kernel); print(of.value == library.value)
        print(g.raw("cuKernelGetLibrary", c.byref(of), g.work),
              g.raw("cuKernelGetLibrary", None, kernel), g.raw("cuKernelGetLibrary", of, None))
        g.call("cuFuncIsLoaded", c.byref(n), g.work); print(n.value)
        print(g.raw("cuFuncLoad", g.work), g.raw("cuFuncLoad", None))
        print(g.raw("cuKernelSetCacheConfig", kernel, 1, 0),
              g.raw("cuKernelSetCacheConfig", kernel, 9, 0),
              g.raw("cuKernelSetCacheConfig", kernel, 1, 9))
        """,
    )
    assert out == [
        "True",
        f"{BAD_HANDLE} {BAD_VALUE} {BAD_HANDLE}",
        "1",
        f"0 {BAD_HANDLE}",
        f"0 {BAD_VALUE} {BAD_DEVICE}",
    ]


def test_access_to_pools(sim: Simulator) -> None:
    """A card's pool is its own card's; a pool of the host is opened for cards, all or none."""
    out = lines(
        sim,
        """
        g = Cuda(); flags, pool, host = c.c_int(), c.c_void_p(), c.c_void_p()
        DEVICE, HOST, NONE, WRITE = 1, 2, 0, 3
        class Place(c.Structure): _fields_ = [("type", c.c_int), ("id", c.c_int)]
        class Access(c.Structure): _fields_ = [("place", Place), ("flags", c.c_int)]
        class Props(c.Structure):
            _fields_ = [("type", c.c_int), ("handles", c.c_int), ("place", Place),
                        ("rest", c.c_uint8 * 80)]
        g.call("cuDeviceGetDefaultMemPool", c.byref(pool), 0)
        g.call("cuMemPoolCreate", c.byref(host), c.byref(Props(1, 0, Place(HOST, 0))))
        def get(pool, type, id=0):
            status = g.raw("cuMemPoolGetAccess", c.byref(flags), pool, c.byref(Place(type, id)))
            return status or -flags.value
        def set(pool, *wanted):
            all = (Access * len(wanted))(*[Access(Place(t, i), f) for t, i, f in wanted])
            return g.raw("cuMemPoolSetAccess", pool, all, c.c_size_t(len(wanted)))
        print(get(pool, DEVICE, 0), get(pool, DEVICE, 1), get(pool, DEVICE, 9), get(pool, HOST))
        print(set(pool, (DEVICE, 0, WRITE)), set(pool, (DEVICE, 0, NONE)),
              set(pool, (DEVICE, 1, WRITE)), set(pool, (DEVICE, 9, WRITE)),
              set(pool, (DEVICE, 0, 2)), set(pool, (HOST, 0, WRITE)))
        print(get(host, HOST), get(host, DEVICE, 1))
        print(set(host, (DEVICE, 1, WRITE), (DEVICE, 9, WRITE)), get(host, DEVICE, 1))
        print(set(host, (DEVICE, 1, WRITE)), get(host, DEVICE, 1), get(host, DEVICE, 0))
        print(set(host, (DEVICE, 1, NONE)), get(host, DEVICE, 1), set(None, (DEVICE, 0, WRITE)))
        """,
    )
    assert out == [
        f"-3 0 {BAD_DEVICE} 0",
        f"0 {BAD_VALUE} {BAD_DEVICE} {BAD_DEVICE} {BAD_VALUE} {BAD_VALUE}",
        "-3 0",
        f"{BAD_DEVICE} 0",
        "0 -3 0",
        f"0 0 {BAD_VALUE}",
    ]


MAPS = """
g = Cuda(); space = c.create_string_buffer(256); p = g.alloc(1 << 20).value
at = (c.addressof(space) + 63) & ~63
def numbers(kind, values): return (kind * len(values))(*values)
def tiled(out=at, type=7, rank=2, base=p, size=(64, 64), strides=(256,), box=(32, 8), steps=(1, 1),
          interleave=0, swizzle=3, promotion=0, fill=0):
    return g.raw("cuTensorMapEncodeTiled", c.c_void_p(out), type, rank, c.c_void_p(base),
                 numbers(c.c_uint64, size), numbers(c.c_uint64, strides),
                 numbers(c.c_uint32, box), numbers(c.c_uint32, steps), interleave, swizzle,
                 promotion, fill)
def wide(rank=4, size=(64, 8, 8, 2), strides=(256, 2048, 16384), lower=(-1, -1), upper=(-1, -1),
         channels=32, pixels=64):
    return g.raw("cuTensorMapEncodeIm2col", c.c_void_p(at), 7, rank, c.c_void_p(p),
                 numbers(c.c_uint64, size), numbers(c.c_uint64, strides),
                 numbers(c.c_int, lower), numbers(c.c_int, upper), channels, pixels,
                 numbers(c.c_uint32, (1,) * rank), 0, 0, 0, 0)
bytes_now = lambda: c.string_at(at, 128)
"""


def test_tensor_maps_are_checked_and_filled(sim: Simulator) -> None:
    out = lines(
        sim,
        MAPS
        + """
one = tiled() or bytes_now(); two = tiled(base=p + 16) or bytes_now()
print(one != two, one != bytes(128), (tiled() or bytes_now()) == one)
print(g.raw("cuTensorMapReplaceAddress", c.c_void_p(at), c.c_void_p(p + 16)), bytes_now() == two)
print(g.raw("cuTensorMapReplaceAddress", c.c_void_p(at), c.c_void_p(p + 4)))
c.memset(at, 0, 128); print(g.raw("cuTensorMapReplaceAddress", c.c_void_p(at), c.c_void_p(p)))
print(wide(), wide(rank=3, size=(64, 8, 2), strides=(256, 2048), lower=(-40,), upper=(-40,)))
""",
    )
    assert out == ["True True True", "0 True", BAD_VALUE, BAD_VALUE, "0 0"]


@pytest.mark.parametrize(
    "wrong",
    [
        "tiled(out=at + 8)",
        "tiled(out=0)",
        "tiled(type=99)",
        "tiled(rank=0)",
        "tiled(rank=6, size=(1,) * 6, strides=(16,) * 5, box=(4,) * 6, steps=(1,) * 6)",
        "tiled(rank=2, interleave=1)",
        "tiled(base=p + 8)",
        "tiled(base=0)",
        "tiled(size=(64, 0))",
        "tiled(size=(64, (1 << 31) + 1))",
        "tiled(strides=(264,))",
        "tiled(strides=(1 << 40,))",
        "tiled(box=(3, 8))",
        "tiled(box=(32, 257))",
        "tiled(box=(32, 0))",
        "tiled(box=(64, 8))",  # 256 bytes in a swizzle of 128
        "tiled(steps=(1, 9))",
        "tiled(steps=(1, 0))",
        "tiled(swizzle=7)",
        "tiled(promotion=4)",
        "tiled(fill=2)",
        "tiled(type=3, fill=1)",  # a NaN as an integer
        "wide(rank=2)",
        "wide(lower=(-129, 0))",
        "wide(upper=(0, 128))",
        "wide(channels=257)",
        "wide(pixels=1025)",
    ],
)
def test_a_wrong_tensor_map_is_refused(sim: Simulator, wrong: str) -> None:
    assert lines(sim, MAPS + f"print({wrong}, bytes_now() == bytes(128))") == [f"{BAD_VALUE} True"]


def test_every_limit_of_the_card_is_known(sim: Simulator) -> None:
    """What frameworks ask at their start; what the simulator cannot do is 0."""
    wanted = {
        "RESERVED_SHARED_MEMORY_PER_BLOCK": (111, 1024),
        "MAX_PERSISTING_L2_CACHE_SIZE": (108, 39321600),
        "CLUSTER_LAUNCH": (120, 1),
        "TENSOR_MAP_ACCESS_SUPPORTED": (127, 1),
        "CONCURRENT_MANAGED_ACCESS": (89, 1),
        "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": (103, 1),
        "MAXIMUM_TEXTURE2D_LINEAR_PITCH": (72, 2097120),
        "MEMPOOL_SUPPORTED_HANDLE_TYPES": (119, 1),
        "PCI_BUS_ID": (33, 0x11),
        "GPU_PCI_DEVICE_ID": (139, 0x233510DE),
        "DMA_BUF_SUPPORTED": (124, 0),
        "MULTICAST_SUPPORTED": (132, 0),
        "HANDLE_TYPE_FABRIC_SUPPORTED": (128, 0),
    }
    ask = [number for number, _ in wanted.values()]
    code = f"""
        g, n = Cuda(), c.c_int()
        print([g.raw("cuDeviceGetAttribute", c.byref(n), a, 1) or n.value for a in {ask}])
        print([g.raw("cuDeviceGetAttribute", c.byref(n), a, 0) for a in (0, 162, -1)])
    """
    assert lines(sim, code) == [str([value for _, value in wanted.values()]), "[1, 1, 1]"]
