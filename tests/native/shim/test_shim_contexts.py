"""Contexts of all kinds under shim, arbiter and simulated card: none at all, another one, green
ones.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, ONLINE, ended, line, python, tenant

from bench.harness.node import BUILD, Rig, wait_for
from enforcer.fdwait import readable_within
from enforcer.wire.link import TenantStats

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, cards=2) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=1024, card=(0, 1))
        yield running


def on_card(rig: Rig, card: int) -> TenantStats:
    """The offline job's numbers on one of its cards."""
    return next(t for t in rig.link.stats() if (t.job_id, t.uuid) == (OFFLINE, rig.uuids[card]))


def goes_on(process: subprocess.Popen[str]) -> None:
    """Lets a program go on that waits for a line."""
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def says_nothing(process: subprocess.Popen[str]) -> bool:
    """For a twentieth of a second."""
    assert process.stdout
    return not readable_within(process.stdout.fileno(), 0.05)


def test_work_without_a_current_context_is_governed(rig: Rig) -> None:
    """A stream has a context; a thread that works in it needs none (CUDA 12: kernels of
    libraries).
    """
    code = """
    d = Cuda(); s = d.stream(); p = c.c_uint64(); MIB32 = c.c_size_t(32 * MIB)
    def other():
        for _ in range(40): d.launch(1000, s)
        assert d.raw("cuMemAllocAsync", c.byref(p), c.c_size_t(2 * GIB), s) == 2
        d.call("cuMemAllocAsync", c.byref(p), MIB32, s); d.call("cuStreamSynchronize", s)
    t = threading.Thread(target=other); t.start(); t.join()
    print(d.free_memory() // MIB, flush=True)
    """
    out, err = ended(python(rig, code))
    assert out == str(1024 - 32)
    assert "allocation of 2.0 GiB refused" in err
    wait_for("all are counted", lambda: tenant(rig).launches == 40)


def test_gate_holds_a_thread_without_a_current_context(rig: Rig) -> None:
    code = """
    d = Cuda(); s = d.stream(); print("up", flush=True)
    t = threading.Thread(target=lambda: (
        sys.stdin.readline(), d.launch(10, s), print("went", flush=True)))
    t.start(); t.join()
    """
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "up"
    online = rig.workload(rig.grants[ONLINE], "--length", "600", "--iters", "100000")
    wait_for("online works", lambda: tenant(rig, ONLINE).launches > 20)
    goes_on(process)
    wait_for("it waits at its gate", lambda: on_card(rig, 0).busy and on_card(rig, 0).launches == 1)
    assert [i for i in rig.trace() if i.pid == process.pid] == []
    online.kill()
    online.communicate()
    assert ended(process)[0] == "went"


def test_memory_of_another_cards_stream_is_charged_there(rig: Rig) -> None:
    code = """
    d = Cuda(); other = c.c_void_p(); d.call("cuDevicePrimaryCtxRetain", c.byref(other), 1)
    d.call("cuCtxSetCurrent", other); s = d.stream(); d.call("cuCtxSetCurrent", d.ctx)
    p = c.c_uint64()
    assert d.raw("cuMemAllocAsync", c.byref(p), c.c_size_t(2 * GIB), s) == 2
    d.call("cuMemAllocAsync", c.byref(p), c.c_size_t(512 * MIB), s); print("has", flush=True)
    sys.stdin.readline()
    """
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "has"
    assert [on_card(rig, card).mem_used >> 20 for card in (0, 1)] == [0, 512]
    goes_on(process)
    ended(process)


def test_default_stream_of_another_context_is_marked_in_its_own(rig: Rig) -> None:
    """A thread waits for a context that is not its current one: what runs there must be seen
    until it ends.
    """
    code = """
    d = Cuda(); b = c.c_void_p(); d.call("cuCtxCreate_v2", c.byref(b), 0, 0)
    d.call("cuCtxSetCurrent", d.ctx)
    # So that the next one is thought short, and gets no marker at once.
    for _ in range(100): d.launch(1)
    d.launch(1500000); d.call("cuCtxSetCurrent", b)
    print("runs", flush=True); d.call("cuCtxSynchronize_v2", d.ctx); print("ended", flush=True)
    sys.stdin.readline()
    """
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "runs"
    busy = []
    while says_nothing(process):
        busy.append(on_card(rig, 0).busy)
    assert line(process) == "ended"
    assert len(busy) > 10 and all(busy[:-1]), "it was taken for idle while its kernel ran"
    wait_for("its end is seen", lambda: not on_card(rig, 0).busy)
    goes_on(process)
    ended(process)


GREEN = """
    d = Cuda(); U = c.c_uint; P = c.c_void_p
    whole, part, rest = (c.create_string_buffer(512) for _ in range(3))
    n, desc, g, x, s = U(1), P(), P(), P(), P()
    d.call("cuDeviceGetDevResource", 0, whole, 1)
    d.call("cuDevSmResourceSplitByCount", part, c.byref(n), whole, rest, 0, 16)
    d.call("cuDevResourceGenerateDesc", c.byref(desc), part, 1)
    d.call("cuGreenCtxCreate", c.byref(g), desc, 0, 1); d.call("cuCtxFromGreenCtx", c.byref(x), g)
    d.call("cuGreenCtxStreamCreate", c.byref(s), g, 1, 0)
"""


