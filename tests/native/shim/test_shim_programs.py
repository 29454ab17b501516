"""Programs other than our workload under shim, arbiter and simulated card."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.node import BUILD, Rig, wait_for
from enforcer.wire.link import TenantStats

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")]
HEAD = (
    "import ctypes as c, os, sys, time, threading, subprocess, signal\n"
    "from sim_client import Cuda\nGIB, MIB, GO = 1 << 30, 1 << 20, {signal.SIGUSR1}\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, GO)\n"
)
ONLINE, OFFLINE = 1, 2
HELPERS = {"PYTHONPATH": str(Path(__file__).parents[2] / "support/simulator"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, cards=2) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=4096)
        yield running


def python(
    rig: Rig, code: str, job: int = OFFLINE, stdin: int = subprocess.DEVNULL, **env: str
) -> subprocess.Popen[str]:
    """Python code as a task of the job."""
    argv = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    return rig.spawn(argv, rig.grants[job], env=HELPERS | env, stdin=stdin)


def ended(process: subprocess.Popen[str], seconds: float = 20) -> tuple[str, str]:
    """What it printed, and its stderr; fails if it did not end well."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, (process.returncode, out, err)
    return out.strip(), err


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tenant(rig: Rig, job: int = OFFLINE) -> TenantStats:
    return next(t for t in rig.link.stats() if t.job_id == job)


@contextlib.contextmanager
def busy_online(rig: Rig) -> Iterator[None]:
    """An online tenant that works without pause: offline's gate is closed, also where the machine stalls it."""
    rig.settings["idle_release_ms"] = 60_000
    rig.sync()
    process = rig.workload(rig.grants[ONLINE], "--length", "600", "--iters", "100000")
    wait_for("online works", lambda: tenant(rig, ONLINE).launches > 20)
    yield
    assert process.poll() is None, "it worked all the while"
    process.kill()
    process.communicate()
    del rig.settings["idle_release_ms"]
    rig.sync()


# ---- memory of several processes ------------------------------------------------------------------


