"""Faults on demand in the simulated driver: each has its effect, and only on its target."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import client_env, make, nvml, run, spawn, start

from simulator.layout import MAGIC, VERSION
from simulator.sim import Kind, SimError, Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    with start(tmp_path / "sim", memory_mib=4096, minor_base=os.getpid() % 1000 * 16) as simulator:
        yield simulator


def say(process: subprocess.Popen[str], line: str = "") -> str:
    """Send a line and read one."""
    assert process.stdin and process.stdout
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def up(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    assert process.stdout.readline() == "up\n", process.communicate()


LOOP = """
    n = c.c_uint64(5000); params = (c.c_void_p * 1)(c.addressof(n))
    g = Cuda(); s = g.stream(); e = g.event(); p = g.alloc(1 << 20); print("up", flush=True)
    for line in sys.stdin: print(eval(line), flush=True)
"""


def test_a_sticky_error_kills_one_process_only(sim: Simulator) -> None:
    sick, well = spawn(sim, LOOP), spawn(sim, LOOP)
    up(sick)
    up(well)
    say(sick, "g.launch(3_000_000, s)")
    assert sim.control(f"sticky pid={sick.pid}") == 1
    calls = (
        'g.raw("cuStreamSynchronize", s)',
        'g.raw("cuEventRecord", e, s)',
        'g.raw("cuCtxSynchronize")',
        'g.raw("cuMemAlloc_v2", c.byref(c.c_uint64()), c.c_size_t(4096))',
        'g.raw("cuStreamQuery", s)',
    )
    assert [say(sick, call) for call in calls] == ["700"] * len(calls)
    say(well, "g.launch(10, s)")
    assert say(well, 'g.raw("cuStreamSynchronize", s)') == "0"
    sick.communicate(timeout=60)
    well.communicate(timeout=60)
    sim.stop()
    assert [(x.cut, x.duration < 3_000_000_000) for x in sim.intervals() if x.pid == sick.pid] == [
        (True, True)
    ]


def test_a_sticky_error_wakes_waiting_threads(sim: Simulator) -> None:
    process = spawn(
        sim,
        """
        g = Cuda(); g.launch(60_000_000); print("up", flush=True)
        print(g.raw("cuCtxSynchronize"), flush=True)
        """,
    )
    up(process)
    sim.control(f"sticky pid={process.pid} code=719")
    assert process.communicate(timeout=60)[0].strip() == "719"


def test_a_hung_kernel_ends_with_its_process(sim: Simulator) -> None:
    hung, other = spawn(sim, LOOP), spawn(sim, LOOP)
    up(hung)
    up(other)
    assert sim.control(f"hang pid={hung.pid}") == 1
    say(hung, "g.launch(10, s)")
    say(hung, "g.launch(10, s)")
    say(other, "g.launch(10, s)")
    assert say(other, 'g.raw("cuStreamSynchronize", s)') == "0"
    assert say(hung, 'g.raw("cuStreamQuery", s)') == "600"
    hung.kill()
    hung.communicate()
    other.communicate(timeout=60)
    sim.stop()
    pieces = [x for x in sim.intervals() if x.pid == hung.pid]
    assert pieces[-1].cut and not any(x.last and not x.cut for x in pieces)


def test_a_hung_kernel_that_is_not_stopped_keeps_the_card(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")
    with start(tmp_path / "s", run_to_end=True, minor_base=os.getpid() % 1000 * 16) as sim:
        hung, other = spawn(sim, LOOP), spawn(sim, LOOP)
        up(hung)
        up(other)
        sim.control(f"hang pid={hung.pid}")
        say(hung, "g.launch(10, s)")
        assert say(hung, 'g.raw("cuStreamQuery", s)') == "600"
        say(other, "g.launch(10, s)")
        time.sleep(0.05)  # to see that nothing comes there is nothing to wait for
        assert say(other, 'g.raw("cuStreamQuery", s)') == "600"
        hung.kill()
        assert say(other, 'g.raw("cuStreamSynchronize", s)') == "0"
        hung.communicate()
        other.communicate(timeout=60)


TIMED = """
    n = c.c_uint64(5000); params = (c.c_void_p * 1)(c.addressof(n))
    g = Cuda(); print("up", flush=True)
    for line in sys.stdin:
        begin = time.monotonic(); status = eval(line)
        print(status, time.monotonic() - begin, flush=True)
