"""What programs ask of the nodes of a simulated graph, and change in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_tools import run
from test_sim_graphs import GRAPH, durations

from simulator.sim import Simulator

pytestmark = pytest.mark.native

MADE = (
    GRAPH
    + """
    size = c.c_size_t; p = g.alloc(4096); q = g.alloc(4096); P = c.c_uint64
    fn = c.CFUNCTYPE(None, c.c_void_p)(lambda x: None)
    class Host(c.Structure): _fields_ = [("fn", c.c_void_p), ("data", c.c_void_p)]
    class Copy(c.Structure):
        _fields_ = [("src", size * 4), ("stype", c.c_int), ("shost", c.c_void_p), ("sdev", P),
                    ("sarray", c.c_void_p), ("x0", c.c_void_p), ("spitch", size),
                    ("sheight", size), ("dst", size * 4), ("dtype", c.c_int),
                    ("dhost", c.c_void_p), ("ddev", P), ("darray", c.c_void_p),
                    ("x1", c.c_void_p), ("dpitch", size), ("dheight", size),
                    ("w", size), ("h", size), ("d", size)]
    def nodes(of):
        n = size(); g.call("cuGraphGetNodes", of, None, c.byref(n))
        found = (c.c_void_p * n.value)(); g.call("cuGraphGetNodes", of, found, c.byref(n))
        return [c.c_void_p(x) for x in found]
    def beside(call, node, *more):
        n = size(8); found = (c.c_void_p * 8)()
        g.call(call, node, found, *more, c.byref(n)); return list(found)[:n.value]
    g.call("cuStreamBeginCapture_v2", s, 0); g.launch(10, s)
    g.call("cuMemsetD16Async", p, 7, size(100), s)
    g.call("cuMemcpyDtoDAsync_v2", q, p, size(200), s)
    g.call("cuLaunchHostFunc", s, fn, c.c_void_p(5))
    g.call("cuStreamEndCapture", s, c.byref(graph))
    kernel, fill, copy, host = nodes(graph)
"""
)


def test_parameters_of_captured_nodes_are_read_and_changed(sim: Simulator) -> None:
    out = run(
        sim,
        MADE
        + """
    k, old = Kernel(), Kernel(); f, m, h = Memset(), Copy(), Host()
    g.call("cuGraphKernelNodeGetParams_v2", kernel, c.byref(k))
    g.call("cuGraphKernelNodeGetParams", kernel, c.byref(old))
    print(k.func == old.func == g.work.value, k.gx, old.bz)
    g.call("cuGraphMemsetNodeGetParams", fill, c.byref(f))
    print(f.dst == p.value, f.value, f.size, f.width, f.height)
    g.call("cuGraphMemcpyNodeGetParams", copy, c.byref(m))
    print(m.ddev == q.value, m.sdev == p.value, m.w, m.h, m.d)
    g.call("cuGraphHostNodeGetParams", host, c.byref(h)); print(h.data)
    print(g.raw("cuGraphMemsetNodeGetParams", copy, c.byref(f)),
          g.raw("cuGraphHostNodeGetParams", host, None))
    f.value, f.width = 9, 50; g.call("cuGraphMemsetNodeSetParams", fill, c.byref(f))
    m.w = 60; g.call("cuGraphMemcpyNodeSetParams", copy, c.byref(m))
    n = c.c_uint64(20_000); params = (c.c_void_p * 1)(c.addressof(n))
    old.params = c.addressof(params)
    g.call("cuGraphKernelNodeSetParams", kernel, c.byref(old)); ready(); go()
    words = (c.c_uint16 * 50)(); g.call("cuMemcpyDtoH_v2", words, q, size(100)); print(sum(words))
    f.value = 1; g.call("cuGraphExecMemsetNodeSetParams", ex, fill, c.byref(f), g.ctx)
    m.w = 100; g.call("cuGraphExecMemcpyNodeSetParams", ex, copy, c.byref(m), g.ctx)
    n.value = 30_000; g.call("cuGraphExecKernelNodeSetParams", ex, kernel, c.byref(old))
    print(g.raw("cuGraphExecHostNodeSetParams", ex, fill, c.byref(h))); go()
    g.call("cuMemcpyDtoH_v2", words, q, size(100)); print(sum(words))
    g.call("cuGraphMemsetNodeGetParams", fill, c.byref(f)); print(f.value)
    """,
    )
    assert out.splitlines() == [
        *("True 1 1", "True 7 2 100 1", "True True 200 1 1", "5", "1 1"),
        *("270", "1", "50", "9"),
    ]
    assert durations(sim)[:2] == [20, 30]


def test_edges_clones_and_the_picture(sim: Simulator, tmp_path: Path) -> None:
    dot = tmp_path / "graph.dot"
    out = run(
        sim,
        MADE
        + f"""
    edge = (c.c_uint64 * 8)(*[9] * 8)
    print(beside("cuGraphNodeGetDependentNodes", kernel) == [fill.value],
          beside("cuGraphNodeGetDependencies_v2", copy, edge) == [fill.value], edge[0], edge[1],
          beside("cuGraphNodeGetDependentNodes_v2", host, edge))
    copied, there = c.c_void_p(), c.c_void_p()
    g.call("cuGraphClone", c.byref(copied), graph)
    g.call("cuGraphNodeFindInClone", c.byref(there), copy, copied)
    print(there.value == nodes(copied)[2].value)
    print(g.raw("cuGraphNodeFindInClone", c.byref(there), nodes(copied)[0], copied),
          g.raw("cuGraphNodeFindInClone", c.byref(there), copy, graph))
    g.call("cuGraphDebugDotPrint", graph, {str(dot).encode()!r}, 0)
    print(g.raw("cuGraphDebugDotPrint", graph, b"/no/such/folder/x", 0))
    """,
    )
    assert out.split() == ["True", "True", "0", "9", "[]", "True", "1", "1", "304"]
    lines = dot.read_text().splitlines()
    assert lines[0] == "digraph graph_1 {" and lines[-1] == "}"
    assert '  "node_0" [label="0 KERNEL qgpu_work"];' in lines
    assert sum("->" in line for line in lines) == 3
