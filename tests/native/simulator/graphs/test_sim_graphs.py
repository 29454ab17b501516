"""Graphs and capture in the simulated driver: order, overlap, contents, and what is refused."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import make, run, start

from simulator.sim import Kind, Simulator

pytestmark = pytest.mark.native

GRAPH = """
    class Kernel(c.Structure):
        _fields_ = [("func", c.c_void_p)] + [
            (x, c.c_uint) for x in ("gx", "gy", "gz", "bx", "by", "bz", "shared")
        ] + [(x, c.c_void_p) for x in ("params", "extra", "kern", "ctx")]
    class Memset(c.Structure):
        _fields_ = [("dst", c.c_uint64), ("pitch", c.c_size_t),
                    ("value", c.c_uint), ("size", c.c_uint),
                    ("width", c.c_size_t), ("height", c.c_size_t)]
    g = Cuda(); s = g.stream(); graph, ex = c.c_void_p(), c.c_void_p()
    def node(us, *after):
        n = c.c_uint64(int(us * 1000)); params = (c.c_void_p * 1)(c.addressof(n))
        out = c.c_void_p()
        k = Kernel(g.work.value, 1, 1, 1, 1, 1, 1, 0, c.addressof(params), None, None, None)
        deps = (c.c_void_p * len(after))(*[a.value for a in after])
        count = c.c_size_t(len(after))
        g.call("cuGraphAddKernelNode_v2", c.byref(out), graph, deps, count, c.byref(k))
        return out
    def ready(): g.call("cuGraphInstantiateWithFlags", c.byref(ex), graph, c.c_uint64(0))
    def go(times=1):
        for _ in range(times): g.call("cuGraphLaunch", ex, s)
        g.call("cuStreamSynchronize", s)
