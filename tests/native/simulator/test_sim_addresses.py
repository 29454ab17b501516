"""Where memory is decides about a copy of the simulated driver, not the call that makes it: unified
addresses, and mappings of one reservation side by side.
"""

from __future__ import annotations

import textwrap

import pytest
from sim_tools import run

from simulator.sim import Simulator

pytestmark = pytest.mark.native

# Three handles, of 2, 4 and 2 MiB, one after the other in a reservation of 10 MiB: 2 MiB are empty.
MAPPED = """
class Prop(c.Structure):
    _fields_ = [(x, c.c_int) for x in ("type", "handles", "place", "id")]
    _fields_ += [("rest", c.c_char * 64)]
M = 1 << 20; size = c.c_size_t; g = Cuda(); space = c.c_uint64()
g.call("cuMemAddressReserve", c.byref(space), size(10 * M), size(0), c.c_uint64(0), c.c_uint64(0))
def create(mib, place=1, number=0, handles=0):
    handle = c.c_uint64(); prop = Prop(1, handles, place, number)
    g.call("cuMemCreate", c.byref(handle), size(mib * M), c.byref(prop), c.c_uint64(0))
    return handle
def put(at, mib, handle):
    g.call("cuMemMap", c.c_uint64(at), size(mib * M), size(0), handle, c.c_uint64(0))
at = space.value
for mib in (2, 4, 2):
    put(at, mib, create(mib)); at += mib * M
base = space.value; host = bytes(i * 7 % 251 for i in range(251)) * (8 * M // 251 + 1)
def inside(offset): return c.c_uint64(base + offset)
def read(offset, n):
    out = c.create_string_buffer(n); g.call("cuMemcpyDtoH_v2", out, inside(offset), size(n))
    return out.raw
"""


def run_mapped(sim: Simulator, code: str) -> str:
    return run(sim, MAPPED + textwrap.dedent(code))


def test_copies_go_over_mappings_of_one_reservation(sim: Simulator) -> None:
    """Linear ones, within the reservation, of rows, of boxes, in a batch, between contexts."""
    run_mapped(
        sim,
        """
        s = g.stream(); P = c.c_uint64; n = 6 * M
        g.call("cuMemcpyHtoD_v2", inside(M), host, size(n))
        assert read(M, n) == host[:n] and read(2 * M - 3, 7) == host[M - 3:M + 4]
        one = g.alloc(n)
        g.call("cuMemcpyDtoDAsync_v2", one, inside(M), size(n), s)
        g.call("cuMemsetD8_v2", inside(0), 0, size(8 * M)); assert read(0, 8 * M) == bytes(8 * M)
        g.call("cuMemcpyPeer", inside(M), g.ctx, one, g.ctx, size(n)); assert read(M, n) == host[:n]
        g.call("cuMemsetD32_v2", inside(M), 0x04030201, size(M)); word = bytes((1, 2, 3, 4))
        assert read(M, 4 * M) == word * M and read(5 * M, 9) == host[4 * M:4 * M + 9]
        g.call("cuMemcpyBatchAsync_v2", (P * 1)(base + M), (P * 1)(one.value), (size * 1)(n),
               size(1), None, None, size(0), s)
        assert read(M, n) == host[:n]
        # rows of 3 MiB, each over an end of a mapping
        g.call("cuMemsetD2D8_v2", inside(M), size(4 * M), 9, size(3 * M), size(2))
        assert read(M, 7 * M) == b"\\x09" * (3 * M) + host[3 * M:4 * M] + b"\\x09" * (3 * M)
        class Box(c.Structure):
            _fields_ = [("src", size * 4), ("stype", c.c_int), ("shost", c.c_void_p),
                        ("sdev", P), ("sarray", c.c_void_p), ("x0", c.c_void_p), ("spitch", size),
                        ("sheight", size), ("dst", size * 4), ("dtype", c.c_int),
                        ("dhost", c.c_void_p), ("ddev", P), ("darray", c.c_void_p),
                        ("x1", c.c_void_p), ("dpitch", size), ("dheight", size),
                        ("w", size), ("h", size), ("d", size)]
        box = Box(stype=2, sdev=one.value, spitch=3 * M, sheight=1, dtype=2, ddev=base,
                  dpitch=4 * M, dheight=1, w=3 * M, h=1, d=2)
        g.call("cuMemcpy3DAsync_v2", c.byref(box), s)
        assert read(0, 3 * M) == host[:3 * M] and read(4 * M, 3 * M) == host[3 * M:n]
        """,
    )


