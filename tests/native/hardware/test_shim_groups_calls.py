"""ioctl() of a program under the shim answers as ever: results, errno, handlers, vfork, before
any constructor.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
CALLS = s.BUILD / "test" / "shim-calls"
EARLY = s.BUILD / "test" / "early-calls.so"


def run(*preload: Path, fds: tuple[int, ...] = (), **env: str) -> str:
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": " ".join(map(str, preload)), **env}
    done = subprocess.run(
        [str(CALLS)],
        env=environment,
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stderr == ""
    return done.stdout


def test_the_same_with_and_without_the_shim(tmp_path: Path) -> None:
    plain = run()
    assert "storm 1 0 0" in plain and "answers 0 77 3" in plain
    assert run(s.SHIM) == plain, "a process without a grant"
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP))
    assert run(s.SHIM, fds=(fd,), QGPU_GRANT_FD=str(fd)) == plain, "a process of a job"
    os.close(fd)


def test_before_the_shims_constructor(tmp_path: Path) -> None:
    """A library that is loaded behind the shim is initialised before it."""
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP))
    out = run(s.SHIM, EARLY, fds=(fd,), QGPU_GRANT_FD=str(fd))
    assert out.splitlines()[:2] == ["early 0 77 3", "early_driver -1 25 0"]
    os.close(fd)
