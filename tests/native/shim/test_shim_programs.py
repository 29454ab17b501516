"""Programs other than our workload under shim, arbiter and simulated card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from programs_support import ONLINE, busy_online, ended, line, python, tenant

from bench.harness.node import Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


# ---- the gate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_ends_a_program_at_the_closed_gate_at_once(rig: Rig, number: signal.Signals) -> None:
    with busy_online(rig):
        code = (
            "signal.signal(signal.SIGINT, signal.SIG_DFL); d = Cuda(); print('up', "
            "flush=True); d.launch(100)"
        )
        process = python(rig, code)
        assert line(process) == "up"
        wait_for("it waits", lambda: tenant(rig).busy)
        time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == -number, "at once: its gate is not opened for it"
        process.communicate()
        wait_for("nobody waits any more", lambda: not tenant(rig).busy, 1)


PATTERNS = {
    "polls_events": 'd.launch(100, s); d.call("cuEventRecord", e, s)\n'
    '    while d.raw("cuEventQuery", e) == 600: pass',
    "waits_for_events": 'd.launch(100, s); d.call("cuEventRecord", e, s); '
    'd.call("cuEventSynchronize", e)',
    "never_waits": "d.launch(100, s)",
    "graphs": 'd.call("cuGraphLaunch", x, s); d.call("cuStreamSynchronize", s)',
    "legacy_stream": "d.launch(100)",
    "fills": 'd.call("cuMemsetD8Async", m, 0, c.c_size_t(256 * MIB), s)',
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_kind_of_program_leaves_the_card_to_online(rig: Rig, pattern: str) -> None:
    log = rig.directory / "online.jsonl"
    args = (
        "--length",
        "20",
        "--iters",
        "100000",
        "--busy",
        "0.2",
        "--idle",
        "0.3",
        "--log",
        str(log),
    )
    online = rig.workload(rig.grants[ONLINE], *args)
    wait_for("online works", lambda: tenant(rig, ONLINE).launches > 20)
    code = f"""
d = Cuda(); s, e, m = d.stream(), d.event(), d.alloc(256 * MIB)
d.call("cuStreamBeginCapture_v2", s, 0); [d.launch(50, s) for _ in range(3)]
g, x = c.c_void_p(), c.c_void_p(); d.call("cuStreamEndCapture", s, c.byref(g))
d.call("cuGraphInstantiateWithFlags", c.byref(x), g, c.c_uint64(0)); end = time.time() + 1.6
while time.time() < end:
    {PATTERNS[pattern]}
