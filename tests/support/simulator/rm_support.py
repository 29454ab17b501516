"""Shared by tests of the simulated control device: a simulator with
one, and clients under control.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import make, spawn, start

from simulator.sim import Interval, Simulator
from simulator.simcontrol import ControlCall, read_control_log

PIDFD_GETFD = 438
NO_DEVICE = "this machine allows no control device of the simulator (FUSE)"

# A client process that evaluates the lines it is sent; g: CUDA, s: a stream, r: its file of the
# control device, C: its client, gr/up/down: the groups of its first context, sub: its subdevice.
LOOP = """
    import sim_rm, signal
    from sim_rm import *
    g = Cuda(); s = g.stream(); r = Rm(); C = r.client
    dev, gr, up, down = [h for h in r.of_class(DEVICE) + r.of_class(GROUP)]
    sub = r.of_class(SUBDEVICE)[0]
    print("up", flush=True)
    for line in sys.stdin: print(eval(line), flush=True)
"""


@contextlib.contextmanager
def simulator(directory: Path, **options: object) -> Iterator[Simulator]:
    make("build/bin/qgpu-simgpu", "build/sim/libcuda.so.1", "build/sim/libnvidia-ml.so.1")
    directory.mkdir(exist_ok=True)
    settings = {
        "memory_mib": 4096,
        "minor_base": os.getpid() % 1000 * 16,
        "control_log": directory / "rm.log",
    }
    with start(directory / "sim", **{**settings, **options}) as sim:
        if sim.control_device() is None:
            pytest.skip(NO_DEVICE)
        yield sim


class Client:
    """A process on the simulator; ask() evaluates an expression in it."""

    def __init__(self, sim: Simulator, before: str = "", **env: str) -> None:
        head, loop = textwrap.dedent(LOOP).split("print(", 1)
        code = head + textwrap.dedent(before) + "\nprint(" + loop
        self.process: subprocess.Popen[str] = spawn(sim, code, **env)
        assert self.process.stdout
        assert self.process.stdout.readline() == "up\n", self.process.communicate()

    @property
    def client(self) -> int:
        return self.number("C")

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, expression: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, expression: str) -> str:
        self.tell(expression)
        return self.heard()

    def number(self, expression: str) -> int:
        return int(self.ask(expression))

    def end(self) -> None:
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        """Without waiting for the end of its pipes: a child of its own may keep them."""
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


@contextlib.contextmanager
def clients(sim: Simulator, count: int = 1, before: str = "") -> Iterator[list[Client]]:
    made: list[Client] = []
    try:
        for _ in range(count):
            made.append(Client(sim, before))
        yield made
    finally:
        for client in made:
            if client.process.poll() is None:
                client.kill()


def taken(pid: int, number: int) -> int:
    """A process's descriptor by pidfd_getfd(2), as a daemon with the right to trace it may."""
    pidfd = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.syscall(PIDFD_GETFD, pidfd, number, 0))
        assert fd >= 0, os.strerror(ctypes.get_errno())
        return fd
    finally:
        os.close(pidfd)


def pieces(sim: Simulator, pid: int) -> list[Interval]:
    """What a process executed; the simulator is stopped, so that all of it is in the trace."""
    sim.stop()
    return [piece for piece in sim.intervals() if piece.pid == pid]


def log_of(sim: Simulator) -> list[ControlCall]:
    assert sim.config.control_log
    return read_control_log(sim.config.control_log)