"""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")
    with start(tmp_path / "sim", memory_mib=4096, minor_base=os.getpid() % 1000 * 16) as simulator:
        yield simulator


def durations(sim: Simulator) -> list[int]:
    sim.stop()
    return [piece.duration // 1000 for piece in sim.intervals() if piece.kind == Kind.KERNEL]


def test_a_diamond_runs_in_the_order_of_its_edges(sim: Simulator) -> None:
    out = run(
        sim,
        GRAPH
        + """
    g.call("cuGraphCreate", c.byref(graph), 0)
    top = node(10); left = node(20, top); right = node(30, top); node(40, left, right)
    n = c.c_size_t(); g.call("cuGraphGetNodes", graph, None, c.byref(n)); print(n.value)
    g.call("cuGraphGetRootNodes", graph, None, c.byref(n)); print(n.value)
    g.call("cuGraphGetEdges", graph, None, None, c.byref(n)); print(n.value)
    ready(); go(2)
    """,
    )
    assert out.split() == ["4", "1", "4"]
    runs = durations(sim)
    assert [sorted(runs[1:3]), sorted(runs[5:7])] == [[20, 30], [20, 30]]
    assert [runs[0], runs[3], runs[4], runs[7]] == [10, 40, 10, 40]


def test_a_graph_pays_one_launch(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")
    with start(tmp_path / "sim", launch_us=6, minor_base=os.getpid() % 1000 * 16) as sim:
        run(
            sim,
            GRAPH
            + """
    g.call("cuGraphCreate", c.byref(graph), 0); last = node(1)
    for _ in range(49): last = node(1, last)
    ready(); go()
    """,
        )
        sim.stop()
        pieces = sim.intervals()
    # A program that stalls between two nodes submits the second one after the first has ended.
    queued = [(a, b) for a, b in itertools.pairwise(pieces) if b.t_submit <= a.t_end]
    assert len(pieces) == 50 and queued and all(b.t_start == a.t_end for a, b in queued)
    assert pieces[0].t_start - pieces[0].t_submit >= 6_000


def test_a_copy_runs_beside_the_kernel_of_another_branch(sim: Simulator) -> None:
    run(
        sim,
        GRAPH
        + """
    t = g.stream(); fork, back = g.event(), g.event(); size = 64 << 20
    host = c.c_void_p(); g.call("cuMemHostAlloc", c.byref(host), c.c_size_t(size), 0)
    p = g.alloc(size)
    g.call("cuStreamBeginCapture_v2", s, 0)
    g.launch(10, s); g.call("cuEventRecord", fork, s); g.call("cuStreamWaitEvent", t, fork, 0)
    g.call("cuMemcpyHtoDAsync_v2", p, host, c.c_size_t(size), t); g.launch(1000, s)
    g.call("cuEventRecord", back, t); g.call("cuStreamWaitEvent", s, back, 0); g.launch(20, s)
    g.call("cuStreamEndCapture", s, c.byref(graph)); ready()
    c.memset(host.value, 7, size); go()
    word = c.c_uint32(); g.call("cuMemcpyDtoH_v2", c.byref(word), p, c.c_size_t(4))
    assert word.value == 0x07070707
    """,
    )
    sim.stop()
    pieces = sim.intervals()
    (copy,) = [x for x in pieces if x.kind == Kind.HTOD]
    top, long, last = [x for x in pieces if x.kind == Kind.KERNEL and x.work]
    assert top.t_end <= copy.t_start < long.t_end and last.t_start >= max(copy.t_end, long.t_end)


def test_a_capture_that_does_not_come_back_is_refused(sim: Simulator) -> None:
    out = run(
        sim,
        GRAPH
        + """
    t = g.stream(); e = g.event()
    g.call("cuStreamBeginCapture_v2", s, 0); g.launch(10, s); g.call("cuEventRecord", e, s)
    g.call("cuStreamWaitEvent", t, e, 0); g.launch(10, t)
    print(g.raw("cuStreamEndCapture", t, c.byref(graph)), g.raw("cuEventQuery", e),
          g.raw("cuStreamSynchronize", s))
    print(g.raw("cuStreamEndCapture", s, c.byref(graph)), graph.value)
    g.launch(10, t); g.launch(10, s); g.call("cuCtxSynchronize")
    """,
    )
    assert out.split() == ["903", "907", "900", "904", "None"]


def test_an_unsafe_call_of_another_thread_invalidates_a_global_capture(sim: Simulator) -> None:
    out = run(
        sim,
        GRAPH
        + """
    import threading
    e = g.event(); seen = []
    def other(relaxed):
        mode = c.c_int(2 if relaxed else 0)
        g.call("cuThreadExchangeStreamCaptureMode", c.byref(mode))
        seen.append(g.raw("cuEventQuery", e))
    for relaxed in (True, False):
        g.call("cuStreamBeginCapture_v2", s, 0); g.launch(10, s)
        thread = threading.Thread(target=other, args=(relaxed,)); thread.start(); thread.join()
        print(g.raw("cuStreamEndCapture", s, c.byref(graph)), graph.value is not None)
    print(seen)
    """,
    )
    assert out.split() == ["0", "True", "901", "False", "[0,", "900]"]


def test_other_nodes_children_and_changes(sim: Simulator) -> None:
    out = run(
        sim,
        GRAPH
        + """
    p = g.alloc(1 << 20); out = c.c_void_p(); seen = []; zero = c.c_size_t(0)
    g.call("cuGraphCreate", c.byref(graph), 0)
    fill = Memset(p.value, 0, 0x11223344, 4, 1024, 1)
    g.call("cuGraphAddMemsetNode", c.byref(out), graph, None, zero, c.byref(fill), g.ctx)
    one = (c.c_void_p * 1)(out.value); fn = c.CFUNCTYPE(None, c.c_void_p)(lambda x: seen.append(x))
    class Host(c.Structure): _fields_ = [("fn", c.c_void_p), ("data", c.c_void_p)]
    host = Host(c.cast(fn, c.c_void_p).value, 5)
    g.call("cuGraphAddHostNode", c.byref(out), graph, one, c.c_size_t(1), c.byref(host))
    child, parent = c.c_void_p(graph.value), c.c_void_p()
    g.call("cuGraphCreate", c.byref(parent), 0); graph.value = parent.value
    first = node(100); one = (c.c_void_p * 1)(first.value)
    g.call("cuGraphAddChildGraphNode", c.byref(out), graph, one, c.c_size_t(1), child)
    last = node(200, out); g.call("cuGraphDestroy", child); ready(); go()
    word = c.c_uint32(); g.call("cuMemcpyDtoH_v2", c.byref(word), p, c.c_size_t(4))
    print(hex(word.value), seen)
    n = c.c_uint64(300_000); params = (c.c_void_p * 1)(c.addressof(n))
    k = Kernel(g.work.value, 1, 1, 1, 1, 1, 1, 0, c.addressof(params), None, None, None)
    g.call("cuGraphExecKernelNodeSetParams_v2", ex, first, c.byref(k)); go()
    class Info(c.Structure):
        _fields_ = [("result", c.c_int), ("node", c.c_void_p), ("from_", c.c_void_p)]
    info = Info(); print(g.raw("cuGraphExecUpdate_v2", ex, graph, c.byref(info)), info.result); go()
    node(1); print(g.raw("cuGraphExecUpdate_v2", ex, graph, c.byref(info)), info.result)
    copy = c.c_void_p(); g.call("cuGraphClone", c.byref(copy), graph)
    g.call("cuGraphDestroy", graph)
    graph.value = copy.value; ready(); go()
    assert g.raw("cuGraphAddDependencies", graph, c.byref(first), c.byref(last), c.c_size_t(1)) == 1
    """,
    )
    assert out.split() == ["0x11223344", "[5]", "0", "0", "910", "2"]
    assert sorted(durations(sim)) == sorted([100, 200, 300, 200, 100, 200, 100, 200, 1])


def test_a_cycle_is_refused(sim: Simulator) -> None:
    out = run(
        sim,
        GRAPH
        + """
    g.call("cuGraphCreate", c.byref(graph), 0); a = node(1); b = node(1, a)
    g.call("cuGraphAddDependencies", graph, c.byref(b), c.byref(a), c.c_size_t(1))
    print(g.raw("cuGraphInstantiateWithFlags", c.byref(ex), graph, c.c_uint64(0)))
    """,
    )
    assert out.split() == ["1"]


def test_a_wide_graph_needs_few_streams(sim: Simulator) -> None:
    """500 roots, each with a follower: more than there are branches."""
    run(
        sim,
        GRAPH
        + """
    g.call("cuGraphCreate", c.byref(graph), 0)
    for _ in range(500): node(2, node(1))
    ready(); go(3)
    """,
    )
    runs = durations(sim)
    assert len(runs) == 3000 and sum(runs) == 4500


def test_a_capture_depends_on_what_it_is_told(sim: Simulator) -> None:
    """The next node's dependencies are replaced or added to, as NCCL does; others are refused."""
    out = run(
        sim,
        GRAPH
        + """
    ADD, SET, status, count = 0, 1, c.c_int(), c.c_size_t()
    def front():
        nodes = c.POINTER(c.c_void_p)()
        g.call("cuStreamGetCaptureInfo_v2", s, c.byref(status), None, None, c.byref(nodes),
               c.byref(count))
        return [nodes[i] for i in range(count.value)]
    def launch(): g.launch(1, s); return front()[-1]
    def update(how, *nodes, version=""):
        edges = (None,) if version else ()
        return g.raw(f"cuStreamUpdateCaptureDependencies{version}", s,
                     (c.c_void_p * 9)(*nodes), *edges, c.c_size_t(len(nodes)), how)
    print(update(SET))
    g.call("cuStreamBeginCapture_v2", s, 2); one = launch(); two = launch()
    print(update(SET, one), front() == [one]); three = launch()
    print(update(ADD, two, three, version="_v2"), front() == [three, two]); four = launch()
    print(update(2, one), update(SET, 0x1234), update(ADD, four), front() == [four])
    g.call("cuStreamEndCapture", s, c.byref(graph)); f, t = (c.c_void_p * 9)(), (c.c_void_p * 9)()
    count.value = 9; g.call("cuGraphGetEdges", graph, f, t, c.byref(count))
    names = {one: 1, two: 2, three: 3, four: 4}
    print(sorted((names[a], names[b]) for a, b in zip(f, t) if a))
    ready(); go()
    """,
    )
    edges = str([(1, 2), (1, 3), (2, 4), (3, 4)])
    assert out.splitlines() == ["401", "0 True", "0 True", "1 1 0 True", edges]


