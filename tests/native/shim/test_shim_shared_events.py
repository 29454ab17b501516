"""What the driver has since it runs NVIDIA's runtime, through the shim."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from programs_support import OFFLINE, ended, python
from sim_pair import pair, until

from bench.harness.node import Rig

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(OFFLINE, "offline", mem_mib=8192)
        yield running


def test_two_tasks_of_a_job_share_an_event(rig: Rig) -> None:
    """Each waits for the other's work."""
    with pair(partial(python, rig, stdin=subprocess.PIPE)) as (maker, opener):
        assert maker.ask("(hold(), record())") == "(None, None)"
        assert (maker.ask("query()"), opener.ask("query()")) == ("600", "600")
        assert opener.ask("g.call('cuStreamWaitEvent', s, event, 0)") == "None"
        assert opener.ask("query(True)") == "600", "the stream waits"
        maker.ask("go()")
        assert opener.ask("g.call('cuStreamSynchronize', s)") == "None"
        assert opener.ask("(hold(), record())") == "(None, None)"
        assert maker.ask("query()") == "600"
        opener.ask("go()")
        assert maker.ask("g.call('cuEventSynchronize', event)") == "None"
        until(opener, "query()", "0")


def test_stubs_and_bodies_answer_through_the_shim(rig: Rig) -> None:
    """Passed through and hooked, by name and by cuGetProcAddress; a user object of a graph."""
    code = """
        g, at, gone = Cuda(), c.c_void_p(), threading.Event()
        print(g.raw("cuTexObjectCreate", None, None, None, None),
              g.raw("cuSignalExternalSemaphoresAsync", None, None, 0, None))
        names = b"cuTexObjectCreate", b"cuSignalExternalSemaphoresAsync", b"cuNoDriverHasThis"
        for name in names:
            status = g.raw("cuGetProcAddress", name, c.byref(at), 13000, c.c_uint64(0))
            print(status or c.CFUNCTYPE(c.c_int, *[c.c_void_p] * 4)(at.value)(0, 0, 0, 0))
        end = c.CFUNCTYPE(None, c.c_void_p)(lambda data: gone.set())
        one, graph, run = c.c_void_p(), c.c_void_p(), c.c_void_p()
        g.call("cuUserObjectCreate", c.byref(one), None, end, 1, 1)
        g.call("cuGraphCreate", c.byref(graph), 0)
        g.call("cuGraphRetainUserObject", graph, one, 1, 1)
        g.call("cuGraphInstantiateWithFlags", c.byref(run), graph, c.c_uint64(0))
        g.call("cuGraphDestroy", graph); g.call("cuGraphLaunch", run, None)
        before = gone.is_set(); g.call("cuGraphExecDestroy", run); print(before, gone.wait(30))
    """
    out, _ = ended(python(rig, code, QGPU_SIM_DEBUG="1"), 60)
    assert out.splitlines() == ["801 801", "801", "801", "500", "False True"]
