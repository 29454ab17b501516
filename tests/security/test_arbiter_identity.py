"""Whose process is it: the arbiter reads cgroup and ancestry itself and believes nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[1] / "support/node"
sys.path.insert(0, str(NATIVE))
from arbiter_support import ROOT, Arbiter, arbiter, grant, settings  # noqa: E402
from steps_support import start_of, step_record  # noqa: E402

from enforcer.daemon.audit.steps import depth_inside, job_dirs  # noqa: E402

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="plays slurmstepd, which is root"),
]

CHILD = """
import os, sys
from arbiter_support import *
job, proof_of, uid, cgroup = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
if cgroup:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
proof = (sealed(abi.pack_grant(grant(proof_of))),) if proof_of else ()
if uid:
    os.setuid(uid)
answer, fds = exchange(connect(Path(sys.argv[1])), register_message(job), proof)
print(answer.status, answer.message.decode())
"""
# Waits to be recorded, then starts its task: an orphan if it is to be one.
STEP = """
import os, subprocess, sys
orphan, program, *words = sys.argv[1:]
sys.stdin.readline()
if orphan and os.fork():
    os._exit(0)
subprocess.run(["python", "-c", *words], executable=program)
"""
UNNAMED = "python"


class Step:
    """A process that plays slurmstepd: `title` is its first word, `cgroup` where root put it."""

    def __init__(self, title: str = UNNAMED, cgroup: Path | None = None) -> None:
        self.title, self.cgroup = title, cgroup

    def run(self, one: Arbiter, recorded: int, orphan: bool, args: list[str]) -> tuple[int, str]:
        env = os.environ | {"PYTHONPATH": f"{NATIVE}:{ROOT}:{sysconfig.get_path('purelib')}"}
        # Under another argv[0] Python does not find its virtual environment, so the packages are
        # named as well.
        command = [self.title, "-c", STEP, "orphan" if orphan else "", sys.executable, *args]
        with subprocess.Popen(
            command,
            executable=sys.executable,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as stepd:
            if self.cgroup is not None:
                (self.cgroup / "cgroup.procs").write_text(str(stepd.pid))
            if recorded:
                step_record(one.run_dir, recorded, stepd.pid, start_of(stepd.pid))
            out, _ = stepd.communicate("go\n", timeout=60)
        assert out, "the task said nothing"
        status, _, message = out.rstrip("\n").partition(" ")
        return int(status), message


def ask(
    one: Arbiter,
    job: int,
    step: Step | None = None,
    recorded: int = 0,
    proof_of: int = 0,
    cgroup: Path | None = None,
    orphan: bool = False,
) -> tuple[int, str]:
    """Register a new process for `job`: below a slurmstepd that is on record for a job, with a
    grant of a job, in a cgroup.
    """
    args = [CHILD, str(one.run_dir), str(job), str(proof_of), "0", str(cgroup or "")]
    return (step or Step()).run(one, recorded, orphan, args)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Arbiter]:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [grant(55), grant(56)])
        yield one


def test_recorded_step_daemon_above_is_enough(node: Arbiter) -> None:
    assert ask(node, 55, recorded=55) == (0, "")
    assert ask(node, 56, recorded=56) == (0, "")


def test_step_daemon_of_another_job_outweighs_a_good_proof(node: Arbiter) -> None:
    status, message = ask(node, 56, recorded=55, proof_of=56)
    assert status == errno.EPERM and "belongs to job 55, not to job 56" in message


def test_names_prove_nothing(node: Arbiter) -> None:
    """As sudo's, whose four ids are root's while it waits, and whose first word is the user's."""
    status, message = ask(node, 55, Step("slurmstepd: [55.batch]"))
    assert status == errno.EPERM and "below no slurmstepd of job 55" in message
    assert ask(node, 55, Step("slurmstepd: [55.batch]"), proof_of=55) == (0, "")


def hierarchy() -> Path | None:
    """A cgroup hierarchy in which this test may make groups."""
    root = Path("/sys/fs/cgroup")
    for candidate in (root, *(sorted(root.iterdir()) if root.is_dir() else [])):
        probe = candidate / f"qgpu-probe-{os.getpid()}"
        try:
            probe.mkdir()
            usable = (probe / "cgroup.procs").exists()
            probe.rmdir()
        except OSError:
            continue
        if usable and candidate.name != "cpuset":
            return candidate
    return None


