"""Shared by tests of programs under shim, arbiter and simulated card: running them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from bench.harness.node import Rig, wait_for
from enforcer.wire.link import TenantStats

HEAD = (
    "import ctypes as c, os, sys, time, threading, subprocess, signal\n"
    "from sim_client import Cuda\nGIB, MIB, GO = 1 << 30, 1 << 20, {signal.SIGUSR1}\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, GO)\n"
)
ONLINE, OFFLINE = 1, 2
HELPERS = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "simulator"),
    "PYTHONUNBUFFERED": "1",
}


def python(
    rig: Rig, code: str, job: int = OFFLINE, stdin: int = subprocess.DEVNULL, **env: str
) -> subprocess.Popen[str]:
    """Python code as a task of the job."""
    argv = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    return rig.spawn(argv, rig.grants[job], env=HELPERS | env, stdin=stdin)


def ended(process: subprocess.Popen[str], seconds: float = 20) -> tuple[str, str]:
    """What it printed, and its stderr; fails if it did not end well."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, (process.returncode, out, err)
    return out.strip(), err


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tenant(rig: Rig, job: int = OFFLINE) -> TenantStats:
    return next(t for t in rig.link.stats() if t.job_id == job)


@contextlib.contextmanager
def busy_online(rig: Rig) -> Iterator[None]:
    """An online tenant that works without pause: offline's gate is closed, also where the
    machine stalls it.
    """
    rig.settings["idle_release_ms"] = 60_000
    rig.sync()
    process = rig.workload(rig.grants[ONLINE], "--length", "600", "--iters", "100000")
    wait_for("online works", lambda: tenant(rig, ONLINE).launches > 20)
    yield
    assert process.poll() is None, "it worked all the while"
    process.kill()
    process.communicate()
    del rig.settings["idle_release_ms"]
    rig.sync()
