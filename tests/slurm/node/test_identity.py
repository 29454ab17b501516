"""Whose process is it, on a live node: orphans, adopted sessions, and cgroups that lie.

On cgroups of version 1 and 2; with Slurm 26.05 also with SLUIDs and a renamed slice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live, alone, work
from steps_support import records_of

from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions
from gres.paths import ABI_VERSION

WAYS = {
    "v1": {"cgroup": "v1"},
    "v2": {"cgroup": "v2"},
    "sluid": {"cgroup": "v2", "cgroup_names": "sluid"},
    "slice": {"cgroup": "v2", "cgroup_slice": "gpu.slice"},
}
# A daemon as they are written in books: two forks, a session of its own, no descriptor left.
DAEMON = r"""
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
parent = os.getppid()
os.closerange(0, 4096)
out = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
os.open("/dev/null", os.O_RDWR)
os.open(sys.argv[1] + ".err", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
os.dup2(out, 1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
# Enters a cgroup as root, as pam_slurm_adopt does for a session, and goes on as the user.
ENTER = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[2]))
os.execvp(sys.argv[4], sys.argv[4:])
"""
SOME = ("--requests", "20", "--json")


@pytest.fixture(scope="module", params=WAYS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of one node on such cgroups."""
    options = SandboxOptions(f"t{os.getpid()}i{request.param[-2:]}", nodes=1, **WAYS[request.param])
    one = Sandbox(options, progress=print)
    try:
        one.up()
    except SandboxError as error:
        if "needs Slurm" not in str(error):
            raise
        pytest.skip(str(error))
    yield one
    one.down()


@pytest.fixture
def live(cluster: Sandbox) -> Iterator[Live]:
    yield from alone(Live(cluster))


def _steps(live: Live, job: int) -> dict[str, int]:
    """The job's slurmstepds on record, by step; by "" one that ended and is on record still."""
    found = {}
    for path in records_of(live.paths(live.nodes[0]).run_dir, job):
        title = ""
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{path.name}/cmdline").read_text()
        found[title.partition(f"[{job}.")[2].partition("]")[0]] = int(path.name)
    return found


def _cgroup(live: Live, pid: int) -> Path:
    """Its directory, as the sandbox sees it: of version 2 where that is alone, else the freezer."""
    root = Path("/sys/fs/cgroup")
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    if live.sandbox.plan.cgroup == "v2":
        return root / next(path for number, _, path in lines if number == "0").strip("/")
    return root / "freezer" / next(path for _, names, path in lines if names == "freezer")[1:]


def _inside(live: Live, cgroup: Path, job: int, *words: str) -> dict[str, object]:
    """What the workload says when root puts it into a cgroup as alice, under the job's grant."""
    paths, grant, opt = live.paths(live.nodes[0]), live.grant(job), live.sandbox.layout.opt
    env = (
        f"QGPU_GRANT={paths.run_dir}/grants/{job}.grant",
        f"LD_PRELOAD={opt}/shim/{ABI_VERSION}/libcuda.so.1",
        f"LD_LIBRARY_PATH={opt}/sim",
        f"QGPU_SIM_DIR={paths.sim_dir}",
    )
    enter = ("python3", "-c", ENTER, str(cgroup), str(grant.uid), str(grant.gid))
    done = live.run(*enter, "env", *env, "timeout", "20", f"{opt}/bin/qgpu-workload", *words)
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr}


def test_jobs_are_recorded_and_found_while_they_run(live: Live) -> None:
    job = live.submit("srun sleep 600", "--gres=qgpu:30")
    live.until(lambda: {"extern", "batch", "0"} <= _steps(live, job).keys(), 20, "three steps")
    told = live.run("qgpu", "doctor", "--json", "--node", live.nodes[0]).stdout
    found = next(check for check in json.loads(told) if check["name"] == "job cgroups")
    assert (found["status"], found["text"]) == ("ok", "found for the 1 job(s) with a card here")
    live.cancel(job)
    live.until(lambda: not _steps(live, job), 20, "the end of the records")


def test_an_orphan_without_descriptors_is_its_jobs(live: Live) -> None:
    home = live.sandbox.layout.home("alice")
    (home / "daemon.py").write_text(DAEMON)
    program = f"{live.sandbox.layout.opt}/bin/{work(*SOME)}"
    job = live.submit(
        f"rm -f said*; touch said said.err; python3 {home}/daemon.py said {program}\n"
        "until grep -q '}' said said.err; do sleep 0.1; done; cat said said.err",
        "--gres=qgpu:30,vram:4G",
    )
    (text,) = live.finish(job)
    assert json.loads(text)["requests"], text
    live.wait_sacct(job)
    (grant,) = live.report(job)[job]["grants"]
    assert grant["launches"] >= 20


def test_an_adopted_session_is_its_jobs(live: Live) -> None:
    """As pam_slurm_adopt does: root moves a process of ssh into the extern step's cgroup."""
    job = live.submit("exec sleep 600", "--gres=qgpu:30,vram:4G")
    live.until(lambda: "extern" in _steps(live, job), 20, "the extern step")
    own = _cgroup(live, _steps(live, job)["extern"])
    top = own.parent.parent if live.sandbox.plan.cgroup == "v2" else own
    place = top / "step_extern"
    if live.sandbox.plan.cgroup == "v2":
        place = place / "user/task_special"
        live.ask("mkdir", "-p", str(place))  # slurmstepd makes it for the first session
    said = _inside(live, place, job, *SOME, "--alloc-past", "8GiB")
    assert said["status"] == 0, said
    assert json.loads(str(said["out"]))["alloc"]["refused"] is True, said


def test_a_cgroup_that_a_user_calls_like_the_job_is_not(live: Live) -> None:
    """Root delegates a directory to alice, as systemd does; she makes cgroups with any name."""
    job = live.submit("exec sleep 600", "--gres=qgpu:30,vram:4G")
    live.until(lambda: "batch" in _steps(live, job), 20, "the batch step")
    grant = live.grant(job)
    root = Path("/sys/fs/cgroup") / ("" if live.sandbox.plan.cgroup == "v2" else "freezer")
    own = root / f"alice-{os.getpid()}.slice"
    lies = [own / f"slurm/uid_{grant.uid}/job_{job}/step_batch"]
    lies += [own / f"system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"]
    make = f"mkdir {own} && chown {grant.uid} {own}"
    try:
        live.ask("sh", "-c", make)
        for lie in lies:
            live.ask("mkdir", "-p", str(lie), user="alice")
            said = _inside(live, lie, job, *SOME)
            assert said["status"] != 0, said
            assert "is in no cgroup and below no slurmstepd of job" in str(said["err"]), said
    finally:
        live.run("find", str(own), "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
