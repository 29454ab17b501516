"""The simulated driver from a program's side: times, sharing, memory, death."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest
from sim_tools import BUILD, MIB, run, spawn, until

from simulator.sim import Kind, Simulator, busy_ns

pytestmark = pytest.mark.native


def test_times_come_from_the_model(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(); s = g.stream(); a, b = g.event(), g.event()
        g.launch(100_000, s); g.call("cuEventRecord", a, s)  # all is queued before it ends
        for _ in range(10): g.launch(300, s)
        g.call("cuEventRecord", b, s); g.call("cuEventSynchronize", b)
        print(g.elapsed_ms(a, b))
        """,
    )
    assert float(out) == pytest.approx(3.0, abs=1e-4)
    assert [p.duration for p in sim.intervals() if p.kind == Kind.KERNEL] in (
        [],
        [100_000_000] + [300_000] * 10,
    )
    sim.stop()
    assert [p.duration for p in sim.intervals()] == [100_000_000] + [300_000] * 10


def test_trace_survives_the_end_and_everything_else_goes(sim: Simulator) -> None:
    run(sim, "g = Cuda(); g.launch(50); g.call('cuCtxSynchronize')")
    sim.stop()
    assert sorted(path.name for path in sim.config.directory.iterdir()) == ["trace.bin"]
    assert sim.trace_path.stat().st_mode & 0o777 == 0o600
    (piece,) = sim.intervals()
    assert (piece.duration, piece.last, piece.cut, piece.work) == (50_000, True, False, 50_000)
    assert piece.t_submit <= piece.t_start


def test_two_processes_share_in_slices(sim: Simulator) -> None:
    code = """
        g = Cuda(); s = g.stream(); g.launch(10, s); g.call("cuStreamSynchronize", s)
        print("up", flush=True); sys.stdin.readline()
        for _ in range(40): g.launch(10000, s)
        g.call("cuStreamSynchronize", s)
        """
    both = [spawn(sim, code) for _ in range(2)]
    for process in both:
        assert process.stdout and process.stdout.readline() == "up\n"
    for process in both:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        assert process.wait(30) == 0
    sim.stop()
    long = [p for p in sim.intervals() if p.work == 10_000_000]
    start_ns = max(min(p.t_start for p in long if p.pid == x.pid) for x in both)
    end_ns = min(max(p.t_end for p in long if p.pid == x.pid) for x in both)
    busy = busy_ns(long, start_ns, end_ns)
    assert end_ns - start_ns > 500_000_000
    shares = [busy[x.pid] / sum(busy.values()) for x in both]
    assert shares == pytest.approx([0.5, 0.5], abs=0.005)
    inside = [p for p in long if p.t_start >= start_ns and p.t_end <= end_ns]
    assert max(p.duration for p in inside) == 1_000_000  # the slice, while both have work
    assert all(a.t_end <= b.t_start for a, b in pairwise(long))


def test_full_queue_blocks_and_loses_nothing(sim: Simulator) -> None:
    run(sim, "g = Cuda()\nfor _ in range(6000): g.launch(20)\ng.call('cuCtxSynchronize')")
    sim.stop()
    pieces = sim.intervals()
    assert sum(p.last for p in pieces) == 6000
    assert sum(p.duration for p in pieces) == 6000 * 20_000
    waits = [b.t_start - a.t_end for a, b in pairwise(pieces[100:])]
    # dry only where the host stopped the program for 20 ms
    assert sum(wait > 0 for wait in waits) < 60


def test_kill_frees_memory_and_cuts_the_kernel(sim: Simulator) -> None:
    watcher = spawn(
        sim,
        """
        g = Cuda(); before = g.free_memory(); print(before, flush=True)
        sys.stdin.readline(); print(g.free_memory(), flush=True)
        low = time.monotonic_ns()
        sys.stdin.readline()
        limit = time.monotonic() + 5
        while g.free_memory() != before and time.monotonic() < limit: pass
        print(time.monotonic_ns(), flush=True)
        """,
    )
    assert watcher.stdin and watcher.stdout
    before = int(watcher.stdout.readline())
    victim = spawn(
        sim,
        """
        g = Cuda(); g.alloc(1 << 30); g.launch(5_000_000)
        import sim_rm
        child = os.fork()  # it keeps the socket open, and the file that would keep the memory not
        if not child:
            [os.close(f) for f in sim_rm.files()]
            print(os.getpid(), flush=True); time.sleep(60)
        g.call("cuCtxSynchronize")
        """,
    )
    assert victim.stdout
    child = int(victim.stdout.readline())
    try:
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        assert before - int(watcher.stdout.readline()) == 1024 * MIB + 300 * MIB
        watcher.stdin.write("\n")
        watcher.stdin.flush()
        killed = time.monotonic_ns()
        victim.kill()
        freed = int(watcher.stdout.readline())
        assert freed - killed < 2_000_000_000  # its kernel would have taken 5 s
        watcher.wait(60)
        sim.stop()
        (piece,) = [p for p in sim.intervals() if p.pid == victim.pid][-1:]
        assert piece.cut and killed <= piece.t_end < killed + 50_000_000
    finally:
        os.kill(child, signal.SIGKILL)
        victim.communicate()
        watcher.communicate()