def test_green_context_is_governed_and_leaves_nothing(rig: Rig) -> None:
    """Its launches count, what runs in it shows, and when it goes with work in flight its end is
    seen all the same.
    """
    code = (
        GREEN
        + """
    d.call("cuCtxSetCurrent", x)
    for _ in range(30): d.launch(1000, s); d.launch(1000)
    d.call("cuCtxSynchronize"); d.launch(400000, s); d.call("cuGreenCtxDestroy", g)
    d.call("cuCtxSetCurrent", d.ctx)
    print("gone", d.raw("cuLaunchKernel", d.work, 1, 1, 1, 1, 1, 1, 0, s, None, None), flush=True)
    sys.stdin.readline(); print(d.free_memory() // MIB)
    """
    )
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "gone 709"
    wait_for("all are counted", lambda: tenant(rig).launches >= 61)
    assert tenant(rig).busy, "its last kernel still runs"
    wait_for("its end is seen", lambda: not tenant(rig).busy, 5)
    goes_on(process)
    assert ended(process)[0] == "1024"


def test_stream_of_a_green_context_waits_at_the_gate(rig: Rig) -> None:
    process = python(
        rig,
        GREEN + "    print('up', flush=True); sys.stdin.readline(); d.launch(10, s)\n",
        stdin=subprocess.PIPE,
    )
    assert line(process) == "up"
    online = rig.workload(rig.grants[ONLINE], "--length", "600", "--iters", "100000")
    wait_for("online works", lambda: tenant(rig, ONLINE).launches > 20)
    goes_on(process)
    wait_for("it waits at its gate", lambda: tenant(rig).busy and tenant(rig).launches == 1)
    assert [i for i in rig.trace() if i.pid == process.pid] == []
    online.kill()
    online.communicate()
    ended(process)


def test_handle_of_a_green_context_may_be_used_again_before_its_destroyer_is_back() -> None:
    done = subprocess.run(
        [BUILD / "test/shim-green-unit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_primary_context_that_several_threads_give_back_at_once_ends_guarded() -> None:
    done = subprocess.run(
        [BUILD / "test/shim-primary-unit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_context_that_ends_harms_no_marker_of_others(rig: Rig) -> None:
    """Memory that it registered may go with it: each context's markers go through a registration
    of its own.
    """
    code = """
    d = Cuda(); contexts = []
    for n in range(3):
        ctx = c.c_void_p(); d.call("cuCtxCreate_v2", c.byref(ctx), 0, 0); d.load(); s = d.stream()
        d.launch(100, s); d.call("cuStreamSynchronize", s); contexts.append((ctx, s, d.work))
    left = contexts[1:]
    for ctx, s, work in left:
        d.call("cuCtxSetCurrent", ctx); d.work = work
        for _ in range(6): d.launch(20_000, s)
    d.call("cuCtxDestroy_v2", contexts[0][0])
    for ctx, s, work in left:
        d.call("cuCtxSetCurrent", ctx); d.work = work
        d.call("cuStreamSynchronize", s); d.launch(1000, s); d.call("cuStreamSynchronize", s)
    print("worked", flush=True); sys.stdin.readline()
    """
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "worked"
    wait_for("all launches are counted", lambda: tenant(rig).launches == 3 + 12 + 2)
    wait_for("nothing of it is left on the card", lambda: not tenant(rig).busy)
    goes_on(process)
    assert ended(process)[1] == ""


def test_contexts_come_and_go_more_often_than_there_are_places(tmp_path: Path) -> None:
    """A place is free again when a context ends: without a marker long work would not be
    believed in.
    """
    code = """
    d = Cuda(); made = []
    def work(s):
        for _ in range(3): d.launch(2000, s)
        d.call("cuStreamSynchronize", s)
    for n in range(100):
        ctx = c.c_void_p(); d.call("cuCtxCreate_v2", c.byref(ctx), 0, 0); d.load(); work(d.stream())
        made.append(ctx); d.call("cuCtxPopCurrent_v2", c.byref(c.c_void_p()))
        if n >= 20: d.call("cuCtxDestroy_v2", made.pop(0))
    while len(made) > 1: d.call("cuCtxDestroy_v2", made.pop(0))
    d.call("cuCtxSetCurrent", made[0]); s = d.stream(); d.load(); work(s); d.launch(1_500_000, s)
    print("long", flush=True); d.call("cuStreamSynchronize", s); print("worked", flush=True)
    sys.stdin.readline()
    """
    with Rig(tmp_path) as rig:
        rig.grant(OFFLINE, "offline", mem_mib=65_536)
        process = python(rig, code, stdin=subprocess.PIPE)
        assert line(process) == "long"
        began = time.monotonic()
        wait_for("a marker is awaited", lambda: time.monotonic() > began + 0.5)
        assert tenant(rig).busy
        assert line(process) == "worked"
        wait_for("it is known not to", lambda: not tenant(rig).busy)
        goes_on(process)
        assert ended(process)[1] == ""
