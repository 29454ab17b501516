"""User objects of graphs: when their destructors are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import run, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim") as running:
        yield running


# gone: data of the objects whose destructor was called, in this order.
OBJECTS = """
import threading
g = Cuda(); gone, called = [], threading.Condition()
@c.CFUNCTYPE(None, c.c_void_p)
def destroy(data):
    with called:
        gone.append((data, threading.get_ident() != threading.main_thread().ident))
        called.notify_all()
def make(data, count=1):
    handle = c.c_void_p()
    g.call("cuUserObjectCreate", c.byref(handle), c.c_void_p(data), destroy, count, 1)
    return handle
def graph():
    handle = c.c_void_p(); g.call("cuGraphCreate", c.byref(handle), 0)
    return handle
def wait(*data):
    with called:
        assert called.wait_for(lambda: len(gone) >= len(data), 30), gone
    assert [d for d, _ in gone] == list(data), gone
# Calls are in order: when this object's is made, no other is due.
def flush():
    g.call("cuUserObjectRelease", make(0xffff), 1)
    with called:
        assert called.wait_for(lambda: 0xffff in [d for d, _ in gone], 30)
    seen = [d for d, _ in gone if d != 0xffff]
    gone[:] = [one for one in gone if one[0] != 0xffff]
    return seen
MOVE = 1
"""


def test_the_last_reference_calls_the_destructor_in_another_thread(sim: Simulator) -> None:
    out = run(
        sim,
        OBJECTS
        + """
one = make(1, 2); g.call("cuUserObjectRetain", one, 3); g.call("cuUserObjectRelease", one, 4)
print(flush()); g.call("cuUserObjectRelease", one, 1); wait(1); print(gone)
print(g.raw("cuUserObjectRelease", one, 1), g.raw("cuUserObjectRetain", one, 1))
""",
    )
    assert out.splitlines() == ["[]", "[(1, True)]", "1 1"]


def test_what_is_wrong_is_refused(sim: Simulator) -> None:
    out = run(
        sim,
        OBJECTS
        + """
h = c.c_void_p(); one, a = make(1), graph()
new = lambda out, fn, n, flags: g.raw("cuUserObjectCreate", out, None, fn, c.c_uint(n), flags)
print(new(None, destroy, 1, 1), new(c.byref(h), None, 1, 1), new(c.byref(h), destroy, 0, 1),
      new(c.byref(h), destroy, 1, 0), new(c.byref(h), destroy, 1 << 31, 1))
print([g.raw(f"cuUserObject{what}", one, c.c_uint(n))
       for what in ("Retain", "Release") for n in (0, 1 << 31)],
      g.raw("cuUserObjectRelease", one, 2))
keep = lambda graph, object, n, flags: g.raw("cuGraphRetainUserObject", graph, object, n, flags)
print(keep(None, one, 1, 0), keep(a, None, 1, 0), keep(a, one, 0, 0), keep(a, one, 1, 2),
      keep(a, one, 2, MOVE))
print(g.raw("cuGraphReleaseUserObject", a, one, 1), g.raw("cuGraphReleaseUserObject", None, one, 1))
print(flush())
""",
    )
    assert out.splitlines() == ["1 1 1 1 1", "[1, 1, 1, 1] 1", "1 1 1 1 1", "1 1", "[]"]


def test_copies_of_a_graph_own_as_many(sim: Simulator) -> None:
    """A clone, a child and an executable graph; an updated one owns what its new source has."""
    out = run(
        sim,
        OBJECTS
        + """
