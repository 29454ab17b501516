"""The driver's checkpoint calls of the simulator, and processes to make them on.

Calls are made by this process, which has no driver of its own (no cuInit).
"""

from __future__ import annotations

import ctypes as c
import functools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim_tools import BUILD, nvml, spawn

from simulator.sim import Simulator

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
OK, INVALID_VALUE, NO_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
INVALID_DEVICE, ILLEGAL_STATE, NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 101, 401, 600, 800, 801
UNKNOWN = 999

# A process that evaluates the lines it is sent. `keep` allocates and fills, `same` says whether all
# of that is what it was.
TARGET = """
import hashlib, random, threading
g = Cuda(); kept = []
def at(p): return c.c_uint64(p if isinstance(p, int) else p.value)
def put(p, data): g.call("cuMemcpyHtoD_v2", at(p), data, c.c_size_t(len(data)))
def get(p, n):
    b = c.create_string_buffer(n)
    g.call("cuMemcpyDtoH_v2", b, at(p), c.c_size_t(n))
    return b.raw
def keep(size, part=None, p=None):
    p = p or g.alloc(size); data = os.urandom(part or size)
    put(p, data); kept.append((at(p).value, data)); return at(p).value
def same(): return all(get(p, len(data)) == data for p, data in kept)
"""
LOOP = """
print("up", flush=True)
for line in sys.stdin: print(eval(line), flush=True)
"""


class LockArgs(c.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("ms", c.c_uint), ("reserved0", c.c_uint), ("reserved1", c.c_uint64 * 7))


class Pair(c.Structure):
    """CUcheckpointGpuPair."""

    _fields_ = (("old", c.c_ubyte * 16), ("new", c.c_ubyte * 16))


class RestoreArgs(c.Structure):
    """CUcheckpointRestoreArgs."""

    _fields_ = (("pairs", c.POINTER(Pair)), ("count", c.c_uint), ("reserved", c.c_char * 52))


def uuid_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid[4:].replace("-", ""))


@functools.cache
def driver() -> c.CDLL:
    return c.CDLL(str(BUILD / "sim/libcuda.so.1"))


class Process:
    """A process as the target of the calls; what they answer is a CUresult. Without a simulator
    here: on the one that the environment names.
    """

    def __init__(self, sim: Simulator | None, pid: int) -> None:
        self.sim, self.pid = sim, pid

    def _call(self, name: str, *more: object) -> int:
        if self.sim:
            os.environ.update(self.sim.env())
        return int(getattr(driver(), f"cuCheckpointProcess{name}")(self.pid, *more))

    @property
    def state(self) -> int:
        got = c.c_int(-1)
        status = self._call("GetState", c.byref(got))
        assert status == OK, status
        return got.value

    def state_call(self) -> int:
        return self._call("GetState", c.byref(c.c_int()))

    def thread(self) -> int:
        got = c.c_int(-1)
        assert self._call("GetRestoreThreadId", c.byref(got)) == OK
        return got.value

    def lock(self, ms: int = 0) -> int:
        return self._call("Lock", c.byref(LockArgs(ms=ms)) if ms else None)

    def checkpoint(self) -> int:
        return self._call("Checkpoint", None)

    def restore(self, pairs: dict[str, str] | None = None) -> int:
        if not pairs:
            return self._call("Restore", None)
        made = (Pair * len(pairs))()
        for pair, (old, new) in zip(made, pairs.items(), strict=True):
            pair.old[:], pair.new[:] = uuid_bytes(old), uuid_bytes(new)
        args = RestoreArgs(pairs=made, count=len(pairs))
        return self._call("Restore", c.byref(args))

    def unlock(self) -> int:
        return self._call("Unlock", None)

    def leave(self) -> None:
        """Off its cards."""
        assert (self.lock(), self.checkpoint()) == (OK, OK)

    def come_back(self, pairs: dict[str, str] | None = None) -> None:
        assert (self.restore(pairs), self.unlock()) == (OK, OK)


class Target(Process):
    """A process that a test made; ask() evaluates an expression in it."""

    def __init__(self, sim: Simulator, before: str = "", **env: str) -> None:
        self.process: subprocess.Popen[str] = spawn(sim, TARGET + before + LOOP, **env)
        super().__init__(sim, self.process.pid)
        assert self.heard() == "up"

    def tell(self, expression: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.strip()

    def ask(self, expression: str) -> str:
        self.tell(expression)
        return self.heard()

    def waits(self) -> bool:
        """In a call of the driver (a futex), and not for the next line."""
        return Path(f"/proc/{self.pid}/syscall").read_text().startswith("202 ")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def target(sim: Simulator, before: str = "", **env: str) -> Iterator[Target]:
    made = Target(sim, before, **env)
    try:
        yield made
    finally:
        made.end()


def memory(sim: Simulator) -> list[tuple[int, dict[int, int]]]:
    """Of each card: bytes in use, and NVML's list of processes with theirs."""
    told = nvml(
        sim,
        """
        cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
        print(json.dumps([(n.nvmlDeviceGetMemoryInfo(card).used,
            {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(card)})
            for card in cards]))
        """,
    )
    return [(used, {int(pid): mem for pid, mem in all_.items()}) for used, all_ in json.loads(told)]
