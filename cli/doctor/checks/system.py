"""Checks of the machine: the kernel's abilities, the shim as a file, the arbiter as a process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.result import Check
from enforcer.daemon.limits.probe import cgroup2_root

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; Python has no name for it
SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
GLOBAL_EXPEDITED = 0x2 | 0x4  # the command and its registration
POLICIES = {os.SCHED_OTHER: "SCHED_OTHER", os.SCHED_FIFO: "SCHED_FIFO", os.SCHED_RR: "SCHED_RR"}
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuInit"


def sealing(known: Known) -> Check:
    """Whether memory can be shared so that a job may read it and root write it."""
    fd = os.memfd_create("qgpu-doctor", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        )
    except OSError as error:
        return Check(
            "sealing",
            "fail",
            f"the kernel refuses F_SEAL_FUTURE_WRITE: {error.strerror}",
            "Linux 5.1 or later",
        )
    finally:
        os.close(fd)
    return Check("sealing", "ok", "memfd with F_SEAL_FUTURE_WRITE")


def membarrier(known: Known) -> Check:
    """Whether launches can be counted without a locked instruction."""
    number = SYS_MEMBARRIER.get(platform.machine())
    mask = ctypes.CDLL(None).syscall(number, 0, 0, 0) if number else -1
    if mask >= 0 and mask & GLOBAL_EXPEDITED == GLOBAL_EXPEDITED:
        return Check("membarrier", "ok", "GLOBAL_EXPEDITED: a launch costs no locked instruction")
    return Check(
        "membarrier", "warn", "not available: a launch costs a few ns more", "Linux 4.16 or later"
    )


def cgroups(known: Known) -> Check:
    """Which version of cgroups is mounted."""
    root = cgroup2_root()
    if root is not None:
        return Check("cgroups", "ok", f"version 2 at {root}")
    mounts = Path("/proc/self/mounts").read_text(errors="replace")
    if " cgroup " in mounts:
        todo = "nothing, unless you want the driver's own limits: they need version 2 alone"
        return Check(
            "cgroups",
            "ok",
            "version 1: jobs are told apart, but without the driver's memory limits",
            todo,
        )
    return Check(
        "cgroups",
        "warn",
        "none is mounted: jobs are told apart by slurmstepd alone",
        "use proctrack/cgroup",
    )


def file_fault(path: Path, host: Host) -> str:
    """What is wrong with a library as a file; empty if nothing is."""
    try:
        info = path.stat()
    except OSError as error:
        return str(error.strerror)
    doubt = host.distrust(path)
    if doubt:
        return f"it must belong to root and be writable by it alone, but {doubt}"
    return "" if info.st_mode & 0o004 else "users cannot read it"


def shim_fault(path: Path, host: Host) -> str:
    """What is wrong with the shim: as a file, and when it is loaded; empty if nothing is."""
    fault = file_fault(path, host)
    if fault:
        return fault
    # In a process of its own, without a grant: it must load and pass through.
    env = {key: value for key, value in os.environ.items() if not key.startswith("QGPU_GRANT")}
    command = [sys.executable, "-I", "-c", LOAD, str(path)]
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=20, check=False
        )
    except subprocess.TimeoutExpired:
        return "it does not load within 20 s"
    except OSError:
        return ""  # this interpreter cannot be run again, which is no fault of the shim
    last = done.stderr.strip().split("\n")[-1]
    return "" if done.returncode == 0 else f"it does not load: {last or done.returncode}"


def arbiter_policies(run_dir: str, host: Host) -> set[str] | None:
    """Scheduling policies of the threads of the arbiter that serves this directory; None if it is
    not seen.
    """
    for process in host.daemons():
        if (
            not process.words
            or not process.words[0].endswith("qgpu-arbiter")
            or run_dir not in process.words
        ):
            continue
        try:
            tasks = host.proc / str(process.pid) / "task"
            threads = [int(thread.name) for thread in tasks.iterdir()]
            return {POLICIES.get(os.sched_getscheduler(tid), "other") for tid in threads}
        except OSError:
            continue
    return None
