"""Memory limits of cgroups in the simulated driver: NVML of generation 615, as nvidia-ml-py
calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sim_tools import MIB, make, nvml, run, spawn, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native

ROOTS = (
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/freezer",
    "/sys/fs/cgroup/pids",
)
LIMITS = """
    def limit(path, soft, hard):
        want = n.c_nvmlSetMemoryLimits_v1_t()
        want.nameSpace, want.softLimit, want.hardLimit = str(path).encode(), soft, hard
        n.nvmlDeviceSetMemoryLimits_v1(h, want)
    def limits(path):
        have = n.c_nvmlGetMemoryLimits_v1_t(); have.nameSpace = str(path).encode()
        n.nvmlDeviceGetMemoryLimits_v1(h, have)
        return have.softLimit, have.hardLimit, have.currentUsed
    def refused(call, *args):
        try: call(*args)
        except n.NVMLError as e: return type(e).__name__
"""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    with start(
        tmp_path / "sim",
        memory_mib=4096,
        driver_generation=615,
        minor_base=os.getpid() % 1000 * 16,
    ) as simulator:
        yield simulator


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of our own; version 1 hierarchies serve too, the simulator takes any."""
    for root in ROOTS:
        path = Path(root) / f"qgpu-sim-test-{os.getpid()}"
        with suppress(OSError):
            path.mkdir()
            if (path / "cgroup.procs").exists():
                break
            path.rmdir()
    else:
        pytest.skip("no cgroup can be made here")
    yield path
    with suppress(OSError):
        path.rmdir()


def test_the_older_generation_has_no_limits(tmp_path: Path) -> None:
    make("build/bin/qgpu-simgpu", "build/sim/libnvidia-ml.so.1")
    with start(tmp_path / "sim", minor_base=os.getpid() % 1000 * 16) as old:
        out = nvml(old, LIMITS + "    print(refused(limit, '/sys/fs/cgroup', 0, 1 << 30))")
        assert out.split() == ["NVMLError_FunctionNotFound"]


def test_versions_and_defaults(sim: Simulator) -> None:
    out = nvml(
        sim,
        LIMITS
        + """
    print(n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion())
    print(*limits("/sys/fs/cgroup"))
    print(refused(limit, "/nowhere", 0, 1 << 30), refused(limit, "/tmp", 0, 1 << 30),
          refused(limit, "/sys/fs/cgroup", 2, 1), refused(limit, "/sys/fs/cgroup/../..", 0, 1))
    """,
    )
    assert (
        out.split()
        == ["615.00.qgpusim", "13040", "0", str(2**64 - 1), "0"] + ["NVMLError_InvalidArgument"] * 4
    )


def test_only_root_may_set(sim: Simulator) -> None:
    if os.geteuid() != 0:
        pytest.skip("drops root")
    for path in (sim.config.directory, *sim.config.directory.parents):
        if path.stat().st_mode & 1 == 0:
            path.chmod(path.stat().st_mode | 0o11)
    out = nvml(
        sim,
        LIMITS
        + """
    n.nvmlShutdown(); os.setgroups([]); os.setgid(65534); os.setuid(65534); n.nvmlInit()
    h = n.nvmlDeviceGetHandleByIndex(0)
    print(refused(limit, "/sys/fs/cgroup", 0, 1 << 30), limits("/sys/fs/cgroup")[1])
    """,
    )
    assert out.split() == ["NVMLError_NoPermission", str(2**64 - 1)]


def test_a_limit_of_everybody_is_enforced_and_shown(sim: Simulator) -> None:
    """The root of the hierarchy needs no cgroup of our own."""
    nvml(sim, LIMITS + "    limit('/sys/fs/cgroup', 0, 1 << 30)")
    out = run(
        sim,
        """
        g = Cuda(); free, total = c.c_size_t(), c.c_size_t()
        g.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        print(free.value >> 20, total.value >> 20)
        print(bool(g.try_alloc(724 << 20)), bool(g.try_alloc(1 << 20)))
        """,
    )
    assert out.split() == ["724", "1024", "True", "False"]
    nvml(sim, LIMITS + "    limit('/sys/fs/cgroup', 0, n.NVML_DEVICE_MEMORY_LIMIT_MAX)")
    assert run(sim, "g = Cuda(); print(bool(g.try_alloc(3 << 30)))").split() == ["True"]


def test_a_limit_holds_for_the_group_alone(sim: Simulator, group: Path) -> None:
    join = f"    open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
    nvml(sim, LIMITS + f"    limit('{group}', 1 << 20, 1400 << 20)")
    hold = "    g = Cuda(); print(bool(g.try_alloc(500 << 20)), flush=True); sys.stdin.readline()\n"
    first = spawn(sim, join + hold + "    print(bool(g.try_alloc(200 << 20)))")
    second = spawn(sim, join + hold)
    assert first.stdout and second.stdout
    answers = sorted([first.stdout.readline(), second.stdout.readline()])
    assert answers == ["False\n", "True\n"]  # 2 x 300 MiB of contexts and 500 + 500 MiB do not fit
    used = nvml(
        sim, LIMITS + f"    print(*limits('{group}'), n.nvmlDeviceGetMemoryInfo(h).total >> 20)"
    )
    assert used.split() == [str(MIB), str(1400 * MIB), str(1100 * MIB), "4096"]
    assert run(sim, "g = Cuda(); print(bool(g.try_alloc(2 << 30)))").split() == ["True"]
    second.communicate("\n", timeout=60)
    _, err = first.communicate("\n", timeout=60)
    assert first.returncode == 0, err


def test_removing_the_group_ends_the_limit(sim: Simulator, group: Path) -> None:
    nvml(sim, LIMITS + f"    limit('{group}', 0, 1 << 30)")
    group.rmdir()
    assert nvml(sim, LIMITS + f"    print(refused(limits, '{group}'))").split() == [
        "NVMLError_InvalidArgument"
    ]
    group.mkdir()
    assert nvml(sim, LIMITS + f"    print(limits('{group}')[1])").split() == [str(2**64 - 1)]


def test_the_end_of_a_process_gives_room_at_once(sim: Simulator) -> None:
    nvml(sim, LIMITS + "    limit('/sys/fs/cgroup', 0, 1 << 30)")
    holder = spawn(
        sim, "    g = Cuda(); g.alloc(700 << 20); print('up', flush=True); sys.stdin.readline()"
    )
    assert holder.stdout and holder.stdout.readline() == "up\n"
    holder.kill()
    assert run(sim, "g = Cuda(); print(bool(g.try_alloc(700 << 20)))").split() == ["True"]
    holder.communicate()
