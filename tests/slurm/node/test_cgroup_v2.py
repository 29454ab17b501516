"""A node with cgroups version 2 alone, and a driver that limits memory by cgroup: whatever Slurm
calls the cgroup of a job, the job is found, constrained and limited.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live, alone, work

from cli.sandbox import cgroups
from cli.sandbox.cluster import Sandbox
from cli.sandbox.files import build_dir
from cli.sandbox.options import SandboxOptions
from cli.sandbox.services import slurm_version
from enforcer.daemon.requests.protocol import ask

NEW = slurm_version() >= "26.05"
# Slice and names that are asked for, and what a task's cgroup then begins with.
LAYOUTS = {
    "own": ("", "slurm", "/system.slice/{scope}/" + (r"s[0-9A-Z]{{13}}" if NEW else "job_{job}")),
    "renamed": ("gpu.slice", "job", "/gpu.slice/{scope}/job_{job}"),
}
pytestmark = pytest.mark.skipif(cgroups.unified() is None, reason="no cgroup2 is mounted here")

# Its cgroup, which cards it opens, a program that its parent left, and one past the shim.
JOB = """
sed -n 's/^0::/cgroup /p' /proc/self/cgroup
for card in $QGPU_SIM_DIR/dev/qgpusim?; do
    if (: <>$card) 2>&1 | grep -q 'not permitted'; then echo denied ${card: -1}
    else echo open ${card: -1}; fi
done
(setsid LEFT > left.json 2> left.err; echo $? > left.done) &
until [ -e go ] && [ -e left.done ]; do sleep 0.1; done
env -u LD_PRELOAD /usr/bin/python3 past.py
"""
# Half the cap, then twice the cap, from a copy of the driver that no shim stands before. qgpud
# limits a new cgroup within a second; until then the driver gives more.
PAST = """
import ctypes, time
cuda = ctypes.CDLL("driver/libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert not (cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
assert not cuda.cuCtxSetCurrent(context)
allocate = lambda size: cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size))
print("past", allocate(1 << 29))
end = time.monotonic() + 60
while not (said := allocate(1 << 31)) and time.monotonic() < end:
    cuda.cuMemFree_v2(memory)
    time.sleep(0.05)
print("past", said)
"""


@pytest.fixture(scope="module", params=LAYOUTS)
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[Sandbox, str]]:
    """A node with two cards, and the pattern of its jobs' cgroups."""
    where, names, pattern = LAYOUTS[request.param]
    if where and not NEW:
        pytest.skip("Slurm has CgroupSlice from 25.11 on, CgroupJobIdPaths from 26.05 on")
    shape = SandboxOptions(
        f"t{os.getpid()}v",
        nodes=1,
        cgroup="v2",
        cgroup_slice=where,
        cgroup_names=names,  # type: ignore[arg-type]
        driver="615",
    )
    with Sandbox(shape, progress=print) as sandbox:
        yield sandbox, pattern


@pytest.fixture
def live(cluster: tuple[Sandbox, str]) -> Iterator[Live]:
    yield from alone(Live(cluster[0]))


def limited(live: Live, job: int) -> bool:
    """Whether qgpud says that the driver holds this job, and every other, to its cap."""
    answer, _ = ask(live.paths(live.nodes[0]).run_dir, {"op": "status"})
    return [answer["memory"], *(row["strength"] for row in answer["memory_jobs"])] == ["hard"]


def doctor(live: Live) -> dict[str, str]:
    """Its check of the jobs' cgroups, and of which version there is."""
    driver = f"LD_LIBRARY_PATH={live.sandbox.layout.opt}/sim"
    node = live.nodes[0]
    words = ("qgpu", "doctor", "--json", "--node", node)
    told = live.run("env", driver, f"QGPU_SIM_DIR={live.paths(node).sim_dir}", *words)
    checks = {check["name"]: check for check in json.loads(told.stdout)}
    return {name: checks[name]["status"] for name in ("cgroups", "job cgroups", "memory caps")}


def test_a_job_is_found_constrained_and_limited(live: Live, cluster: tuple[Sandbox, str]) -> None:
    home, root = live.sandbox.layout.home("alice"), cgroups.unified()
    assert root is not None
    (home / "driver").mkdir(exist_ok=True)
    shutil.copy(build_dir() / "sim/libcuda.so.1", home / "driver")  # past any injection
    (home / "past.py").write_text(PAST)
    job = live.submit(JOB.replace("LEFT", work("--requests", "50")), "--gres=qgpu:10,vram:1G")
    live.until(lambda: limited(live, job), 20, "the driver's limit of the job")
    assert doctor(live) == {"cgroups": "ok", "job cgroups": "ok", "memory caps": "ok"}
    (home / "go").touch()
    (told,) = live.finish(job)

    lines = [line.split() for line in told.splitlines()]
    (own,) = (line[1] for line in lines if line[0] == "cgroup")
    wanted = cluster[1].format(scope=f"{live.nodes[0]}_slurmstepd.scope", job=job)
    assert re.match(wanted + "/", own), own
    assert sorted(line[0] for line in lines[1:3]) == ["denied", "open"], told
    assert (home / "left.done").read_text() == "0\n", (home / "left.err").read_text()
    out_of_memory = "2"
    assert [line[1] for line in lines[3:]] == ["0", out_of_memory], told
    first = Path(f"{root}{own}").parents[2]
    live.until(lambda: not first.exists(), 20, f"the end of {first}")


def test_all_inside_see_version_2_alone(live: Live) -> None:
    rows = [line.split() for line in live.ask("cat", "/proc/self/mounts").splitlines()]
    seen = [row[1:3] for row in rows if row[2].startswith("cgroup")]
    assert seen == [["/sys/fs/cgroup", "cgroup2"]]