def test_write_value_reaches_a_stopped_process(sim: Simulator, tmp_path: Path) -> None:
    shared = tmp_path / "word"
    shared.write_bytes(bytes(4096))
    process = spawn(
        sim,
        f"""
        import mmap, signal
        f = open({str(shared)!r}, "r+b"); m = mmap.mmap(f.fileno(), 4096)
        at = c.addressof(c.c_char.from_buffer(m))
        g = Cuda(); s = g.stream()
        g.call("cuMemHostRegister_v2", c.c_void_p(at), c.c_size_t(4096), 2)
        g.launch(100_000, s)
        g.call("cuStreamWriteValue32_v2", s, c.c_uint64(at + 8), 77, 0)
        print(time.monotonic_ns(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
    )
    assert process.stdout
    launched = int(process.stdout.readline())
    with shared.open("rb") as file, mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ) as view:
        assert until(
            lambda: (
                Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
            ),
            1,
        )
        assert view[8] == 0 or time.monotonic_ns() - launched > 90_000_000
        assert until(lambda: view[8] == 77, 5)
        assert time.monotonic_ns() - launched > 80_000_000
    process.kill()
    process.communicate()


def test_copies_fills_and_limits(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(); data = os.urandom(200_000); back = c.create_string_buffer(len(data))
        p = g.alloc(2 << 30); n = c.c_size_t(len(data))
        g.call("cuMemsetD8_v2", p, 0x5a, c.c_size_t(2 << 30))
        far = c.c_uint64(p.value + (1 << 30) + 12345)
        g.call("cuMemcpyHtoD_v2", far, data, n); g.call("cuMemcpyDtoH_v2", back, far, n)
        assert back.raw == data
        g.call("cuMemcpyDtoH_v2", back, c.c_uint64(far.value + len(data)), c.c_size_t(9000))
        assert back.raw[:9000] == b"\\x5a" * 9000
        odd = g.alloc(70_003); g.call("cuMemsetD8_v2", odd, 0x5b, c.c_size_t(70_003))
        g.call("cuMemcpyDtoH_v2", back, odd, c.c_size_t(70_003))
        assert back.raw[:70_003] == b"\\x5b" * 70_003
        rss = int(open("/proc/self/statm").read().split()[1]) * 4096
        assert rss < 300 << 20, rss
        assert g.raw("cuMemcpyDtoH_v2", back, c.c_uint64(p.value + (2 << 30) - 10), n) == 1
        q = c.c_uint64(); print(g.raw("cuMemAlloc_v2", c.byref(q), c.c_size_t(2 << 30)))
        print(g.raw("cuMemAlloc_v2", c.byref(q), c.c_size_t(0)))
        print(g.raw("cuMemFree_v2", c.c_uint64(12345)))
        free = g.free_memory(); g.call("cuMemFree_v2", p); assert g.free_memory() - free == 2 << 30
        """,
    )
    assert out.split() == ["2", "1", "1"]


def test_invalid_handles_are_errors(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(); s = g.stream(); g.call("cuStreamDestroy_v2", s)
        bad = c.c_void_p(0x123456789a)
        one = (1, 1, 1, 1, 1, 1, 0, None, None, None)
        print(g.raw("cuStreamSynchronize", s), g.raw("cuStreamSynchronize", bad),
              g.raw("cuEventRecord", bad, None), g.raw("cuCtxSetCurrent", bad),
              g.raw("cuLaunchKernel", bad, *one),
              g.raw("cuModuleGetFunction", c.byref(c.c_void_p()), g.module, b"nothing"),
              g.raw("cuLaunchKernel", g.work, 0, 1, 1, 1, 1, 1, 0, None, None, None))
        """,
    )
    assert out.split() == ["400", "400", "400", "201", "400", "500", "1"]


def test_fork_makes_it_unusable_in_the_child(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda()
        if os.fork() == 0:
            print(g.raw("cuCtxSynchronize"), g.raw("cuInit", 0), flush=True); os._exit(0)
        os.wait(); g.launch(10); g.call("cuCtxSynchronize")
        """,
    )
    assert out.split() == ["3", "3"]