one, two, a, b, parent = make(1), make(2), graph(), graph(), graph()
clone, run_it, node, info = c.c_void_p(), c.c_void_p(), c.c_void_p(), (c.c_uint64 * 4)()
g.call("cuGraphRetainUserObject", a, one, 1, MOVE); g.call("cuGraphRetainUserObject", b, two, 2, 0)
g.call("cuUserObjectRelease", two, 1); g.call("cuGraphReleaseUserObject", b, two, 1)
g.call("cuGraphClone", c.byref(clone), a); g.call("cuGraphDestroy", a); print(flush())
g.call("cuGraphAddChildGraphNode", c.byref(node), parent, None, c.c_size_t(0), clone)
g.call("cuGraphDestroy", clone)
g.call("cuGraphInstantiateWithFlags", c.byref(run_it), parent, c.c_uint64(0))
g.call("cuGraphDestroy", parent); print(flush())
more = graph(); g.call("cuGraphAddChildGraphNode", c.byref(node), more, None, c.c_size_t(0), b)
g.call("cuGraphDestroy", b)
g.call("cuGraphExecUpdate_v2", run_it, more, info); print(flush())
g.call("cuGraphDestroy", more); print(flush())
g.call("cuGraphExecDestroy", run_it); print(flush())
""",
    )
    assert out.splitlines() == ["[]", "[]", "[1]", "[1]", "[1, 2]"]


def test_references_of_a_running_graph_go_when_it_is_done(sim: Simulator) -> None:
    """One that is destroyed while it runs; in a stream of the program, and in one that is gone."""
    out = run(
        sim,
        OBJECTS
        + """
page = c.c_void_p()
g.call("cuMemHostAlloc", c.byref(page), c.c_size_t(4096), 0); flag = page.value
def held(data, destroyed, waits=True):
    s, one, a, go, node = g.stream(), make(data), graph(), c.c_void_p(), c.c_void_p()
    g.call("cuGraphRetainUserObject", a, one, 1, MOVE)
    g.call("cuGraphAddEmptyNode", c.byref(node), a, None, c.c_size_t(0))
    g.call("cuGraphInstantiateWithFlags", c.byref(go), a, c.c_uint64(0))
    g.call("cuGraphDestroy", a)
    if waits: g.call("cuStreamWaitValue32_v2", s, c.c_uint64(flag), 1, 0)
    g.call("cuGraphLaunch", go, s)
    if destroyed: g.call("cuStreamDestroy_v2", s)
    g.call("cuGraphExecDestroy", go)
held(1, False); held(2, True); print(flush())
held(3, False, False); wait(3)  # its launch is done
c.c_uint32.from_address(flag).value = 1
with called:
    assert called.wait_for(lambda: len(gone) >= 3, 30)
print(sorted(d for d, _ in gone))
""",
    )
    assert out.splitlines() == ["[]", "[1, 2, 3]"]


def test_edges_come_with_their_data(sim: Simulator) -> None:
    """Full dependencies: zeros. In both directions, and as many as there is room for."""
    out = run(
        sim,
        OBJECTS
        + """
a, n = graph(), c.c_size_t(); nodes = [c.c_void_p() for _ in range(3)]
N = c.c_void_p * 4; froms, tos, data = N(), N(), c.create_string_buffer(b"x" * 32, 32)
for i, node in enumerate(nodes):
    g.call("cuGraphAddEmptyNode", c.byref(node), a, N(nodes[0]) if i else None, c.c_size_t(i > 0))
def edges(room):
    n.value = room; g.call("cuGraphGetEdges_v2", a, froms, tos, data, c.byref(n)); return n.value
print(edges(4), [f == nodes[0].value for f in froms[:2]],
      sorted(tos[:2]) == sorted(x.value for x in nodes[1:]), data.raw == bytes(16) + b"x" * 16)
def of(what, node, room=4):
    n.value = room
    g.call(f"cuGraphNodeGet{what}_v2", node, froms, data, c.byref(n)); return n.value
print(of("Dependencies", nodes[0]), of("Dependencies", nodes[1]), of("DependentNodes", nodes[0]),
      of("DependentNodes", nodes[1]), of("DependentNodes", nodes[0], 1))
g.call("cuGraphNodeGetDependentNodes", nodes[0], None, c.byref(n)); print(n.value)
print(g.raw("cuGraphGetEdges_v2", a, None, None, data, c.byref(n)),
      g.raw("cuGraphNodeGetDependentNodes", None, None, c.byref(n)))
""",
    )
    assert out.splitlines() == ["2 [True, True] True True", "0 1 2 0 1", "2", "1 1"]