OWNED = (
    GRAPH
    + """
    size = c.c_size_t; none = size(0)
    def capture(work):
        made = c.c_void_p()
        g.call("cuStreamBeginCapture_v2", s, 0); work()
        g.call("cuStreamEndCapture", s, c.byref(made))
        return made
    def allocating(us=1):
        p = c.c_uint64()
        def work():
            g.call("cuMemAllocAsync", c.byref(p), size(1 << 20), s); g.launch(us, s)
        return p, capture(work)
    def made_ready(graph, flags=0):
        e = c.c_void_p()
        g.call("cuGraphInstantiateWithFlags", c.byref(e), graph, c.c_uint64(flags)); return e
    def freed(p): return g.raw("cuMemFreeAsync", p, s)
    def launch(e): return g.raw("cuGraphLaunch", e, s)
"""
)


def test_memory_that_a_graph_leaves_is_freed_after_each_launch(sim: Simulator) -> None:
    """By either call, once; a launch over what was not freed is refused, and its address stays."""
    out = run(
        sim,
        OWNED
        + """
    p, first = allocating(); e = made_ready(first)
    print(launch(e), freed(p), freed(p)); print(launch(e), launch(e))
    print(g.raw("cuMemFree_v2", p), g.raw("cuMemFree_v2", p), launch(e))
    word = c.c_uint32(7); g.call("cuMemcpyHtoD_v2", p, c.byref(word), size(4)); word.value = 0
    g.call("cuGraphDestroy", first); g.call("cuGraphExecDestroy", e)
    g.call("cuMemcpyDtoH_v2", c.byref(word), p, size(4)); print(word.value, freed(p), freed(p))
    print(g.raw("cuMemcpyDtoH_v2", c.byref(word), p, size(4)))
    p, second = allocating(); e = made_ready(second, 1)
    print(launch(e), launch(e), freed(p), launch(e))
    """,
    )
    assert " ".join(out.split()) == "0 0 1 0 1 0 1 0 7 0 1 1 0 0 0 0"


def test_another_graph_frees_the_memory_of_a_graph(sim: Simulator) -> None:
    out = run(
        sim,
        OWNED
        + """
    p, owner = allocating(); e = made_ready(owner)
    other = capture(lambda: g.call("cuMemFreeAsync", p, s)); f = made_ready(other)
    out = c.c_void_p(); add = lambda graph: g.raw("cuGraphAddMemFreeNode", c.byref(out), graph,
                                                  None, none, p)
    print(add(owner), add(other)); print(launch(e), launch(f), freed(p)); print(launch(e), freed(p))
    q, both = allocating()
    g.call("cuGraphAddMemFreeNode", c.byref(out), both, None, none, q); p = q
    print(add(both), add(other)); e = made_ready(both); print(launch(e), launch(e), freed(q))
    plain = g.alloc(4096); p = plain; print(add(owner), g.raw("cuMemFree_v2", plain))
    """,
    )
    assert " ".join(out.split()) == "1 1 0 0 1 0 0 1 1 0 0 1 1 0"
