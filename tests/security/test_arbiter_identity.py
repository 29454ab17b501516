"""Whose process is it: the arbiter reads cgroup and ancestry itself and believes nothing else."""

from __future__ import annotations

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
STEP = (
    "import subprocess, sys; subprocess.run(['python', '-c', *sys.argv[2:]], "
    "executable=sys.argv[1])"
)


def ask(
    one: Arbiter, job: int, step: str = "", proof_of: int = 0, cgroup: str = "", uid: int = 0
) -> tuple[int, str]:
    """Register a new process for `job`: below a process called `step`, with a grant of a job, in
    a cgroup.
    """
    args = [CHILD, str(one.run_dir), str(job), str(proof_of), str(uid), cgroup]
    command = [step or sys.executable, "-c", STEP, sys.executable, *args]
    # Under another argv[0] Python does not find its virtual environment, so the packages are named
    # as well.
    env = os.environ | {"PYTHONPATH": f"{NATIVE}:{ROOT}:{sysconfig.get_path('purelib')}"}
    done = subprocess.run(
        command, executable=sys.executable, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout, done.stderr
    status, _, message = done.stdout.rstrip("\n").partition(" ")
    return int(status), message


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Arbiter]:
    with arbiter(tmp_path) as one, one.link() as link:
        link.sync([settings()], [grant(55), grant(56)])
        yield one


def test_step_daemon_above_is_enough(node: Arbiter) -> None:
    assert ask(node, 55, "slurmstepd: [55.batch]") == (0, "")
    assert ask(node, 55, "slurmstepd: [55.0]") == (0, "")


def test_step_daemon_of_another_job_outweighs_a_good_proof(node: Arbiter) -> None:
    status, message = ask(node, 56, "slurmstepd: [55.batch]", proof_of=56)
    assert status == errno.EPERM and "belongs to job 55, not to job 56" in message


@pytest.mark.parametrize(
    "name", ["slurmstepd: [55x.batch]", "slurmstepd: [.batch]", "my slurmstepd: [55.batch]"]
)
def test_other_names_prove_nothing(node: Arbiter, name: str) -> None:
    status, message = ask(node, 55, name)
    assert status == errno.EPERM and "below no slurmstepd of job 55" in message
    assert ask(node, 55, name, proof_of=55) == (0, "")


def test_own_name_proves_nothing(node: Arbiter) -> None:
    """Only ancestors count: a process may call itself what it likes."""
    # Under another argv[0] Python does not find its virtual environment, so the packages are named
    # as well.
    env = os.environ | {"PYTHONPATH": f"{NATIVE}:{ROOT}:{sysconfig.get_path('purelib')}"}
    command = ["slurmstepd: [55.batch]", "-c", CHILD, str(node.run_dir), "55", "0", "0", ""]
    done = subprocess.run(
        command, executable=sys.executable, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(str(errno.EPERM)), done.stdout + done.stderr


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
    root = hierarchy()
    if root is None:
        pytest.skip("no cgroup hierarchy in which a group can be made")
    base = root / f"slurm-qgpu-{os.getpid()}"
    inner = base / "job_55" / "step_0" / "job_56"
    inner.mkdir(parents=True)
    yield base
    for group in (inner, inner.parent, inner.parents[1], base):
        group.rmdir()


def test_cgroup_names_the_job(node: Arbiter, groups: Path) -> None:
    step = groups / "job_55" / "step_0"
    assert ask(node, 55, cgroup=str(step)) == (0, "")
    status, message = ask(node, 56, "slurmstepd: [56.batch]", proof_of=56, cgroup=str(step))
    assert status == errno.EPERM and "belongs to job 55, not to job 56" in message


def test_group_below_the_own_one_does_not_change_the_job(node: Arbiter, groups: Path) -> None:
    inner = groups / "job_55" / "step_0" / "job_56"
    assert ask(node, 55, cgroup=str(inner)) == (0, "")
    assert ask(node, 56, proof_of=56, cgroup=str(inner))[0] == errno.EPERM


def _start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _program(one: Arbiter, job: int, text: str, mode: int = 0o644, uid: int = 0) -> Path:
    path = one.run_dir / "grants" / f"{job}.run"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, uid, -1)
    return path


def test_a_descendant_of_the_program_with_the_grant_needs_no_descriptor(node):
    me = os.getpid()
    _program(node, 55, json.dumps({"pid": me, "start": _start_of(me)}))
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
    start = _start_of(os.getpid())
    names = {"me": os.getpid(), "start": start, "late": start + 1}
    _program(node, 55, text % names, mode, uid)
    status, why = ask(node, 55)
    assert status == errno.EPERM and "it sent no grant" in why


def test_the_child_of_another_program_proves_nothing(node):
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            _program(node, 55, json.dumps({"pid": other.pid, "start": _start_of(other.pid)}))
            assert ask(node, 55)[0] == errno.EPERM
        finally:
            other.kill()


def test_a_link_in_the_place_of_that_file_proves_nothing(node):
    me = os.getpid()
    path = _program(node, 55, json.dumps({"pid": me, "start": _start_of(me)}))
    path.rename(path.with_name("real"))
    path.symlink_to("real")
    assert ask(node, 55)[0] == errno.EPERM


def test_the_sealed_grant_still_proves_where_the_file_does_not(node):
    _program(node, 55, "{}")
    assert ask(node, 55, proof_of=55) == (0, "")
