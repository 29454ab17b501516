"""What pam_qgpu.so says to a session, by the cgroup that sshd's process is in: libpam itself asks.

Sessions with a grant are in tests/install/test_install_45_ssh.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support/node"))
from arbiter_support import ROOT
from steps_support import start_of, step_record
from test_arbiter_identity import groups

MODULE = ROOT / "build/lib/pam_qgpu.so"
PAM_SUCCESS, PAM_SESSION_ERR = 0, 14
__all__ = ["groups"]

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="plays sshd, which is root"),
]

# Enters a cgroup, opens a session as sshd does, and prints what came of it.
SSHD = """
import ctypes, json, os, sys
from pathlib import Path
folder, user, cgroup = sys.argv[1:]
if cgroup:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
libc, pam = ctypes.CDLL(None), ctypes.CDLL("libpam.so.0")
libc.calloc.restype = ctypes.c_void_p

class Message(ctypes.Structure):
    _fields_ = [("style", ctypes.c_int), ("text", ctypes.c_char_p)]

CONV = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(Message)),
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)
said = []

@CONV
def conv(count, messages, answers, _):
    said.extend(messages[i].contents.text.decode() for i in range(count))
    answers[0] = libc.calloc(count, 16)
    return 0

class Conv(ctypes.Structure):
    _fields_ = [("conv", CONV), ("data", ctypes.c_void_p)]

handle, talk = ctypes.c_void_p(), Conv(conv, None)
got = pam.pam_start_confdir(
    b"qgpu", user.encode(), ctypes.byref(talk), folder.encode(), ctypes.byref(handle)
)
assert got == 0, got
print(json.dumps([pam.pam_open_session(handle, 0), said]))
"""


def session(run_dir: Path, user: str, cgroup: Path | None = None) -> tuple[int, str]:
    """PAM's word for a session of that user in that cgroup, and what the user reads."""
    folder = run_dir / "pam.d"
    folder.mkdir(exist_ok=True)
    how = "[success=ok module_unknown=ignore ignore=ignore default=bad]"
    (folder / "qgpu").write_text(
        f"session {how} {MODULE} run_dir={run_dir}\nsession required pam_permit.so\n"
    )
    words = [sys.executable, "-c", SSHD, str(folder), user, str(cgroup or "")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    status, said = json.loads(done.stdout)
    return status, "\n".join(said)


def has_confdir() -> bool:
    return hasattr(ctypes.CDLL("libpam.so.0"), "pam_start_confdir")


@pytest.mark.skipif(not has_confdir(), reason="libpam before 1.4 reads /etc/pam.d alone")
def test_a_session_in_the_cgroup_of_a_job_without_a_record_is_refused(
    tmp_path: Path, groups: Path
) -> None:
    """It came in, without limits. Outside of all jobs, and as root, it still does."""
    for place in ("s55/step_extern/user/task_special", "slurm/uid_0/job_55/step_0"):
        status, said = session(tmp_path, "nobody", groups / place)
        assert status == PAM_SESSION_ERR, place
        assert said == (
            "qgpu: this session is in a job of Slurm that qgpu does not know, so it would run"
            " without limits. Use srun --jobid=JOB --overlap --pty bash, or tell the"
            " administrators."
        )
        assert session(tmp_path, "root", groups / place) == (PAM_SUCCESS, "")
    assert session(tmp_path, "nobody", groups) == (PAM_SUCCESS, "")
    assert session(tmp_path, "nobody") == (PAM_SUCCESS, "")
    with subprocess.Popen(["sleep", "600"]) as daemon:
        try:
            (groups / "s55/step_0/slurm/cgroup.procs").write_text(str(daemon.pid))
            step_record(tmp_path, 55, daemon.pid, start_of(daemon.pid))
            where = groups / "s55/step_extern/user/task_special"
            assert session(tmp_path, "nobody", where) == (PAM_SUCCESS, "")
        finally:
            daemon.kill()