"""
    process = python(rig, code)
    _, err = ended(process)
    time.sleep(0.15)
    online.kill()
    online.communicate()
    assert err == ""
    pieces = [i for i in rig.trace() if i.pid == process.pid]
    bursts = [b for b in map(json.loads, log.read_text().splitlines()) if "burst" in b]
    seen = [
        b for b in bursts if pieces[0].t_start < b["start_ns"] and b["end_ns"] < pieces[-1].t_end
    ]
    assert len(seen) >= 2, "the card was handed back and taken again"
    # How soon it stops is measured by the bench (preempt). A stall of this machine spoils a burst.
    late = [
        max(
            (min(i.t_end, b["end_ns"]) - b["start_ns"] for i in pieces if _overlap(i, b)), default=0
        )
        for b in seen
    ]
    assert min(late) < 100_000_000, "online works for 200 ms, and offline never stopped for it"


def _overlap(piece: object, burst: dict[str, int]) -> bool:
    t_start, t_end = piece.t_start, piece.t_end  # type: ignore[attr-defined]
    return bool(t_start < burst["end_ns"] and t_end > burst["start_ns"])


# ---- ends of all kinds ---------------------------------------------------------------------------

LOOPS = {
    "launches": "d.launch(100)",
    "synchronises": 'd.launch(50000); d.call("cuCtxSynchronize")',
    "allocates": 'd.call("cuMemFree_v2", d.alloc(MIB))',
    "waits_for_events": 'd.launch(50000, s); d.call("cuEventRecord", e, s); '
    'd.call("cuEventSynchronize", e)',
    "polls_events": 'd.launch(50000, s); d.call("cuEventRecord", e, s)\n'
    '    while (q := d.raw("cuEventQuery", e)) == 600: pass\n    assert q == 0, q',
    "polls_streams": "d.launch(50000, s)\n"
    '    while (q := d.raw("cuStreamQuery", s)) == 600: pass\n    assert q == 0, q',
}


def test_programs_end_when_the_card_is_gone(rig: Rig) -> None:
    head = "d = Cuda(); s, e = d.stream(), d.event(); print('up', flush=True)\nwhile True:\n    "
    running = {kind: python(rig, head + loop) for kind, loop in LOOPS.items()}
    assert [line(p) for p in running.values()] == ["up"] * len(LOOPS)
    time.sleep(0.2)
    rig.card_process.kill()
    for kind, process in running.items():
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "46" in err, kind


def test_without_an_arbiter_a_new_program_waits_and_gets_no_context(rig: Rig) -> None:
    rig.arbiter.kill()
    rig.arbiter.wait()
    code = """
    d, a = None, time.monotonic()
    while d is None:
        try:
            d = Cuda()
        except AssertionError as error:
            print(error, 9 < time.monotonic() - a < 40, flush=True)
            sys.stdin.readline()
    for _ in range(50): d.launch(1)
    d.call("cuCtxSynchronize"); print(d.try_alloc(MIB) > 0)
    """
    process = python(rig, code, stdin=subprocess.PIPE)
    assert line(process) == "cuDevicePrimaryCtxRetain returned 2 True"
    assert not any(piece.pid == process.pid for piece in rig.trace()), "nothing of it ran"
    rig.start_arbiter()
    wait_for("it is registered", lambda: tenant(rig).procs == 1)
    out, err = process.communicate("\n", timeout=60)
    # It may have to ask again: the arbiter knows of the registration before the process does.
    assert out.split()[-1] == "True"
    assert "no device memory: the arbiter of this node did not register process" in err
    assert "is not running" in err and err.count("\n") == 1


def test_after_a_fault_allocations_say_what_the_driver_says(rig: Rig) -> None:
    """And not that the cap is reached, or that the card is not the job's."""
    code = """
    d = Cuda(); keep = d.alloc(64 * MIB); p, pitch = c.c_uint64(), c.c_size_t()
    print("ready", flush=True); input()
    print(d.raw("cuMemAlloc_v2", c.byref(p), MIB), d.raw("cuMemAllocManaged", c.byref(p), MIB, 1),
          d.raw("cuMemAllocPitch_v2", c.byref(p), c.byref(pitch), 100, 100, 4),
          d.raw("cuMemAllocAsync", c.byref(p), MIB, 0), d.raw("cuCtxSynchronize"))
    """
    program = python(rig, code, stdin=subprocess.PIPE)
    assert line(program) == "ready"
    rig.fault(f"sticky pid={program.pid} code=700")
    out, err = program.communicate("\n", timeout=60)
    assert (out.split(), err, program.returncode) == (["700"] * 5, "", 0)
    assert tenant(rig).mem_denied == 0


def test_contexts_and_forks_leave_nothing_behind(rig: Rig) -> None:
    code = """
    import sim_client
    d = Cuda(); U = c.c_uint64; keep = d.alloc(64 * MIB); d.launch(500)
    for i in range(12):
        x, m, f = c.c_void_p(), c.c_void_p(), c.c_void_p()
        d.call("cuCtxCreate_v2", c.byref(x), 0, 0)
        d.call("cuModuleLoadData", c.byref(m), sim_client.PTX)
        d.call("cuModuleGetFunction", c.byref(f), m, b"qgpu_work"); d.work, work = f, d.work
        s = d.stream()
        d.alloc(1 << 30); [d.launch(20000, s) for _ in range(40)]
        [d.launch(9, c.c_void_p(2)) for _ in range(40)]
        d.call("cuCtxDestroy_v2", x); d.call("cuCtxSetCurrent", d.ctx); d.work = work
    print(d.free_memory() // MIB); d.launch(10); d.call("cuCtxSynchronize")
    for end in (lambda: os._exit(d.raw("cuCtxSynchronize")), lambda: sys.exit(d.raw("cuInit", 0))):
        if not (pid := os.fork()): end()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), d.free_memory() // MIB)
    d.launch(100000); d.call("cuDevicePrimaryCtxReset_v2", 0); print(d.raw("cuCtxSynchronize"))
    x = c.c_void_p(); d.call("cuDevicePrimaryCtxRetain", c.byref(x), 0)
    d.call("cuCtxSetCurrent", x)
    print(d.free_memory() // MIB)
    """
    out, err = ended(python(rig, code))
    assert out.split() == ["4032", "3", "4032", "3", "4032", "709", "4096"]
    assert err == ""
    wait_for(
        "nothing is left",
        lambda: not (tenant(rig).procs or tenant(rig).busy or tenant(rig).mem_used),
        1,
    )