def test_a_graph_copies_and_fills_over_mappings(sim: Simulator) -> None:
    run_mapped(
        sim,
        """
        s = g.stream(); graph, ex = c.c_void_p(), c.c_void_p(); one = g.alloc(6 * M)
        g.call("cuMemcpyHtoD_v2", one, host, size(6 * M))
        g.call("cuStreamBeginCapture_v2", s, 0)
        g.call("cuMemsetD8Async", inside(0), 5, size(8 * M), s)
        g.call("cuMemcpyDtoDAsync_v2", inside(M), one, size(6 * M), s)
        g.call("cuStreamEndCapture", s, c.byref(graph))
        g.call("cuGraphInstantiateWithFlags", c.byref(ex), graph, c.c_uint64(0))
        assert read(0, M) == bytes(M)
        g.call("cuGraphLaunch", ex, s); g.call("cuStreamSynchronize", s)
        assert read(0, 8 * M) == b"\\x05" * M + host[:6 * M] + b"\\x05" * M
        """,
    )


def test_an_access_beyond_what_is_mapped_does_nothing(sim: Simulator) -> None:
    """Into the empty end, over a hole, and from an allocation into what follows it."""
    out = run_mapped(
        sim,
        """
        s = g.stream()
        print(g.raw("cuMemcpyHtoD_v2", inside(7 * M), host, size(M + 1)),
              g.raw("cuMemsetD8_v2", inside(7 * M), 1, size(M + 1)),
              g.raw("cuMemsetD32_v2", inside(0), 1, size((1 << 62) + 1)))
        g.call("cuMemUnmap", inside(2 * M), size(4 * M))
        print(g.raw("cuMemcpyHtoD_v2", inside(M), host, size(6 * M)),
              g.raw("cuMemcpyHtoDAsync_v2", inside(M), host, size(M + 1), s))
        put(base + 2 * M, 4, create(4)); print(read(0, 8 * M) == bytes(8 * M))
        one = g.alloc(M); print(g.raw("cuMemcpyDtoD_v2", inside(0), one, size(M + 1)))
        """,
    )
    assert out.split() == ["1", "1", "1", "1", "1", "True", "1"]


