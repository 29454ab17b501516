"""/proc of processes whose threads differ in state, and of frozen cgroups."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enforcer.daemon.audit import procs
from enforcer.daemon.audit.procs import (
    ThreadBudget,
    alive,
    cgroups_of,
    start_ticks,
    stop_waits,
    stopped,
)

LEADERLESS = """
import ctypes, os, threading, time
threading.Thread(target=lambda: (print("on", flush=True), time.sleep(60))).start()
time.sleep(0.05)
ctypes.CDLL(None).pthread_exit(None)
"""
THREADS = """
import threading, time
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,)).start()
print("on", flush=True)
time.sleep(60)
"""
PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 7, 17, 0x4206, 0x4207, 0x40000000


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def program() -> Iterator[Callable[[str], int]]:
    made: list[subprocess.Popen[bytes]] = []

    def run(text: str) -> int:
        made.append(subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE))
        assert made[-1].stdout is not None and made[-1].stdout.readline() == b"on\n"
        return made[-1].pid

    yield run
    for process in made:
        process.kill()
        process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_process_whose_first_thread_ended_is_alive_and_the_same(program):
    pid = program(LEADERLESS)
    began = start_ticks(pid)
    until(lambda: state(pid) == "Z")
    assert alive(pid) and start_ticks(pid) == began is not None and not stopped(pid)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert start_ticks(pid) is None and not stopped(pid), "a zombie indeed"


def test_one_stopped_thread_does_not_make_a_stopped_process(program):
    pid = program(THREADS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, pid, None, None):
        pytest.skip("ptrace is not allowed here")
    assert libc.ptrace(PTRACE_INTERRUPT, pid, None, None) == 0
    until(lambda: state(pid) == "t")
    assert not stopped(pid) and not stop_waits(pid)
    os.waitpid(pid, WALL)
    libc.ptrace(PTRACE_CONT, pid, None, None)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, WALL)
    libc.ptrace(PTRACE_DETACH, pid, None, ctypes.c_void_p(signal.SIGSTOP))
    until(lambda: stopped(pid))


# ---- made up -------------------------------------------------------------------------------------


def process(proc: Path, states: str, cgroup: str = "0::/\n", pending: int = 0) -> None:
    """Process 10 with one thread of each state, all in this cgroup."""
    for index, letter in enumerate(states):
        thread = proc / "10/task" / str(10 + index)
        thread.mkdir(parents=True)
        stat = f"{10 + index} (a) b) {letter} " + " ".join(str(field) for field in range(4, 30))
        for directory in [thread, *([proc / "10"] if not index else [])]:
            (directory / "stat").write_text(stat)
            over = letter in "ZX"
            (directory / "cgroup").write_text("6:freezer:/\n0::/\n" if over else cgroup)
            (directory / "status").write_text(
                f"PPid:\t1\nUid:\t7\t7\t7\t7\nShdPnd:\t{pending:016x}\n"
            )


@pytest.mark.parametrize(
    ("states", "lives", "stops"),
    [
        ("T", True, True),
        ("TtT", True, True),
        ("TS", True, False),
        ("ZT", True, True),
        ("ZR", True, False),
        ("TZX", True, True),
        ("ZX", False, False),
        ("Z", False, False),
        ("D", True, False),
    ],
)
def test_states_of_threads(tmp_path, states, lives, stops):
    process(tmp_path, states)
    assert alive(10, tmp_path) is lives and start_ticks(10, tmp_path) == (22 if lives else None)
    assert stopped(10, tmp_path) is stops


def test_look_ends_at_the_first_thread_that_goes_on(tmp_path, monkeypatch):
    process(tmp_path, "S" * 50)
    read: list[Path] = []
    stat = procs._stat
    monkeypatch.setattr(procs, "_stat", lambda path: (read.append(path), stat(path))[1])
    assert stopped(10, tmp_path) is False and not stop_waits(10, tmp_path)
    assert len(read) == 2


@pytest.mark.parametrize(
    ("most", "told"), [(6, [True, True]), (5, [True, None]), (0, [None, None])]
)
def test_one_sample_reads_a_bounded_number_of_threads(tmp_path, most, told):
    process(tmp_path, "TTTT")
    budget = ThreadBudget(most)
    for _ in range(2):
        assert [stopped(10, tmp_path, budget) for _ in range(2)] == told
        budget.renew()
    assert stop_waits(10, tmp_path, ThreadBudget(0)), "of what could be read nothing goes on"


def test_who_goes_on_is_seen_however_many_threads_others_have(tmp_path):
    process(tmp_path, "SSSS")
    assert stopped(10, tmp_path, ThreadBudget(0)) is False
    assert not stop_waits(10, tmp_path, ThreadBudget(0))


def test_zombie_with_more_threads_than_the_budget_counts_as_alive(tmp_path, monkeypatch):
    process(tmp_path, "Z" * 20)
    assert not alive(10, tmp_path)
    monkeypatch.setattr(procs.ThreadBudget.__init__, "__defaults__", (10,))
    assert alive(10, tmp_path)


@pytest.mark.parametrize(
    ("states", "waits"), [("D", True), ("TD", True), ("DS", False), ("R", False)]
)
def test_stop_that_the_kernel_holds_back(tmp_path, states, waits):
    process(tmp_path, states)
    assert stop_waits(10, tmp_path) is waits


def test_pending_stop_waits(tmp_path):
    process(tmp_path, "R", pending=1 << (signal.SIGSTOP - 1))
    assert stop_waits(10, tmp_path)


def test_cgroup_of_a_process_whose_first_thread_ended_is_that_of_the_others(tmp_path):
    process(tmp_path, "ZS", "6:freezer:/slurm/uid_1/job_7/step_0\n0::/a\n")
    assert cgroups_of(10, tmp_path) == "6:freezer:/slurm/uid_1/job_7/step_0\n0::/a\n"


@pytest.fixture
def frozen(tmp_path: Path) -> Callable[..., bool]:
    """Whether process 10 in `cgroup` counts as stopped, with this file below the hierarchy that
    is mounted.
    """

    def tell(kind: str, options: str, cgroup: str, file: str, text: str) -> bool:
        root, proc = tmp_path / "cg", tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "self/mounts").write_text(f"cgroup {root} {kind} {options} 0 0\n")
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
        process(proc, "SD", cgroup)
        return stopped(10, proc)

    return tell


UNIFIED = ("cgroup2", "rw,nosuid", "0::/s.scope/job_7/step_0\n")
FREEZER = ("cgroup", "rw,freezer", "9:devices:/x\n6:freezer:/slurm/job_7/step_0\n0::/\n")


@pytest.mark.parametrize(
    ("system", "file", "text", "told"),
    [
        (UNIFIED, "s.scope/job_7/step_0/cgroup.events", "populated 1\nfrozen 1\n", True),
        (UNIFIED, "s.scope/job_7/cgroup.events", "populated 1\nfrozen 1\n", True),
        (UNIFIED, "s.scope/job_7/step_0/cgroup.events", "populated 1\nfrozen 0\n", False),
        (UNIFIED, "s.scope/job_7/step_1/cgroup.events", "populated 1\nfrozen 1\n", False),
        (FREEZER, "slurm/job_7/step_0/freezer.state", "FROZEN\n", True),
        (FREEZER, "slurm/job_7/freezer.state", "FROZEN\n", True),
        (FREEZER, "slurm/job_7/step_0/freezer.state", "FREEZING\n", False),
        (FREEZER, "x/freezer.state", "FROZEN\n", False),
        (("cgroup2", "rw", "0::/../job_7\n"), "../job_7/cgroup.events", "frozen 1\n", False),
    ],
)
def test_frozen_cgroup_stops_its_processes(frozen, system, file, text, told):
    assert frozen(*system, file, text) is told


def test_thread_in_a_cgroup_that_is_not_frozen_goes_on(tmp_path, frozen):
    assert frozen(*UNIFIED, "s.scope/job_7/step_0/cgroup.events", "frozen 1\n")
    (tmp_path / "proc/10/task/11/cgroup").write_text("0::/s.scope/job_7\n")
    assert not stopped(10, tmp_path / "proc")