def test_streams_events_host_functions_and_words(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(); s, t = g.stream(), g.stream(); e = g.event(); seen = []
        fn = c.CFUNCTYPE(None, c.c_void_p)(lambda p: (time.sleep(0.02), seen.append(p)))
        a, b = g.event(), g.event()
        g.launch(100_000, s)  # what follows is queued before it ends, whatever the machine does
        g.call("cuEventRecord", a, s); g.launch(5000, s); g.call("cuEventRecord", e, s)
        assert g.raw("cuEventQuery", e) == 600 and g.raw("cuStreamQuery", s) == 600
        g.call("cuStreamWaitEvent", t, e, 0); g.call("cuEventRecord", b, t)
        g.call("cuEventSynchronize", b)
        print(5 <= g.elapsed_ms(a, b) < 5.001)
        g.call("cuLaunchHostFunc", s, fn, c.c_void_p(1))
        g.call("cuLaunchHostFunc", s, fn, c.c_void_p(2))
        g.call("cuStreamSynchronize", s); print(seen == [1, 2], g.raw("cuStreamQuery", s) == 0)
        word = (c.c_uint32 * 1024)(); at = c.addressof(word)
        g.call("cuMemHostRegister_v2", c.c_void_p(at), c.c_size_t(4096), 0)
        g.call("cuStreamWaitValue32_v2", s, c.c_uint64(at), 5, 1); g.launch(10, s)
        time.sleep(0.01); before = g.raw("cuStreamQuery", s); word[0] = 5
        g.call("cuStreamSynchronize", s); print(before == 600)
        """,
    )
    assert out.split() == ["True"] * 4


def test_capture_and_graph(sim: Simulator) -> None:
    run(
        sim,
        """
        g = Cuda(); s = g.stream(); graph, ex = c.c_void_p(), c.c_void_p(); state = c.c_int()
        g.call("cuStreamBeginCapture_v2", s, 0)
        for _ in range(3): g.launch(100, s)
        g.call("cuStreamIsCapturing", s, c.byref(state)); assert state.value == 1
        assert g.raw("cuStreamSynchronize", s) == 900
        g.call("cuStreamEndCapture", s, c.byref(graph))
        g.call("cuGraphInstantiateWithFlags", c.byref(ex), graph, c.c_uint64(0))
        g.call("cuGraphLaunch", ex, s); g.call("cuGraphLaunch", ex, s)
        g.call("cuStreamSynchronize", s)
        """,
    )
    sim.stop()
    assert [p.duration for p in sim.intervals()] == [100_000] * 6


def test_get_proc_address_by_version_and_flags(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(init=False); f = c.c_void_p(); q = c.c_int()
        def ask(name, version, flags=0):
            to, flags, why = c.byref(f), c.c_uint64(flags), c.byref(q)
            status = g.raw("cuGetProcAddress_v2", name, to, version, flags, why)
            return status, q.value, f.value
        def at(symbol): return c.cast(getattr(g.lib, symbol), c.c_void_p).value
        assert ask(b"cuMemAlloc", 12000)[2] == at("cuMemAlloc_v2")
        assert ask(b"cuLaunchKernel", 4000)[2] == at("cuLaunchKernel")
        assert ask(b"cuLaunchKernel", 7000, 2)[2] == at("cuLaunchKernel_ptsz")
        assert ask(b"cuGetProcAddress", 11030)[2] == at("cuGetProcAddress")
        assert ask(b"cuGetProcAddress", 12000)[2] == at("cuGetProcAddress_v2")
        assert ask(b"cuCtxCreate", 11040)[2] == at("cuCtxCreate_v3")
        assert ask(b"cuStreamWriteValue32", 12000)[2] == at("cuStreamWriteValue32_v2")
        print(*ask(b"", 0)[:2], *ask(b"cuLaunchKernelEx", 4000)[:2], *ask(b"cuNoSuch", 13000)[:2])
        """,
    )
    assert out.split() == ["0", "1", "0", "2", "0", "1"]


def test_the_shim_name_does_not_capture_the_library(sim: Simulator) -> None:
    """The library calls itself even when another library with the same symbols is in front of
    it.
    """
    relocations = subprocess.run(
        ["readelf", "-rW", str(BUILD / "sim/libcuda.so.1")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not [line for line in relocations.splitlines() if " cu" in line and "@" not in line]
    dynamic = subprocess.run(
        ["readelf", "-dW", str(BUILD / "sim/libcuda.so.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[libcuda.so.1]" in dynamic.stdout and "SYMBOLIC" in dynamic.stdout
