"""A driver that refuses to register the job's page: programs are governed all the same, without
fences.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbiter_support import bpf_arrays
from programs_support import busy_online, ended, line, python, tenant

from bench.harness.node import Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
ONLINE, OFFLINE = 1, 2
REFUSED = "the driver refused to register the memory"
NO_ARRAYS = pytest.mark.skipif(not bpf_arrays(), reason="the kernel makes no BPF arrays here")
CODES = {"not-supported": 801, "invalid-value": 1}


@pytest.fixture(params=["file", pytest.param("array", marks=NO_ARRAYS)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A node with job pages of each kind."""
    with Rig(tmp_path, arbiter_options=("--job-memory", request.param)) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=1024)
        yield running


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_program_is_capped_gated_and_preempted_and_ends(rig: Rig, code: int) -> None:
    """It says once that it has no fences, in two contexts, and keeps to cap and gate."""
    rig.fault(f"error call=cuMemHostRegister code={code}")
    program = """
    d = Cuda(); p = d.alloc(MIB); print("over", d.try_alloc(2 * GIB), flush=True)
    other = c.c_void_p(); first = c.c_void_p(); d.call("cuCtxGetCurrent", c.byref(first))
    d.call("cuCtxCreate_v2", c.byref(other), 0, 0); d.launch(1000); d.call("cuCtxSynchronize")
    d.call("cuCtxSetCurrent", first); stop = time.monotonic() + 60
    while not os.path.exists("{done}") and time.monotonic() < stop:
        d.launch(1000); d.call("cuCtxSynchronize")
    print("ended")
    """.replace("{done}", str(rig.directory / "done"))
    offline = python(rig, program, OFFLINE)
    assert line(offline) == "over 0", "the cap holds"
    wait_for("it works", lambda: tenant(rig).launches > 50)
    with busy_online(rig):
        wait_for("online preempts it", lambda: tenant(rig).gate & 0x101 == 0x101)
        closed = tenant(rig)
        wait_for(
            "it waits",
            lambda: tenant(rig).closed_preempted_ns > closed.closed_preempted_ns + 300_000_000,
        )
        assert tenant(rig).launches <= closed.launches + 2, "the gate holds it"
    before = tenant(rig).launches
    wait_for("it goes on", lambda: tenant(rig).launches > before + 50)

    (rig.directory / "done").touch()
    out, err = ended(offline)
    assert out == "ended"
    assert err.count(REFUSED) == 1, err
    assert f"error {code})" in err