"""


def test_a_named_call_takes_longer_as_often_as_asked(sim: Simulator) -> None:
    process, other = spawn(sim, TIMED), spawn(sim, TIMED)
    up(process)
    up(other)
    alloc = 'g.raw("cuMemAlloc_v2", c.byref(c.c_uint64()), c.c_size_t(4096))'
    assert sim.control(f"delay call=cuMemAlloc us=200000 times=2 pid={process.pid}") == 1
    answers = [say(process, alloc).split() for _ in range(5)]
    assert [status for status, _ in answers] == ["0"] * 5
    seconds = [float(took) for _, took in answers]
    assert min(seconds[:2]) >= 0.2 > min(seconds[2:]), "the machine may stall, but not each time"
    assert min(float(say(other, alloc).split()[1]) for _ in range(3)) < 0.2
    for name in (process, other):
        name.communicate(timeout=60)


def test_any_call_can_take_longer(sim: Simulator) -> None:
    process = spawn(sim, TIMED)
    up(process)
    sim.control("delay call=* us=50000")
    launch = 'g.raw("cuLaunchKernel", g.work, 1, 1, 1, 1, 1, 1, 0, None, params, None)'
    calls = (launch, 'g.raw("cuCtxSynchronize")', 'g.raw("cuDeviceGetCount", c.byref(c.c_int()))')
    for call in calls:
        assert float(say(process, call).split()[1]) >= 0.05
    assert sim.control("clear") >= 1
    assert min(float(say(process, calls[2]).split()[1]) for _ in range(3)) < 0.05
    process.communicate(timeout=60)


def test_a_call_that_fails_does_nothing(sim: Simulator) -> None:
    process = spawn(sim, LOOP)
    up(process)
    sim.control(f"error call=cuLaunchKernel code=719 times=1 pid={process.pid}")
    launch = 'g.raw("cuLaunchKernel", g.work, 1, 1, 1, 1, 1, 1, 0, s, params, None)'
    assert [say(process, launch) for _ in range(3)] == ["719", "0", "0"]
    assert say(process, 'g.raw("cuStreamSynchronize", s)') == "0"
    process.communicate(timeout=60)
    sim.stop()
    assert sum(piece.kind == Kind.KERNEL for piece in sim.intervals()) == 2


def test_a_blocked_call_returns_when_it_is_cleared(sim: Simulator) -> None:
    process = spawn(sim, TIMED)
    up(process)
    sim.control(f"block call=cuStreamCreate pid={process.pid}")
    assert process.stdin and process.stdout
    process.stdin.write('g.raw("cuStreamCreate", c.byref(c.c_void_p()), 0)\n')
    process.stdin.flush()
    assert not select.select([process.stdout], [], [], 0.1)[0], "it has not returned"
    sim.control(f"clear pid={process.pid}")
    assert process.stdout.readline().split()[0] == "0"
    process.communicate(timeout=60)


def test_faults_from_the_start_reach_processes_to_come(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1")
    faults = ("error call=cuInit code=3", "error call=nvmlInit code=9")
    with start(tmp_path / "s", faults=faults, minor_base=os.getpid() % 1000 * 16) as sim:
        assert run(sim, "print(Cuda(init=False).raw('cuInit', 0))") == "3\n"
        code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(e.value)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=client_env(sim),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "9\n"
        sim.control("clear")
        assert run(sim, "print(Cuda(init=False).raw('cuInit', 0))") == "0\n"
    with pytest.raises(SimError):
        start(tmp_path / "t", faults=("delay call=cuInit",))


def test_nvml_fails_for_the_next_calls(sim: Simulator) -> None:
    sim.control("error call=nvmlDeviceGetMemoryInfo code=999 times=2")
    out = nvml(
        sim,
        """
        def total():
            try: return n.nvmlDeviceGetMemoryInfo(h).total >> 20
            except n.NVMLError as e: return e.value
        print(total(), total(), total(), n.nvmlDeviceGetCount())
        """,
    )
    assert out.split() == ["999", "999", "4096", "1"]


def test_nvml_hangs_until_it_is_cleared(sim: Simulator) -> None:
    sim.control("block call=nvmlDeviceGetComputeRunningProcesses")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pynvml as n\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); print('up', "
            "flush=True)\n"
            "print(n.nvmlDeviceGetMemoryInfo(h).total >> 20, flush=True)\n"
            "print(len(n.nvmlDeviceGetComputeRunningProcesses(h)))",
        ],
        env=client_env(sim),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "4096\n"]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    sim.control("clear")
    assert process.communicate(timeout=60)[0] == "0\n"


def test_the_card_stalls(sim: Simulator) -> None:
    process = spawn(sim, LOOP)
    up(process)
    say(process, "g.launch(100_000, s)")
    sim.control("stall us=50000")
    assert say(process, 'g.raw("cuStreamSynchronize", s)') == "0"
    process.communicate(timeout=60)
    sim.stop()
    pieces = [x for x in sim.intervals() if x.work == 100_000_000]
    assert len(pieces) == 2 and sum(x.duration for x in pieces) == 100_000_000
    assert pieces[1].t_start - pieces[0].t_end == 50_000_000


def test_commands_that_mean_nothing_are_refused(sim: Simulator) -> None:
    bad = (
        "",
        "nonsense",
        "sticky",
        "sticky pid=x",
        "sticky pid=1 code=0",
        "delay call=cuInit",
        "delay us=5",
    )
    bad += (
        "error call=cuInit",
        "hang",
        "stall",
        "stall us=5 card=7",
        "slice pid=1",
        "delay call= us=5",
    )
    bad += (
        "block call=" + "x" * 80,
        "error call=a code=1 times=0",
        "sticky pid=-1",
        "pid=1",
        "clear what",
    )
    for command in bad:
        with pytest.raises(SimError, match="not understood"):
            sim.control(command)
    for command in (
        f"sticky pid={os.getpid()}",
        f"hang pid={os.getpid()}",
        f"clear pid={os.getpid()}",
    ):
        with pytest.raises(SimError, match="reached no process"):
            sim.control(command)


def test_only_root_may_ask(sim: Simulator) -> None:
    if os.geteuid() != 0:
        pytest.skip("drops root")
    for path in (sim.config.directory, *sim.config.directory.parents):
        if path.stat().st_mode & 1 == 0:
            path.chmod(path.stat().st_mode | 0o11)
    code = (
        "import os, struct, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
        f"s.send(struct.pack('<IIII32x1024s', {MAGIC}, {VERSION}, 32, 1072, b'clear'))\n"
        "print(struct.unpack_from('<i', s.recv(64), 12)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(sim.config.directory / "sim.sock")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-1\n"