def test_two_processes_are_never_admitted_to_the_same_bytes() -> None:
    done = subprocess.run([BUILD / "test/shim-race", "1500"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout or "both processes held more than half of the cap at once"
    first, second = map(int, done.stdout.split())
    assert min(first, second) > 100


HOLDS = """
    d = Cuda()
    print(bool(d.try_alloc({} * MIB)), flush=True)
    sys.stdin.read()
"""


def test_cap_holds_while_a_sibling_has_not_moved_to_the_new_arbiter(rig: Rig) -> None:
    """Between the two registrations the job's memory is on two pages."""
    holder = python(rig, "d = Cuda(); p = d.alloc(3 * GIB); print('up', flush=True); time.sleep(60)")
    asks = "print(bool(d.try_alloc(2 * GIB)), bool(d.try_alloc(512 * MIB)), flush=True)\n"
    other = python(rig, "d = Cuda(); print('up', flush=True); signal.sigwait(GO)\n" + asks)
    assert (line(holder), line(other)) == ("up", "up")
    holder.send_signal(signal.SIGSTOP)
    rig.arbiter.kill()
    rig.arbiter.wait()
    rig.start_arbiter()
    wait_for("the other one registers again", lambda: tenant(rig).procs == 1)
    other.send_signal(signal.SIGUSR1)
    assert ended(other)[0] == "False True"
    holder.kill()
    holder.communicate()


def test_dead_sibling_of_the_old_arbiter_gives_its_memory_back(rig: Rig) -> None:
    holder = python(rig, "d = Cuda(); p = d.alloc(3 * GIB); print('up', flush=True); time.sleep(60)")
    asks = "signal.sigwait(GO); print(bool(d.try_alloc(4 * GIB)))"
    other = python(rig, "d = Cuda(); print('up', flush=True)\n" + asks)
    assert (line(holder), line(other)) == ("up", "up")
    rig.arbiter.kill()
    rig.arbiter.wait()
    holder.kill()
    holder.communicate()
    rig.start_arbiter()
    wait_for("the other one registers again", lambda: tenant(rig).procs == 1)
    other.send_signal(signal.SIGUSR1)
    assert ended(other)[0] == "True"


def test_ten_restarts_lose_no_tenant_and_no_byte(rig: Rig) -> None:
    churn = """
        d = Cuda(); keep = d.alloc(256 * MIB); n = 0; print("up", flush=True)
        while not signal.sigpending():
            p = d.try_alloc(MIB << (n % 10)); n += 1; d.launch(20)
            if p: d.call("cuMemFree_v2", c.c_uint64(p))
        d.call("cuCtxSynchronize"); print(n, flush=True); time.sleep(60)
    """
    processes = [python(rig, churn) for _ in range(3)]
    assert [line(p) for p in processes] == ["up"] * 3
    for _ in range(10):
        rig.arbiter.kill()
        rig.arbiter.wait()
        rig.start_arbiter()
        wait_for("all register again", lambda: tenant(rig).procs == 3)
    for process in processes:
        process.send_signal(signal.SIGUSR1)
    assert all(int(line(p)) > 20 for p in processes)
    assert tenant(rig).mem_used == 3 * 256 << 20
    processes[0].kill()
    wait_for("its memory is back", lambda: tenant(rig).mem_used == 2 * 256 << 20, 1)
    for process in processes:
        process.kill()
        assert process.communicate()[1] == ""


def test_children_without_the_descriptor_share_the_cap(rig: Rig, tmp_path: Path) -> None:
    """fork and exec with close_fds: known by their ancestor, as under a slurmstepd."""
    child = HEAD + textwrap.dedent(HOLDS.format(1536))
    code = f"""
    argv = [{sys.executable!r}, "-c", {child!r}]
    d = Cuda()
    run = lambda: subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children = [run() for _ in range(4)]
    got = [p.stdout.readline().strip() == "True" for p in children]
    print(sum(got), d.free_memory() // MIB, flush=True)
    children[got.index(True)].kill()
    print(bool(d.try_alloc(1536 * MIB)))
    for p in children: p.stdin.close(); p.wait()
    """
    script = tmp_path / "parent.py"
    script.write_text(HEAD + textwrap.dedent(code))
    shell = f"exec -a 'slurmstepd: [{OFFLINE}.0]' {sys.executable} {script}"
    out, err = ended(rig.spawn(["/bin/bash", "-c", shell], rig.grants[OFFLINE], env=HELPERS))
    assert out.split() == ["2", "1024", "True"]
    assert "refused: job 2 holds" in err


# ---- the gate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_ends_a_program_at_the_closed_gate_at_once(rig: Rig, number: signal.Signals) -> None:
    with busy_online(rig):
        code = (
            "signal.signal(signal.SIGINT, signal.SIG_DFL); d = Cuda(); print('up', flush=True); d.launch(100)"
        )
        process = python(rig, code)
        assert line(process) == "up"
        wait_for("it waits", lambda: tenant(rig).busy)
        time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == -number, "at once: its gate is not opened for it"
        process.communicate()
        wait_for("nobody waits any more", lambda: not tenant(rig).busy, 1)


PATTERNS = {
    "polls_events": 'd.launch(100, s); d.call("cuEventRecord", e, s)\n'
    '    while d.raw("cuEventQuery", e) == 600: pass',
    "waits_for_events": 'd.launch(100, s); d.call("cuEventRecord", e, s); d.call("cuEventSynchronize", e)',
    "never_waits": "d.launch(100, s)",
    "graphs": 'd.call("cuGraphLaunch", x, s); d.call("cuStreamSynchronize", s)',
    "legacy_stream": "d.launch(100)",
    "fills": 'd.call("cuMemsetD8Async", m, 0, c.c_size_t(256 * MIB), s)',
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_kind_of_program_leaves_the_card_to_online(rig: Rig, pattern: str) -> None:
    log = rig.directory / "online.jsonl"
    args = ("--length", "20", "--iters", "100000", "--busy", "0.2", "--idle", "0.3", "--log", str(log))
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
    seen = [b for b in bursts if pieces[0].t_start < b["start_ns"] and b["end_ns"] < pieces[-1].t_end]
    assert len(seen) >= 2, "the card was handed back and taken again"
    late = max(
        (min(i.t_end, b["end_ns"]) - b["start_ns"] for b in seen for i in pieces if _overlap(i, b)), default=0
    )
    assert late < 100_000_000, "online works for 200 ms; how soon it stops is measured by the bench (preempt)"


def _overlap(piece: object, burst: dict[str, int]) -> bool:
    t_start, t_end = piece.t_start, piece.t_end  # type: ignore[attr-defined]
    return bool(t_start < burst["end_ns"] and t_end > burst["start_ns"])


# ---- memory calls of all kinds --------------------------------------------------------------------

VMM = """
class Prop(c.Structure):
    _fields_ = [(n, c.c_int) for n in ("type", "handles", "where", "id")] + [("x", c.c_char * 32)]
prop, d, U = Prop(1, 0, 1, 0), Cuda(), c.c_uint64
def create(size):
    h = U()
    return d.raw("cuMemCreate", c.byref(h), c.c_size_t(size), c.byref(prop), U(0)), h
free = lambda: d.free_memory() // MIB
"""


def test_virtual_memory_counts_until_the_last_mapping_is_gone(rig: Rig) -> None:
    code = (
        VMM
        + """
g = c.c_size_t(); d.call("cuMemGetAllocationGranularity", c.byref(g), c.byref(prop), 0)
print(g.value, create(g.value + 1)[0], create(8 * GIB)[0])
(s, h), base = create(GIB), U()
d.call("cuMemAddressReserve", c.byref(base), c.c_size_t(4 * GIB), c.c_size_t(0), U(0), U(0))
print(d.raw("cuMemMap", U(base.value + 1), c.c_size_t(GIB), c.c_size_t(0), h, U(0)))
for at in (0, 1): d.call("cuMemMap", U(base.value + at * GIB), c.c_size_t(GIB), c.c_size_t(0), h, U(0))
print(d.raw("cuMemMap", base, c.c_size_t(GIB), c.c_size_t(0), h, U(0)), d.raw("cuMemFree_v2", base))
access = (c.c_int * 3)(1, 0, 3); d.call("cuMemSetAccess", base, c.c_size_t(2 * GIB), access, c.c_size_t(1))
d.call("cuMemsetD8_v2", U(base.value + 5), 7, c.c_size_t(1)); b = c.create_string_buffer(1)
d.call("cuMemcpyDtoH_v2", b, U(base.value + GIB + 5), c.c_size_t(1)); again = U()
d.call("cuMemRetainAllocationHandle", c.byref(again), base); print(b.raw[0], again.value == h.value, free())
d.call("cuMemRelease", h); d.call("cuMemRelease", h); print(d.raw("cuMemRelease", h), free())
print(d.raw("cuMemAddressFree", base, c.c_size_t(4 * GIB)), d.raw("cuMemUnmap", base, c.c_size_t(MIB)))
d.call("cuMemUnmap", base, c.c_size_t(GIB)); print(free())
d.call("cuMemUnmap", U(base.value + GIB), c.c_size_t(GIB)); print(free(), bool(d.try_alloc(4 * GIB)))
d.call("cuMemAddressFree", base, c.c_size_t(4 * GIB))
"""
    )
    out, err = ended(python(rig, code))
    assert out.splitlines() == [
        "2097152 1 2",
        "1",
        "1 1",
        "7 True 3072",
        "1 3072",
        "1 1",
        "3072",
        "4096 True",
    ]
    assert "allocation of 8.0 GiB refused" in err


def test_reported_memory_can_be_allocated(rig: Rig) -> None:
    """cuMemGetInfo, cuDeviceTotalMem and the allocations of every kind agree to the byte."""
    code = """
    d = Cuda(); t = c.c_size_t(); d.call("cuDeviceTotalMem_v2", c.byref(t), 0)
    U, p, s = c.c_uint64, c.c_uint64(), d.stream(); rows = c.c_size_t(MIB)
    print(t.value == d.free_memory() == 4 * GIB); held = []
    for call in (lambda: d.raw("cuMemAllocManaged", c.byref(p), c.c_size_t(GIB), 1),
                 lambda: d.raw("cuMemAllocAsync", c.byref(p), c.c_size_t(GIB), s),
                 lambda: d.raw("cuMemAllocPitch_v2", c.byref(p), c.byref(t), c.c_size_t(1000), rows, 4)):
        assert call() == 0; held.append(p.value)
    left = d.free_memory(); print(left // MIB, d.try_alloc(left + 1), d.try_alloc(left) > 0)
    print(d.free_memory())
    d.call("cuMemFreeAsync", U(held[1]), s); d.call("cuStreamSynchronize", s); print(d.free_memory() == GIB)
    for n in range(20000): d.call("cuMemFree_v2", U(d.try_alloc(1 + n % 4096)))
    print(d.free_memory() == GIB)
    """
    out, _ = ended(python(rig, code))
    assert out.splitlines() == ["True", "1024 0 True", "0", "True", "True"]


# ---- ends of all kinds ----------------------------------------------------------------------------

LOOPS = {
    "launches": "d.launch(100)",
    "synchronises": 'd.launch(50000); d.call("cuCtxSynchronize")',
    "allocates": 'd.call("cuMemFree_v2", d.alloc(MIB))',
    "waits_for_events": 'd.launch(50000, s); d.call("cuEventRecord", e, s); d.call("cuEventSynchronize", e)',
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


def test_without_an_arbiter_a_new_program_waits_and_memory_stays_shut(rig: Rig) -> None:
    rig.arbiter.kill()
    rig.arbiter.wait()
    code = """
    d = Cuda(); a = time.monotonic(); print(bool(d.try_alloc(4 * GIB)), bool(d.try_alloc(1)), flush=True)
    print(9 < time.monotonic() - a < 40, flush=True)
    for _ in range(50): d.launch(1)
    d.call("cuCtxSynchronize"); print(d.try_alloc(MIB) > 0)
    """
    process = python(rig, code)
    assert [line(process), line(process)] == ["False False", "True"]
    time.sleep(3)
    assert not any(piece.pid == process.pid for piece in rig.trace()), "nothing of it ran"
    rig.start_arbiter()
    out, err = process.communicate(timeout=20)
    assert out.split() == ["True"]
    first, second = sorted(err.splitlines())
    assert "no device memory: the arbiter of this node did not register process" in first
    assert "is not running" in first and "this process waits for its turn on the card" in second


def test_after_a_fault_allocations_say_what_the_driver_says(rig: Rig) -> None:
    """And not that the cap is reached, or that the card is not the job's."""
    code = """
    d = Cuda(); keep = d.alloc(64 * MIB); p, pitch = c.c_uint64(), c.c_size_t(); print("ready", flush=True); input()
    print(d.raw("cuMemAlloc_v2", c.byref(p), MIB), d.raw("cuMemAllocManaged", c.byref(p), MIB, 1),
          d.raw("cuMemAllocPitch_v2", c.byref(p), c.byref(pitch), 100, 100, 4),
          d.raw("cuMemAllocAsync", c.byref(p), MIB, 0), d.raw("cuCtxSynchronize"))
    """
    program = python(rig, code, stdin=subprocess.PIPE)
    assert line(program) == "ready"
    rig.fault(f"sticky pid={program.pid} code=700")
    out, err = program.communicate("\n", timeout=20)
    assert (out.split(), err, program.returncode) == (["700"] * 5, "", 0)
    assert tenant(rig).mem_denied == 0


def test_contexts_and_forks_leave_nothing_behind(rig: Rig) -> None:
    code = """
    import sim_client
    d = Cuda(); U = c.c_uint64; keep = d.alloc(64 * MIB); d.launch(500)
    for i in range(12):
        x, m, f = c.c_void_p(), c.c_void_p(), c.c_void_p(); d.call("cuCtxCreate_v2", c.byref(x), 0, 0)
        d.call("cuModuleLoadData", c.byref(m), sim_client.PTX)
        d.call("cuModuleGetFunction", c.byref(f), m, b"qgpu_work"); d.work, work = f, d.work; s = d.stream()
        d.alloc(1 << 30); [d.launch(20000, s) for _ in range(40)]
        [d.launch(9, c.c_void_p(2)) for _ in range(40)]
        d.call("cuCtxDestroy_v2", x); d.call("cuCtxSetCurrent", d.ctx); d.work = work
    print(d.free_memory() // MIB); d.launch(10); d.call("cuCtxSynchronize")
    for end in (lambda: os._exit(d.raw("cuCtxSynchronize")), lambda: sys.exit(d.raw("cuInit", 0))):
        if not (pid := os.fork()): end()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), d.free_memory() // MIB)
    d.launch(100000); d.call("cuDevicePrimaryCtxReset_v2", 0); print(d.raw("cuCtxSynchronize"))
    x = c.c_void_p(); d.call("cuDevicePrimaryCtxRetain", c.byref(x), 0); d.call("cuCtxSetCurrent", x)
    print(d.free_memory() // MIB)
    """
    out, err = ended(python(rig, code))
    assert out.split() == ["4032", "3", "4032", "3", "4032", "709", "4096"]
    assert err == ""
    wait_for(
        "nothing is left", lambda: not (tenant(rig).procs or tenant(rig).busy or tenant(rig).mem_used), 1
    )
