"""Memory limits of the driver (simulated generation 615) through the daemon's backend: a program
without any shim is refused above its job's cap.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import BUILD, ROOT, client_env, start

from simulator.sim import Simulator

GIB = 1 << 30
CONTROLLER = next(
    (
        p
        for p in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
        if (p / "cgroup.procs").exists()
    ),
    None,
)

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.skipif(CONTROLLER is None, reason="needs a cgroup hierarchy"),
]

# What qgpud does, in a process of its own because NVML's library is chosen once per process.
BACKEND = """
import json, sys
from pathlib import Path
from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.limits.backend import MemoryBackend
from enforcer.nvml.worker import NvmlInline
from enforcer.nvml.driver import PynvmlNvml
from gres.grant.store import Grant, GrantCard
nvml = PynvmlNvml(sys.argv[1])
info = nvml.cards()[0]
card = GrantCard(info.uuid, info.minor, 0, 30, 1 << 30, info.mem_total)
grant = Grant(9, 0, 0, "n1", "active", "offline", cards=(card,))
class Recorded(Steps):
    def unified(self, jobs):
        return {9: ("/system.slice/n1_slurmstepd.scope/job_9",)}
steps = Recorded(Path("/none"))
backend = MemoryBackend("auto", NvmlInline(lambda: nvml), Path(sys.argv[2]), steps)
found = backend.check()
backend.apply([grant])
limits = [] if not found.anywhere else [nvml.memory_limits(info.uuid, sys.argv[3]).hard]
print(json.dumps([backend.strength, backend.why, limits]), flush=True)
sys.stdin.readline()
backend.release(9)
print(json.dumps([] if not found.anywhere else
                 [nvml.memory_limits(info.uuid, sys.argv[3]).hard]), flush=True)
"""


@pytest.fixture
def cgroup() -> Iterator[tuple[Path, Path]]:
    """A tree as slurmd makes it, below a directory of our own: its root and the task's leaf."""
    assert CONTROLLER is not None
    root = CONTROLLER / f"qgpu-test-{os.getpid()}"
    leaf = root / "system.slice/n1_slurmstepd.scope/job_9/step_0/user/task_0"
    try:
        leaf.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield root, leaf
    for path in [leaf, *leaf.parents]:
        with contextlib.suppress(OSError):
            path.rmdir()
        if path == root:
            break


def backend(sim: Simulator, root: Path, leaf: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        BACKEND,
        str(BUILD / "sim/libnvidia-ml.so.1"),
        str(root),
        str(leaf),
    ]
    env = {**client_env(sim), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def allocate(sim: Simulator, leaf: Path) -> dict[str, object]:
    """A program in that cgroup, without shim and grant, allocates until it is refused."""

    def enter() -> None:
        (leaf / "cgroup.procs").write_text(str(os.getpid()))

    work = [str(BUILD / "bin/qgpu-workload"), "--json", "--length", "0.1", "--alloc-past", "4GiB"]
    done = subprocess.run(
        work, env=client_env(sim), preexec_fn=enter, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)["alloc"]
    return found


def test_program_without_shim_is_held_to_its_jobs_cap_by_the_driver(tmp_path, cgroup):
    root, leaf = cgroup
    with start(tmp_path, driver_generation=615) as sim:
        assert allocate(sim, leaf)["refused"] is False, "nothing is limited yet"
        daemon = backend(sim, root, leaf)
        try:
            assert daemon.stdout is not None
            assert json.loads(daemon.stdout.readline()) == ["hard", "", [GIB]]
            found = allocate(sim, leaf)
            assert found["refused"] is True and 0 < int(str(found["bytes"])) <= GIB
            out, _ = daemon.communicate("end\n", timeout=30)
            assert json.loads(out)[0] > 80 * GIB, "taken away"
            assert allocate(sim, leaf)["refused"] is False
        finally:
            daemon.kill()
            daemon.wait()


def test_driver_of_today_has_no_limits_and_says_so(tmp_path, cgroup):
    with start(tmp_path) as sim:
        daemon = backend(sim, *cgroup)
        strength, why, limits = json.loads(
            daemon.communicate("end\n", timeout=30)[0].splitlines()[0]
        )
        assert (strength, limits) == ("cooperative", []) and "615 is the first that has" in why
