"""Real qgpud with the driver's memory limits: cards of generation 615, cgroups of version 2 and
nothing else.

Where the machine has version 1 too, the daemons run in a mount namespace of their own in which only
the unified hierarchy is mounted, at /sys/fs/cgroup as on a node of today. qgpud needs no option for
it, and is given none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node_support import Chain, until, work
from steps_support import start_of, step_record

from enforcer.daemon.requests.protocol import ask
from simulator.sim import SimConfig, Simulator

GIB = 1 << 30
JOB = 9
TAG = "qgpu/1 class=offline share=10 mem=1024"
HERE = Path(__file__).parents[3] / "build"
SET = "nvmlDeviceSetMemoryLimits_v1"

# Mounts are undone innermost first; those that remain hidden below the new one are not in the way.
UNIFIED = """
awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/self/mounts | tac |
    while read -r at; do umount -l "$at" || exit 1; done
umount -l /sys/fs/cgroup 2>/dev/null
mount -t cgroup2 none /sys/fs/cgroup && exec "$@"
"""
WITHIN = ["unshare", "--mount", "--propagation", "private", "sh", "-c", UNIFIED, "sh"]


def unified() -> Path | None:
    """Where this process sees the unified hierarchy, beside others or alone."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(row[1]) for row in rows if row[2] == "cgroup2"), None)


def unfit() -> str:
    """Why this machine cannot play such a node; empty if it can."""
    root = unified()
    if os.geteuid() != 0:
        return "mounts and makes device nodes: needs root"
    if root is None or not os.access(root, os.W_OK):
        return "no cgroup of version 2 is mounted here, or not for writing"
    name = f"qgpu-test-{os.getpid()}"
    try:
        (root / name).mkdir()
    except OSError as error:
        return f"no cgroup can be made in {root}: {error.strerror}"
    seen = "test -d /sys/fs/cgroup/$0 && ! grep -q '^[^ ]* [^ ]* cgroup ' /proc/self/mounts"
    try:
        done = subprocess.run(
            [*WITHIN, "sh", "-c", seen, name], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"unshare cannot be run: {error.strerror}"
    finally:
        (root / name).rmdir()
    return (
        ""
        if done.returncode == 0
        else f"version 2 cannot be mounted alone here: {done.stderr.strip()}"
    )


WHY = unfit()
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(bool(WHY), reason=WHY),
    pytest.mark.timeout(180),
]