@pytest.fixture
def groups() -> Iterator[Path]:
    """A scope as slurmd makes it, with the cgroups of two jobs: SLUIDs for names."""
    root = hierarchy()
    if root is None:
        pytest.skip("no cgroup hierarchy in which a group can be made")
    base = root / f"scope-qgpu-{os.getpid()}"
    made = [base / name for name in ("s55/step_0/user/task_0", "s55/step_0/slurm")]
    made += [base / "s55/step_extern/user/task_special", base / "s55/step_0/user/task_0/job_56"]
    made += [base / "s56/step_0/slurm", base / "slurm/uid_0/job_55/step_0"]
    for path in made:
        path.mkdir(parents=True, exist_ok=True)
    yield base
    for group in sorted(base.glob("**/"), key=lambda path: -len(path.parts)):
        group.rmdir()


def test_the_cgroup_of_the_step_daemon_is_the_jobs(node: Arbiter, groups: Path) -> None:
    """No ancestor and no grant: a daemon, or a session that pam_slurm_adopt moved there."""
    stepd = Step(cgroup=groups / "s55/step_0/slurm")
    with recorded_daemon(node, 55, stepd.cgroup):
        for place in ("step_0/user/task_0", "step_extern/user/task_special"):
            assert ask(node, 55, cgroup=groups / "s55" / place) == (0, ""), place
        status, message = ask(node, 56, cgroup=groups / "s55/step_0", proof_of=56)
        assert status == errno.EPERM and "belongs to job 55, not to job 56" in message


@contextlib.contextmanager
def recorded_daemon(one: Arbiter, job: int, cgroup: Path | None) -> Iterator[int]:
    """A slurmstepd of that job lives in that cgroup meanwhile."""
    with subprocess.Popen(["sleep", "600"]) as daemon:
        try:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(daemon.pid))
            step_record(one.run_dir, job, daemon.pid, start_of(daemon.pid))
            yield daemon.pid
        finally:
            daemon.kill()


MANY = 4200
THREADS = f"""
import threading
threading.stack_size(1 << 16)
go, ids, lock = threading.Event(), [], threading.Lock()

def wait():
    with lock:
        ids.append(threading.get_native_id())
    go.wait()

for _ in range({MANY}):
    threading.Thread(target=wait, daemon=True).start()
while len(ids) < {MANY}:
    pass
print(*ids, flush=True)
input()
"""


