"""A user in own namespaces: number 0 there, with hidden files and false files of root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_support as s

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.geteuid() != 0, reason="a grant is root's")]

USER = 12345
LAUNCH = "launch 0 0x10 1"
# Root's interpreter becomes the user, in name spaces of his own where `own` is 1: he may not be
# able to start it.
USERS = """
import ctypes, fcntl, os, socket, subprocess, sys
own, uid, program, shim = sys.argv[1] == "1", int(sys.argv[2]), sys.argv[3], sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
libc.prctl(4, 1, 0, 0, 0)
if own:
    if libc.unshare(0x10020000):
        sys.exit("no user name spaces here")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
"""
GO = """
os.execve(program, [program], os.environ | {"LD_PRELOAD": shim})
"""
# Forges a grant of his own in a sealed memory file.
FORGE = """
fd = os.memfd_create("grant", os.MFD_ALLOW_SEALING)
os.write(fd, bytes.fromhex(sys.argv[5]))
fcntl.fcntl(fd, 1033, 15)
os.set_inheritable(fd, True)
os.environ["QGPU_GRANT_FD"] = str(fd)
"""
# Hides the arbiter; listens in its place.
HIDE = """
subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[5]], check=True)
"""
LISTEN = """
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[5] + "/enforcer.sock"); listener.listen(1000); listener.set_inheritable(True)
os.set_inheritable(listener.fileno(), True)
"""
HIDDEN = {
    "hide": (HIDE, "is not there"),
    "listen": (HIDE + LISTEN, "the process at its socket is not root"),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can read, with copies of what is built."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-names-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        for file in (s.SHIM, s.PROBE):
            (directory / file.name).write_bytes(file.read_bytes())
            (directory / file.name).chmod(0o755)
        (directory / "stub").mkdir(mode=0o755)
        shutil.copy(s.STUB, directory / "stub")
        (directory / "run").mkdir(mode=0o755)
        yield directory


@pytest.fixture
def listens(place: Path) -> Iterator[s.FakeArbiter]:
    """Root's arbiter, whom everybody may ask."""
    running = s.FakeArbiter(place / "run", s.CAP)
    (place / "run/enforcer.sock").chmod(0o666)
    yield running
    running.stop()


def start(
    place: Path,
    script: str,
    *words: str,
    env: dict[str, str],
    fds: tuple[int, ...] = (),
    own: bool = True,
) -> s.Probe:
    """The program under the shim, as the user started it."""
    start_words = [
        str(int(own)),
        str(USER),
        str(place / s.PROBE.name),
        str(place / s.SHIM.name),
        *words,
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", USERS + script + GO, *start_words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={"PATH": os.environ["PATH"], "QGPU_TEST_STUB": str(place / "stub" / s.STUB.name)} | env,
        pass_fds=fds,
        cwd="/",
    )
    return s.Probe(process)


def grant(place: Path, uid: int = USER) -> bytes:
    """A grant for the programs of this place."""
    return s.grant_bytes(place / "run", s.CAP, driver=place / "stub" / s.STUB.name, uid=uid)


@pytest.mark.parametrize("uid", [USER, 0])
def test_a_grant_that_the_user_made_as_root_of_his_namespace(place: Path, uid: int) -> None:
    probe = start(place, FORGE, grant(place, uid).hex(), env={})
    assert probe.ask("init") == s.NOT_PERMITTED
    assert "root did not make it" in probe.finish()


@pytest.mark.parametrize("how", HIDDEN)
def test_a_socket_that_the_user_hid(place: Path, listens: s.FakeArbiter, how: str) -> None:
    """The true arbiter runs and would register the program. Who does not see it gets no context."""
    script, why = HIDDEN[how]
    fd = s.sealed("grant", grant(place))
    probe = start(place, script, str(place / "run"), env={"QGPU_GRANT_FD": str(fd)}, fds=(fd,))
    os.close(fd)
    assert probe.ask("init") == 0
    assert probe.ask("ctx 0") == s.OUT_OF_MEMORY
    assert probe.ask("ctx 0") == s.OUT_OF_MEMORY, "ten seconds after cuInit are over as well"
    error = probe.finish()
    assert "no device memory" in error and why in error
    assert listens.card.asked == []


@pytest.mark.parametrize("own", [False, True])
def test_the_true_arbiter_is_known(place: Path, listens: s.FakeArbiter, own: bool) -> None:
    """A program in a container without root is governed as any other."""
    fd = s.sealed("grant", grant(place))
    probe = start(place, "", env={"QGPU_GRANT_FD": str(fd)}, fds=(fd,), own=own)
    os.close(fd)
    s.started(probe)
    assert probe.ask(LAUNCH) == 0
    assert listens.card.proc("launches") == 1
    assert probe.finish() == ""


@pytest.mark.parametrize("how", ["descriptor", "file"])
def test_a_grant_of_another_user(place: Path, how: str) -> None:
    content = grant(place, USER + 1)
    path = place / "4711.grant"
    path.write_bytes(content)
    fd = s.sealed("grant", content)
    env = {"QGPU_GRANT_FD": str(fd)} if how == "descriptor" else {"QGPU_GRANT": str(path)}
    probe = start(place, "", env=env, fds=(fd,), own=False)
    os.close(fd)
    assert probe.ask("init") == s.NOT_PERMITTED
    assert f"it is of user {USER + 1}, and this process runs as user {USER}" in probe.finish()
