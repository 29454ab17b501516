"""NVML of the simulated driver through nvidia-ml-py, as the daemon uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import BUILD, MIB, client_env, make, spawn, start, until

from simulator.sim import Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    with start(
        tmp_path / "sim", cards=2, memory_mib=4096, minor_base=os.getpid() % 1000 * 16
    ) as simulator:
        yield simulator


def nvml(sim: Simulator, code: str) -> object:
    """Evaluate an expression with pynvml as n and the handle of card 0 as h."""
    head = "import json, pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"
    text = f"{head}print(json.dumps({code}))"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=client_env(sim),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_identity(sim: Simulator) -> None:
    assert nvml(sim, "[n.nvmlDeviceGetCount(), n.nvmlSystemGetCudaDriverVersion()]") == [2, 13000]
    assert "qgpusim" in str(nvml(sim, "n.nvmlSystemGetDriverVersion()"))
    assert nvml(sim, "n.nvmlDeviceGetMinorNumber(h)") == sim.config.minor_base
    uuid = str(nvml(sim, "n.nvmlDeviceGetUUID(h)"))
    assert uuid.startswith("GPU-") and len(uuid) == 40
    assert nvml(sim, f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID({uuid!r}))") == 0
    bus = nvml(sim, "n.nvmlDeviceGetPciInfo(h).busId")
    assert nvml(sim, f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId({bus!r}))") == 0


def test_uuid_is_the_one_of_cuda(sim: Simulator) -> None:
    process = spawn(
        sim,
        'g = Cuda(); b = c.create_string_buffer(16); g.call("cuDeviceGetUuid_v2", b, 0); '
        "print(b.raw.hex())",
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert str(nvml(sim, "n.nvmlDeviceGetUUID(h)"))[4:].replace("-", "") == out.strip()


def test_memory_and_utilization_by_process(sim: Simulator) -> None:
    process = spawn(
        sim,
        """
        g = Cuda(); g.alloc(256 << 20); print("up", flush=True)
        for _ in range(120): g.launch(10_000)
        g.call("cuCtxSynchronize")
        for _ in range(900): g.launch(10_000)  # still runs when NVML is asked
        print("busy", flush=True); sys.stdin.readline()
        """,
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    procs = "[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]"
    assert nvml(sim, procs) == [[process.pid, (256 + 300) * MIB]]
    assert nvml(sim, "n.nvmlDeviceGetMemoryInfo(h).used") == (256 + 300) * MIB
    assert nvml(sim, "n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total") == 4096 * MIB
    assert process.stdout.readline() == "busy\n"
    busy, samples = nvml(  # type: ignore[misc]
        sim,
        "[n.nvmlDeviceGetUtilizationRates(h).gpu,"
        " [[s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(h, 0)]]",
    )
    assert 50 < busy <= 100 and samples[0][0] == process.pid and abs(samples[0][1] - busy) <= 15
    process.kill()
    process.communicate()
    assert until(
        lambda: nvml(sim, procs) == [] and nvml(sim, "n.nvmlDeviceGetMemoryInfo(h).used") == 0
    )


def test_hidden_card_and_missing_features(sim: Simulator) -> None:
    (sim.config.directory / "dev/qgpusim0").unlink()
    assert nvml(sim, "[n.nvmlDeviceGetCount(), n.nvmlDeviceGetMinorNumber(h)]") == [
        1,
        sim.config.minor_base + 1,
    ]
    code = "try:\n  n.nvmlDeviceGetMigMode(h)\nexcept n.NVMLError as e: print(type(e).__name__)"
    text = f"import pynvml as n\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=client_env(sim),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "NVMLError_NotSupported"


def test_a_reader_survives_a_restart_of_the_device_side(sim: Simulator, tmp_path: Path) -> None:
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pynvml as n\nn.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
            "for _ in sys.stdin: print(n.nvmlDeviceGetMemoryInfo(h).total, flush=True)",
        ],
        env=client_env(sim),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin and reader.stdout
    for restart in (False, True):
        if restart:
            sim.stop()
            again = Simulator.start(sim.config, BUILD)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == f"{4096 * MIB}\n"
    reader.communicate(timeout=60)
    again.stop()


def test_every_process_of_a_card_is_listed(tmp_path: Path) -> None:
    """More than 256, which was the end of every list once: one missing there would be taken for
    dead.
    """
    with start(tmp_path / "sim", memory_mib=200_000, minor_base=os.getpid() % 1000 * 16) as sim:
        process = spawn(
            sim,
            """
            import signal
            os.setpgid(0, 0)
            ready, told = os.pipe()
            for _ in range(300):
                if os.fork() == 0:
                    g, context = Cuda(init=False), c.c_void_p()
                    g.call("cuInit", 0)
                    g.call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
                    os.write(told, b"+")
                    signal.pause()
            up = 0
            while up < 300: up += len(os.read(ready, 300))
            print("up", flush=True)
            sys.stdin.readline()
            os.killpg(0, signal.SIGKILL)
            """,
        )
        listed = "len({p.pid for p in n.nvmlDeviceGet%sRunningProcesses(h)})"
        try:
            assert process.stdout and process.stdout.readline() == "up\n"
            assert nvml(sim, listed % "Compute") == 300 and nvml(sim, listed % "Graphics") == 0
        finally:
            process.communicate("\n", timeout=60)
        assert until(lambda: nvml(sim, listed % "Compute") == 0)


def test_processes_of_other_kinds_are_in_lists_of_their_own(sim: Simulator) -> None:
    """As a driver has it; the daemon sees all of them."""
    process = spawn(sim, 'g = Cuda(); print("up", flush=True); sys.stdin.readline()')
    assert process.stdout and process.stdout.readline() == "up\n"
    uuid = str(nvml(sim, "n.nvmlDeviceGetUUID(h)"))
    lists = "[len(n.nvmlDeviceGet%sRunningProcesses(h)) for h in [h]]"
    code = (
        "from enforcer.nvml.driver import PynvmlNvml\n"
        f"print([p.pid for p in PynvmlNvml().processes({uuid!r})])"
    )
    for kind, other in (("graphics", "Graphics"), ("mps", "MPSCompute")):
        assert sim.control(f"list pid={process.pid} as={kind}") == 1
        assert nvml(sim, lists % "Compute") == [0] and nvml(sim, lists % other) == [1]
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=client_env(sim),
            cwd=BUILD.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == f"[{process.pid}]\n", done.stderr
    process.communicate("\n", timeout=60)