class Cgroups:
    """The cgroups of one job, as slurmstepd makes them, and what plays slurmstepd."""

    def __init__(self, place: str) -> None:
        root = unified()
        assert root is not None
        self._made: list[Path] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.job = root / place

    def make(self, chain: Chain, step: int) -> Path:
        leaf = self.job / f"step_{step}/user/task_0"
        own = self.job / f"step_{step}/slurm"
        missing = {path for end in (leaf, own) for path in (end, *end.parents) if not path.exists()}
        for path in (leaf, own):
            path.mkdir(parents=True)
        self._made += missing
        self._daemons.append(subprocess.Popen(["sleep", "600"]))
        pid = self._daemons[-1].pid
        (own / "cgroup.procs").write_text(str(pid))
        step_record(chain.directory / "run", JOB, pid, start_of(pid))
        return leaf

    def remove(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        for path in sorted(self._made, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()


PLACES = {
    "job_N": f"system.slice/qgpu{os.getpid()}_slurmstepd.scope/job_{JOB}",
    "SLUID": f"system.slice/qgpu{os.getpid()}_slurmstepd.scope/s0M5M8G3F4J900",
    "slice": f"qgpu{os.getpid()}.slice/slurmstepd.scope/job_{JOB}",
}


@pytest.fixture(params=PLACES)
def cgroups(request) -> Iterator[Cgroups]:
    made = Cgroups(PLACES[request.param])
    yield made
    made.remove()


@pytest.fixture
def node(start) -> Callable[..., Chain]:
    """A node of generation 615 with these lines of qgpu.yaml."""

    def make(backend: str = "auto", mig: int = 0) -> Chain:
        text = 'logging: {level: debug}\nslurm: {version: "24.11", tag_field: comment}\n'
        chain: Chain = start(text, mig, sim=["--driver-generation", "615"], within=WITHIN)
        if backend != "auto":
            settings = f"{{ledger_interval: 200ms, memory_backend: {backend}}}"
            chain.config.write_text(
                chain.config.read_text().replace("{ledger_interval: 200ms}", settings)
            )
            restart(chain)
        return chain

    return make


def restart(chain: Chain) -> None:
    served = chain.log().count("event=serving")
    chain.qgpud.terminate()
    chain.qgpud.wait()
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") > served)


def fault(chain: Chain, words: str) -> None:
    Simulator(SimConfig(chain.directory / "sim", "n1"), HERE, chain.qgpud).control(words)


def strengths(chain: Chain) -> list[str]:
    """Of the node, and of the jobs whose strength is another."""
    answer, _ = ask(chain.directory / "run", {"op": "status"})
    return [str(answer["memory"]), *(row["strength"] for row in answer["memory_jobs"])]


def refused(chain: Chain, leaf: Path) -> bool:
    """Whether a program in that cgroup, without shim and grant, is refused before it has 4 GiB."""

    def enter() -> None:
        (leaf / "cgroup.procs").write_text(str(os.getpid()))

    words = work(chain, "--length", "0.1", "--alloc-past", "4GiB")
    done = subprocess.run(
        words, env=chain.env(), preexec_fn=enter, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["alloc"]
    assert not found["refused"] or int(found["bytes"]) <= GIB
    return bool(found["refused"])


def test_driver_holds_jobs_to_their_caps_from_prolog_to_epilog(node, cgroups):
    chain = node()
    assert strengths(chain) == ["hard"] and "name=nvml strength=hard" in chain.log()
    assert chain.hook("prolog", JOB, TAG) == 0
    assert strengths(chain) == ["hard", "cooperative"], "no cgroup yet"
    first = cgroups.make(chain, 0)
    until(lambda: strengths(chain) == ["hard"])
    assert refused(chain, first)
    later = cgroups.make(chain, 1)
    until(lambda: f"cgroup={later}".replace(str(unified()), "/sys/fs/cgroup") in chain.log())
    assert refused(chain, later)
    restart(chain)
    until(lambda: strengths(chain) == ["hard"])
    assert chain.hook("epilog", JOB) == 0
    until(lambda: not refused(chain, first))
    assert strengths(chain) == ["hard"]


def test_limit_that_the_driver_refuses_for_a_while_is_set_when_it_does_not(node, cgroups):
    chain = node()
    assert chain.hook("prolog", JOB, TAG) == 0
    fault(chain, f"error call={SET} code=999")
    leaf = cgroups.make(chain, 0)
    until(lambda: "event=memory-limit-failed" in chain.log())
    assert strengths(chain) == ["cooperative"] and not refused(chain, leaf)
    fault(chain, "clear")
    until(lambda: "event=memory-limit-late" in chain.log())
    assert strengths(chain) == ["hard"] and refused(chain, leaf)
    assert chain.log().count("event=memory-limit-failed") == 1


def test_demanded_limits_are_had_or_the_job_does_not_start(node, cgroups):
    chain = node("nvml")
    assert chain.hook("prolog", JOB, TAG) == 0
    cgroups.make(chain, 0)
    until(lambda: strengths(chain) == ["hard"])
    code, _, err = chain.said("run", "--mem", "1G", "--", "true")
    assert code == 125 and "submit it as a job" in err
    fault(chain, f"error call={SET} code=3")
    restart(chain)
    assert chain.hook("prolog", JOB + 1, TAG) != 0
    assert "enforcer.memory_backend is nvml, but driver 615" in chain.log()


@pytest.mark.parametrize("backend", ["auto", "nvml"])
def test_job_whose_cgroup_is_not_found_is_not_called_hard(node, backend):
    """As with proctrack/linuxproc: slurmstepd is where slurmd is."""
    chain = node(backend)
    assert chain.hook("prolog", JOB, TAG) == 0 and strengths(chain)[0] == "hard"
    step_record(chain.directory / "run", JOB, os.getpid(), start_of(os.getpid()))
    until(lambda: strengths(chain) == ["cooperative"])
    answer, _ = ask(chain.directory / "run", {"op": "status"})
    assert f"the slurmstepd of job {JOB} is in no cgroup of the job" in str(answer["memory_why"])
    assert chain.log().count("event=memory-no-cgroup") == 1
    assert (chain.hook("prolog", JOB + 1, TAG) == 0) is (backend == "auto")


def test_job_whose_slurmstepd_is_not_on_record_is_not_called_hard(node):
    """As with a plugin of another release: a task has fetched its grant."""
    chain = node()
    assert chain.hook("prolog", JOB, TAG) == 0
    assert strengths(chain) == ["hard", "cooperative"]
    (chain.directory / f"run/grants/{JOB}.fetched").touch(0o600)
    until(lambda: strengths(chain) == ["cooperative"])
    assert f"no slurmstepd of job {JOB} is on record" in chain.log()


def test_demanded_limits_are_not_had_on_parts_of_a_card(node):
    chain = node("nvml", mig=2)
    assert chain.hook("prolog", JOB, TAG) != 0
    assert "refuses limits per cgroup" in chain.log() and "Not Supported" in chain.log()