def test_records_of_one_job_hide_no_other_jobs(node: Arbiter) -> None:
    """4096 were read in all, so the jobs after them were not found. Threads play slurmstepds."""
    with subprocess.Popen(
        [sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdout is not None
        for pid in map(int, crowd.stdout.readline().split()):
            step_record(node.run_dir, 55, pid, start_of(pid))
        assert len(list((node.run_dir / "steps").iterdir())) == MANY
        assert ask(node, 55, proof_of=55) == (0, ""), "all are read before the next one comes"
        assert ask(node, 56, recorded=56) == (0, "")
        crowd.communicate("\n", timeout=60)


def test_an_orphan_stays_its_jobs(node: Arbiter, groups: Path) -> None:
    with recorded_daemon(node, 55, groups / "s55/step_0/slurm"):
        task = groups / "s55/step_0/user/task_0"
        assert ask(node, 55, cgroup=task, orphan=True) == (0, "")
    status, message = ask(node, 55, orphan=True, recorded=55)
    assert status == errno.EPERM and "it sent no grant" in message, "its slurmstepd ended"


def test_names_of_cgroups_prove_nothing(node: Arbiter, groups: Path) -> None:
    with recorded_daemon(node, 55, groups / "s55/step_0/slurm"):
        for liar in ("slurm/uid_0/job_55/step_0", "slurm/uid_0/job_55", ".", "s56/step_0/slurm"):
            status, message = ask(node, 55, cgroup=groups / liar)
            assert status == errno.EPERM and "is in no cgroup" in message, liar


def test_group_below_the_own_one_does_not_change_the_job(node: Arbiter, groups: Path) -> None:
    inner = groups / "s55/step_0/user/task_0/job_56"
    with (
        recorded_daemon(node, 55, groups / "s55/step_0/slurm"),
        recorded_daemon(node, 56, groups / "s56/step_0/slurm"),
    ):
        assert ask(node, 55, cgroup=inner) == (0, "")
        assert ask(node, 56, proof_of=56, cgroup=inner)[0] == errno.EPERM


def test_a_directory_of_two_jobs_is_nobodys(node: Arbiter, groups: Path) -> None:
    with (
        recorded_daemon(node, 55, groups / "s55/step_0/slurm"),
        recorded_daemon(node, 56, groups / "s55/step_extern"),
    ):
        assert ask(node, 55, cgroup=groups / "s55/step_0")[0] == errno.EPERM
        assert ask(node, 55, cgroup=groups / "s55/step_0", proof_of=55) == (0, "")


@pytest.mark.parametrize("mode, uid", [(0o664, 0), (0o646, 0), (0o644, 65534)])
def test_record_that_others_can_write_proves_nothing(node: Arbiter, mode: int, uid: int) -> None:
    me = os.getpid()
    path = step_record(node.run_dir, 55, me, start_of(me))
    path.chmod(mode)
    os.chown(path, uid, -1)
    assert ask(node, 55)[0] == errno.EPERM
    path.unlink()
    step_record(node.run_dir, 55, me, start_of(me) + 1)
    assert ask(node, 55)[0] == errno.EPERM, "another process had that number"
    os.chown(path.parent, 65534, -1)
    step_record(node.run_dir, 55, me, start_of(me))
    assert ask(node, 55)[0] == errno.EPERM, "its directory is not root's"
    os.chown(path.parent, 0, -1)
    assert ask(node, 55) == (0, "")


def _library() -> ctypes.CDLL:
    steps = ctypes.CDLL(str(ROOT / "build/test/libqgpu_steps.so"))
    steps.steps_job_dirs.restype = ctypes.c_char_p
    steps.steps_inside.restype = ctypes.c_size_t
    return steps


@pytest.mark.parametrize(
    "path",
    [
        *("/slurm_n1/uid_1/job_7", "/slurm_n1/uid_1/job_7/step_batch", "/s/s2R6G/step_0/slurm"),
        *("/a/step_1/b/step_2/slurm", "/step_1/slurm", "/", "", "/x/slurmd.service"),
        *("/a/step_/b", "/step_1/uid_5/x", "/uid_5/x", "/uid_5", "/../x/job_1/step_0"),
    ],
)
def test_both_languages_read_the_same(path: str) -> None:
    """enforcer/daemon/audit/steps.py has the same rule."""
    text, library = f"12:cpu,cpuacct:/x\n4:freezer:{path}\n0::{path}\n", _library()
    dirs = library.steps_job_dirs(text.encode()).decode().splitlines()
    assert tuple(dirs) == job_dirs(text)
    for place in (f"{path}/below", path, f"{path}x", "/x", "/slurm_n1/uid_1/job_7/y"):
        lines = f"4:freezer:{place}\n0::/\n"
        found = library.steps_inside(lines.encode(), "".join(f"{d}\n" for d in dirs).encode())
        assert found == depth_inside(lines, dirs), place


def _program(one: Arbiter, job: int, text: str, mode: int = 0o644, uid: int = 0) -> Path:
    path = one.run_dir / "grants" / f"{job}.run"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, uid, -1)
    return path


def test_a_descendant_of_the_program_with_the_grant_needs_no_descriptor(node):
    me = os.getpid()
    _program(node, 55, json.dumps({"pid": me, "start": start_of(me)}))
    assert ask(node, 55) == (0, "")
    status, why = ask(node, 56)
    assert status == errno.EPERM and "it sent no grant" in why, (
        "the same process is nobody of another job"
    )


@pytest.mark.parametrize(
    ("text", "mode", "uid"),
    [
        ('{"pid": %(me)d, "start": %(late)d}', 0o644, 0),  # a later process with that number
        ('{"pid": 1, "start": 0}', 0o644, 0),
        ('{"pid": %(me)d}', 0o644, 0),
        ("", 0o644, 0),
        ("x" * 100_000, 0o644, 0),
        ('{"pid": %(me)d, "start": %(start)d}', 0o664, 0),
        ('{"pid": %(me)d, "start": %(start)d}', 0o644, 65534),
    ],
)
def test_a_file_of_another_user_or_not_of_root_proves_nothing(node, text, mode, uid):
    start = start_of(os.getpid())
    names = {"me": os.getpid(), "start": start, "late": start + 1}
    _program(node, 55, text % names, mode, uid)
    status, why = ask(node, 55)
    assert status == errno.EPERM and "it sent no grant" in why


def test_the_child_of_another_program_proves_nothing(node):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            _program(node, 55, json.dumps({"pid": other.pid, "start": start_of(other.pid)}))
            assert ask(node, 55)[0] == errno.EPERM
        finally:
            other.kill()


def test_a_link_in_the_place_of_that_file_proves_nothing(node):
    me = os.getpid()
    path = _program(node, 55, json.dumps({"pid": me, "start": start_of(me)}))
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    assert ask(node, 55)[0] == errno.EPERM


def test_the_sealed_grant_still_proves_where_the_file_does_not(node):
    _program(node, 55, "{}")
    assert ask(node, 55, proof_of=55) == (0, "")
