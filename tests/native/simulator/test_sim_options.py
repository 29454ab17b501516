"""Options of the simulated card, seen from programs: what the model does is test_sim_model.py's
matter.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sim_tools import BUILD, make, nvml, run, spawn, start

from bench.harness.node import wait_for
from simulator.sim import Kind, Simulator, read_trace

pytestmark = pytest.mark.native


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Simulator]]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    running: list[Simulator] = []

    def with_options(**options: object) -> Simulator:
        options = {"memory_mib": 4096, "minor_base": os.getpid() % 1000 * 16, **options}
        running.append(start(tmp_path / "sim", **options))
        return running[0]

    yield with_options
    running[0].stop()


def test_a_full_queue_blocks_the_launch(begin: Callable[..., Simulator]) -> None:
    """With 8 in flight the ninth launch of a 50 ms kernel returns only when one of them has
    ended.
    """
    sim = begin(queue_depth=8)
    out = run(
        sim,
        """
        g = Cuda(); s = g.stream(); took = []
        for _ in range(10):
            t = time.monotonic(); g.launch(50_000, s); took.append(time.monotonic() - t)
        g.call("cuStreamSynchronize", s); print(sum(took[:8]) < 0.05, took[8] >= 0.045)
        """,
    )
    assert out.split() == ["True", "True"]
    sim.stop()
    pieces = [x for x in sim.intervals() if x.kind == Kind.KERNEL]
    assert sum(x.last for x in pieces) == 10 and all(
        a.t_end <= b.t_start for a, b in pairwise(pieces)
    )


def test_kernels_that_run_to_their_end(begin: Callable[..., Simulator]) -> None:
    sim = begin(run_to_end=True, slice_us=500)
    code = """
        g = Cuda(); print("up", flush=True); sys.stdin.readline()
        for _ in range(20): g.launch(5000)
        g.call("cuCtxSynchronize")
        """
    both = [spawn(sim, code) for _ in range(2)]
    for process in both:
        assert process.stdout and process.stdout.readline() == "up\n"
    for process in both:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(30) for process in both] == [0, 0]
    sim.stop()
    long = [x for x in sim.intervals() if x.work == 5_000_000]
    assert {x.duration for x in long} == {5_000_000} and len({x.pid for x in long}) == 2


def test_cards_stand_still_again_and_again(begin: Callable[..., Simulator]) -> None:
    sim = begin(extra=("--stall-ms", "30", "--stall-each-ms", "200"))
    run(sim, "g = Cuda(); g.launch(900_000); g.call('cuCtxSynchronize')")
    sim.stop()
    pieces = sim.intervals()
    assert sum(x.duration for x in pieces) == 900_000_000
    gaps = [b.t_start - a.t_end for a, b in pairwise(pieces)]
    assert 2 <= len(gaps) <= 5 and set(gaps) == {30_000_000}


def test_kernels_cost_what_the_rules_say(begin: Callable[..., Simulator], tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text(
        "# comment\nqgpu_work 1ms\nmatmul_* 40us+2us/block+3ns/thread  # per thread\noth* 70us\n\n"
    )
    sim = begin(extra=("--kernel-cost", str(rules), "--unknown-us", "90"))
    run(
        sim,
        """
        g = Cuda(); m, f = c.c_void_p(), c.c_void_p()
        ptx = (b".version 6.3\\n.target sm_75\\n.entry matmul_a()\\n{ }\\n"
               b".entry other()\\n{ }\\n.entry more()\\n{ }\\n")
        g.call("cuModuleLoadData", c.byref(m), ptx)
        for name in (b"matmul_a", b"other", b"more"):
            g.call("cuModuleGetFunction", c.byref(f), m, name)
            g.call("cuLaunchKernel", f, 5, 2, 1, 32, 1, 1, 0, None, None, None)
        g.launch(10); g.call("cuCtxSynchronize")
        """,
    )
    sim.stop()
    pieces = sim.intervals()
    assert [x.duration for x in pieces] == [40_000 + 10 * 2000 + 320 * 3, 70_000, 90_000, 10_000]
    # our own kernel's argument decides, no rule
    assert [x.work for x in pieces] == [0, 0, 0, 10_000]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x 5",
        "x us",
        "x 5us/warp",
        "x 5us 6us",
        "x 5us stop=",
        "x 5us stop=1",
        "x 5us stop=1us 2",
        "x 5us stop=0us",
        "x 5us+",
        "x -1us",
        "y" * 70 + " 1us",
    ],
)
def test_rules_that_mean_nothing_are_refused(tmp_path: Path, text: str) -> None:
    make("build/bin/qgpu-simgpu")
    (tmp_path / "rules").write_text(text + "\n")
    command = [str(BUILD / "bin/qgpu-simgpu"), "--dir", str(tmp_path / "s"), "--node", "n"]
    done = subprocess.run(
        [*command, "--kernel-cost", str(tmp_path / "rules")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2 and "PATTERN DURATION" in done.stderr


def test_utilization_of_processes(begin: Callable[..., Simulator]) -> None:
    sim = begin(cards=2)
    process = spawn(
        sim,
        """
        g = Cuda(1)
        for _ in range(120): g.launch(10_000)
        g.call("cuCtxSynchronize")
        for _ in range(900): g.launch(10_000)  # still runs when NVML is asked
        print("busy", flush=True); sys.stdin.readline()
        """,
    )
    assert process.stdout and process.stdout.readline() == "busy\n"
    out = nvml(
        sim,
        """
        h = n.nvmlDeviceGetHandleByIndex(1)
        info = n.c_nvmlProcessesUtilizationInfo_v1_t(); info.version = n.sizeof(info) | 1 << 24
        rows = (n.c_nvmlProcessUtilizationInfo_v1_t * 8)(); info.processSamplesCount = 8
        info.procUtilArray = rows; n._nvmlCheckReturn(n._nvmlGetFunctionPointer(
            "nvmlDeviceGetProcessesUtilizationInfo")(h, n.byref(info)))
        print(info.processSamplesCount, rows[0].pid, rows[0].smUtil,
              n.nvmlDeviceGetUtilizationRates(h).gpu)
        print(n.nvmlDeviceGetUtilizationRates(n.nvmlDeviceGetHandleByIndex(0)).gpu)
        """,
    )
    count, pid, mine, busy, other = (int(word) for word in out.split())
    assert (
        (count, pid, other) == (1, process.pid, 0) and 50 < busy <= 100 and abs(mine - busy) <= 15
    )
    process.communicate("\n", timeout=60)


def test_words_of_64_bits_batches_rows_and_peers(begin: Callable[..., Simulator]) -> None:
    out = run(
        begin(cards=2),
        """
        g = Cuda(); s = g.stream(); words = (c.c_uint64 * 512)(); at = c.addressof(words)
        g.call("cuMemHostRegister_v2", c.c_void_p(at), c.c_size_t(4096), 0)
        g.call("cuStreamWriteValue64_v2", s, c.c_uint64(at), c.c_uint64(0x1122334455667788), 0)
        g.call("cuStreamWaitValue64_v2", s, c.c_uint64(at + 8), c.c_uint64(1 << 40), 0)
        g.launch(10, s)
        print(g.raw("cuStreamQuery", s)); words[1] = 1 << 41; g.call("cuStreamSynchronize", s)
        print(hex(words[0]))
        ops = (c.c_uint64 * 12)(2, at + 16, 7, 0, 0, 0, 5, at + 24, 1 << 50, 0, 0, 0)
        g.call("cuStreamBatchMemOp_v2", s, 2, ops, 0); g.call("cuStreamSynchronize", s)
        print(words[2], words[3] == 1 << 50)
        p = g.alloc(1 << 20); back = (c.c_uint32 * 16)()
        g.call("cuMemsetD2D32_v2", p, c.c_size_t(64), 9, c.c_size_t(4), c.c_size_t(3))
        g.call("cuMemcpyDtoH_v2", back, p, c.c_size_t(64)); print(list(back)[:6])
        other = c.c_void_p(); g.call("cuDevicePrimaryCtxRetain", c.byref(other), 1)
        g.call("cuCtxPushCurrent_v2", other); q = g.alloc(1 << 20)
        g.call("cuCtxPopCurrent_v2", None)
        g.call("cuMemcpyPeer", q, other, p, g.ctx, c.c_size_t(1 << 20))
        g.call("cuMemcpyDtoH_v2", back, q, c.c_size_t(64)); print(back[0])
        print(g.raw("cuMemPrefetchAsync", p, c.c_size_t(4096), 0, s),
              g.raw("cuMemAdvise", p, c.c_size_t(1), 1, 0))
        """,
    )
    expected = "600 0x1122334455667788 7 True [9, 9, 9, 9, 0, 0] 9 1 1"
    assert out.split() == expected.split()


def test_rows_are_copied_with_their_pitch(begin: Callable[..., Simulator]) -> None:
    run(
        begin(),
        """
        class Copy(c.Structure):
            _fields_ = [("sx", c.c_size_t), ("sy", c.c_size_t), ("st", c.c_int),
                        ("sh", c.c_void_p), ("sd", c.c_uint64), ("sa", c.c_void_p),
                        ("sp", c.c_size_t), ("dx", c.c_size_t), ("dy", c.c_size_t),
                        ("dt", c.c_int), ("dh", c.c_void_p), ("dd", c.c_uint64),
                        ("da", c.c_void_p), ("dp", c.c_size_t), ("w", c.c_size_t),
                        ("h", c.c_size_t)]
        g = Cuda(); p = g.alloc(1 << 20); data = bytes(range(200))
        host = c.create_string_buffer(data, 200)
        up = Copy(sx=2, sy=1, st=1, sh=c.addressof(host), sp=20,
                  dt=2, dd=p.value, dp=512, w=10, h=5)
        g.call("cuMemcpy2D_v2", c.byref(up)); back = c.create_string_buffer(10)
        for row in range(5):
            g.call("cuMemcpyDtoH_v2", back, c.c_uint64(p.value + 512 * row), c.c_size_t(10))
            assert back.raw == data[20 * (row + 1) + 2 : 20 * (row + 1) + 12]
        up.sp = 5; assert g.raw("cuMemcpy2D_v2", c.byref(up)) == 1
        """,
    )


def test_thousands_of_streams(begin: Callable[..., Simulator]) -> None:
    out = run(
        begin(),
        """
        g = Cuda(); streams = [g.stream() for _ in range(4078)]
        print(g.raw("cuStreamCreate", c.byref(c.c_void_p()), 0))
        for s in streams[:1500]: g.launch(1, s)
        g.call("cuCtxSynchronize")
        for s in streams: g.call("cuStreamDestroy_v2", s)
        g.call("cuStreamSynchronize", g.stream())
        """,
    )
    assert out.split() == ["2"]


def sleeps(sim: Simulator) -> int:
    """How often the device side's thread has slept so far."""
    status = Path(f"/proc/{sim.process.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_a_device_side_that_polls_sleeps_only_after_the_work(
    begin: Callable[..., Simulator],
) -> None:
    """100 kernels that are waited for: without --poll-us each of them wakes it."""
    rounds = 100
    sim = begin(extra=("--poll-us", "500000"))
    process = spawn(
        sim,
        f"""
        g = Cuda(); s = g.stream(); print("ready", flush=True)
        for line in sys.stdin:
            for _ in range({rounds}):
                g.launch(20, s); g.call("cuStreamSynchronize", s)
            print("done", flush=True)
        """,
    )
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "ready\n"
    before = sleeps(sim)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    assert sleeps(sim) - before < rounds / 2
    polled = sleeps(sim)
    wait_for("it sleeps again", lambda: sleeps(sim) > polled)
    process.communicate(timeout=60)
    sim.stop()
    kernels = [piece for piece in read_trace(sim.trace_path) if piece.kind == Kind.KERNEL]
    assert len({piece.seq for piece in kernels}) == rounds
