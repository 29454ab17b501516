"""A user's FUSE file system that never answers, and claims to be root's: no check of root's asks
it, and none believes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuse_support import silent, silent_program, unseen

from enforcer.daemon.audit.mps import NAME
from gres.trusted import distrust

USER = 65534
HOOK = Path(__file__).parents[2] / "build/bin/qgpu-hook"
PATIENCE_S = 60
MPS = "from enforcer.daemon.audit.mps import is_mps_server as ask; print(ask({}))"
TRUST = "from gres.trusted import distrust; print(distrust({!r}))"

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of root's, which all can enter."""
    with tempfile.TemporaryDirectory(prefix="qgpu-fuse-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that may wait for a user's. Nothing but the end of that one ends them."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for one in found:
        one.kill()
        one.communicate()


def answer(started: list[subprocess.Popen[str]], *words: object) -> str:
    """What a program prints."""
    command = [*map(str, words)]
    one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    started.append(one)
    return one.communicate(timeout=PATIENCE_S)[0].strip()


def ask(started: list[subprocess.Popen[str]], *words: object) -> None:
    """Run a stat() until it waits for the user's program."""
    one = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, text=True)
    started.append(one)
    deadline = time.monotonic() + PATIENCE_S
    while "request_wait_answer" not in Path(f"/proc/{one.pid}/stack").read_text():
        assert one.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_the_file_of_an_mps_server_on_a_users_file_system(
    place: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = place / NAME
    shutil.copy("/bin/sleep", server)
    assert distrust(server) is None
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    with silent_program(server, server, USER) as pid:
        ask(started, "stat", "-L", f"/proc/{pid}/exe")
        assert answer(started, sys.executable, "-c", MPS.format(pid)) == "False"


def test_a_path_on_a_file_system_that_claims_to_be_roots(
    place: Path, started: list[subprocess.Popen[str]]
) -> None:
    mount = place / "mount"
    mount.mkdir()
    file = mount / "file"
    with unseen(mount, "nothing", USER) as there:
        ask(started, *there, "stat", mount)
        told = answer(started, *there, sys.executable, "-c", TRUST.format(str(file)))
    assert told == f"{mount} is on a FUSE file system of uid {USER}"


def test_a_directory_of_the_hook_that_claims_to_be_roots(
    place: Path, started: list[subprocess.Popen[str]]
) -> None:
    """The C parts have the same rule: hook, SPANK plugin, pam_qgpu.so."""
    mount = place / "mount"
    mount.mkdir()
    job = ("env", "SLURM_JOB_ID=7", "SLURM_JOB_GPUS=0", "SLURMD_NODENAME=n1")
    options = ("--run-dir", mount, "--deadline-ms", "1000", "--scontrol", "/bin/true")
    with unseen(mount, "nothing", USER) as there:
        ask(started, *there, "stat", mount)
        told = answer(started, *there, *job, HOOK, "prolog", *options)
    assert f"{mount} is on a FUSE file system of a user" in told


def test_roots_own_file_system_is_believed(place: Path) -> None:
    file = place / "file"
    file.touch()
    with silent(file, "flush"):
        assert str(distrust(file)) == f"{file} has mode 0666"