def test_any_copy_takes_any_memory_that_the_driver_knows(sim: Simulator) -> None:
    """Each function, from each kind of memory to each; ordinary memory only as the host's end."""
    out = run(
        sim,
        """
        import itertools, mmap
        g = Cuda(); n = 4096; size = c.c_size_t; P = c.c_uint64; s = g.stream(); V = c.c_void_p
        pinned = c.c_void_p(); g.call("cuMemHostAlloc", c.byref(pinned), size(n), 0)
        area = mmap.mmap(-1, 2 * n); at = c.addressof(c.c_char.from_buffer(area))
        g.call("cuMemHostRegister_v2", V(at), size(n), 0)
        managed = P(); g.call("cuMemAllocManaged", c.byref(managed), size(n), 1)
        known = {"device": g.alloc(n).value, "pinned": pinned.value, "registered": at,
                 "managed": managed.value}
        plain = at + n
        class Rows(c.Structure):
            _fields_ = [("x", size), ("y", size), ("stype", c.c_int), ("shost", V), ("sdev", P),
                        ("sarray", V), ("spitch", size), ("dx", size), ("dy", size),
                        ("dtype", c.c_int), ("dhost", V), ("ddev", P), ("darray", V),
                        ("dpitch", size), ("w", size), ("h", size)]
        def rows(kind):
            def call(d, f):
                r = Rows(stype=kind, shost=f, sdev=f, dtype=kind, dhost=d, ddev=d, spitch=64,
                         dpitch=64, w=64, h=n // 64)
                return g.raw("cuMemcpy2D_v2", c.byref(r))
            return call
        ways = {name: (lambda d, f, name=name: g.raw(name, P(d), P(f), size(n)))
                for name in ("cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2")}
        ways |= {name: (lambda d, f, name=name: g.raw(name, P(d), P(f), size(n), s))
                 for name in ("cuMemcpyAsync", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                              "cuMemcpyDtoDAsync_v2")}
        ways["peer"] = lambda d, f: g.raw("cuMemcpyPeer", P(d), g.ctx, P(f), g.ctx, size(n))
        ways |= {f"rows {kind}": rows(kind) for kind in (1, 2, 4)}
        def show(p):
            out = c.create_string_buffer(n); g.call("cuMemcpy", P(c.addressof(out)), P(p), size(n))
            return out.raw
        for i, (way, (to, d), (of, f)) in enumerate(itertools.product(ways, known.items(),
                                                                      known.items())):
            if d == f: continue
            g.call("cuMemsetD8_v2", P(f), i % 255 + 1, size(n))
            g.call("cuMemsetD8_v2", P(d), 0, size(n))
            status = ways[way](d, f); g.call("cuCtxSynchronize")
            assert status == 0 and show(d) == bytes([i % 255 + 1]) * n, (way, to, of, status)
        device = known["device"]
        print([ways[way](plain, device) for way in ("cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "peer")],
              [ways[way](device, plain) for way in ("cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2", "peer")],
              ways["cuMemcpyDtoH_v2"](device, plain), ways["cuMemcpyHtoD_v2"](plain, device))
        """,
    )
    assert out.strip() == "[0, 1, 1] [0, 1, 1] 1 1"


def test_memory_of_the_host_by_handle(sim: Simulator) -> None:
    """As cuda.h says of cuMemCreate: a NUMA node's may be shared, HOST's not, and no thread's own
    node is taken. Places are HOST 2, HOST_NUMA 3, HOST_NUMA_CURRENT 4.
    """
    out = run_mapped(
        sim,
        """
        def asked(place, number=0, handles=0, kind=0):
            prop = Prop(1, handles, place, number); unit = size(); handle = c.c_uint64()
            grain = g.raw("cuMemGetAllocationGranularity", c.byref(unit), c.byref(prop), kind)
            made = g.raw("cuMemCreate", c.byref(handle), size(2 * M), c.byref(prop), c.c_uint64(0))
            return (grain, made, unit.value >> 20)
        print(asked(2), asked(2, 99, 0, 1), asked(2, 0, 1), asked(3), asked(3, 0, 1), asked(3, 1),
              asked(4), asked(4, 0, 1))
        left = g.free_memory(); handle = create(2, 3, 0, 1); put(base + 8 * M, 2, handle)
        print(left - g.free_memory())
        fd, other, prop = c.c_int(), c.c_uint64(), Prop()
        g.call("cuMemExportToShareableHandle", c.byref(fd), handle, 1, c.c_uint64(0))
        g.call("cuMemImportFromShareableHandle", c.byref(other), c.c_void_p(fd.value), 1)
        g.call("cuMemGetAllocationPropertiesFromHandle", c.byref(prop), other)
        print(prop.place, prop.id)
        g.call("cuMemUnmap", inside(0), size(2 * M)); put(base, 2, other)
        g.call("cuMemcpyHtoD_v2", inside(8 * M), host, size(2 * M)); print(read(0, 9) == host[:9])
        """,
    )
    good, bad = "(0, 0, 2)", "(1, 1, 0)"
    assert out.splitlines() == [
        " ".join([good, good, bad, good, good, bad, bad, bad]),
        "0",
        "3 0",
        "True",
    ]
