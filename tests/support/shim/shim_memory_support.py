"""Support of test_shim_memory_*.py: programs that stop after each step, a simulated card, its
ledger.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import shim_support as s

from simulator.sim import SimConfig, Simulator

MIB = s.MIB
NVML = s.BUILD / "sim" / "libnvidia-ml.so.1"
DRIVER = s.BUILD / "sim" / "libcuda.so.1"
NVML_SHIM = s.BUILD / "shim" / "libnvidia-ml.so.1"
CAP = 256 * MIB
CONTEXT = 300 * MIB


def card_uuid(sim: Simulator, index: int = 0) -> str:
    """UUID of a simulated card, asked in a process of its own (the library keeps its
    connection).
    """
    code = (
        "import ctypes as c, sys; n = c.CDLL(sys.argv[1]); n.nvmlInit_v2(); d = c.c_void_p(); "
        "n.nvmlDeviceGetHandleByIndex_v2(int(sys.argv[2]), c.byref(d)); "
        "b = c.create_string_buffer(96); n.nvmlDeviceGetUUID(d, b, 96); print(b.value.decode())"
    )
    return _ask(sim, code, str(index))


def card_used(sim: Simulator) -> int:
    """Bytes that are in use on the first simulated card, contexts included."""
    code = (
        "import ctypes as c, sys; n = c.CDLL(sys.argv[1]); n.nvmlInit_v2(); d = c.c_void_p(); "
        "n.nvmlDeviceGetHandleByIndex_v2(0, c.byref(d)); b = (c.c_uint64 * 3)(); "
        "n.nvmlDeviceGetMemoryInfo(d, b); print(b[2])"
    )
    return int(_ask(sim, code))


def _ask(sim: Simulator, code: str, *words: str) -> str:
    """What a Python program prints that asks the simulated NVML."""
    done = subprocess.run(
        ["python3", "-c", code, str(NVML), *words],
        env=os.environ | sim.env(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def sanitizer_and_twin(*names: str, kind: str = "asan") -> str:
    """The shim, or these libraries of it, under AddressSanitizer and UBSan (or "tsan"), in a
    program that is not: the sanitizer's own library comes first.
    """
    twins = [s.BUILD / "test" / f"shim-{kind}" / name for name in names or ("libcuda.so.1",)]
    libraries = subprocess.run(
        ["ldd", str(twins[0])], capture_output=True, text=True, check=True
    ).stdout
    sanitizer = next(line.split()[2] for line in libraries.splitlines() if f"lib{kind}" in line)
    return ":".join([sanitizer, *map(str, twins)])


class SimArbiter(s.FakeArbiter):
    """Answers registrations for the simulated cards."""

    def __init__(self, run_dir: Path, uuids: list[str], cap: int) -> None:
        super().__init__(run_dir, [cap] * len(uuids), uuids=uuids)

    def slot_of(self, pid: int) -> int:
        """The slot of a process."""
        return self.slots[pid]

    def used(self, pid: int, card: int = 0) -> int:
        """Bytes that a process shows in its slot of a card; nothing may be pending."""
        slot, tenant = self.slot_of(pid), self.tenants[self.uuids[card]]
        assert tenant.proc("mem_pending", slot) == 0
        return tenant.proc("mem_used", slot)

    def name_slot(self, pid: int) -> None:
        """Writes the pid into the process's slots."""
        for tenant in self.tenants.values():
            tenant.job_page.procs[self.slot_of(pid)].pid = pid


class Program:
    """One of the small programs, under the shim."""

    def __init__(self, node: Node, words: list[str], environment: dict[str, str]) -> None:
        self.node = node
        self.governed = "LD_PRELOAD" in environment
        fd = s.sealed("grant", node.grant())
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=os.environ
            | node.sim.env()
            | environment
            | {"QGPU_GRANT_FD": str(fd), "QGPU_TEST_NVML": str(NVML)},
            pass_fds=(fd,),
        )
        os.close(fd)

    def line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout
        text = self.process.stdout.readline().strip()
        assert text, self.end()
        return text

    def at(self, name: str) -> int:
        """Waits for a step; the bytes that the process holds by the card."""
        words = self.line().split()
        assert words[0] == name, words
        # on a busy machine cuInit may return before the answer
        if name == "begin" and self.governed:
            self.node.until(lambda: self.process.pid in self.node.arbiter.slots)
            self.node.until(self.node.all_registered)
            self.node.arbiter.name_slot(self.process.pid)
        return int(words[1])

    def on(self) -> None:
        """Lets it continue."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def used(self, card: int = 0) -> int:
        """The bytes in its slot of a card."""
        return self.node.arbiter.used(self.process.pid, card)

    def pass_by(self, name: str, used: int) -> None:
        """A step at which slot and card both have this many bytes."""
        truth = self.at(name)
        assert (name, self.used() / MIB, truth / MIB) == (name, used / MIB, used / MIB)
        self.on()

    def end(self) -> str:
        """Its end: its stderr; fails if it did not end well."""
        out, error = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, (self.process.returncode, out, error)
        return error


class Node:
    """Simulated cards, an arbiter, and a cap."""

    def __init__(self, directory: Path, cap: int = CAP, cards: int = 1) -> None:
        self.run_dir = directory
        self.cap = cap
        self.card_flags = 0  # of the grants
        (directory / "sim").mkdir()
        self.sim = Simulator.start(
            SimConfig(directory / "sim", "mem", trace=False, cards=cards), s.BUILD
        )
        self.uuids = [card_uuid(self.sim, index) for index in range(cards)]
        self.arbiter = SimArbiter(directory, self.uuids, cap)
        self.programs: list[Program] = []

    def grant(self) -> bytes:
        """The grant of its programs."""
        caps = [self.cap] * len(self.uuids)
        return s.grant_bytes(
            self.run_dir, caps, driver=DRIVER, uuids=self.uuids, card_flags=self.card_flags
        )

    def shared_on_card(self, contexts: int) -> int:
        """What is on the first card beside this many contexts."""
        return card_used(self.sim) - contexts * CONTEXT

    def all_registered(self) -> bool:
        """Whether every process of the first card is one of the others too."""
        return len({len(tenant.asked) for tenant in self.arbiter.tenants.values()}) == 1

    def run(self, name: str, *words: str, governed: bool = True, sanitizer: str = "") -> Program:
        """Starts a small program, under the shim (or its twin with "asan" or "tsan") or as a
        process of no job.
        """
        shim = sanitizer_and_twin(kind=sanitizer) if sanitizer else str(s.SHIM)
        preload = {"LD_PRELOAD": shim} if governed else {}
        preload |= (
            {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "exitcode=66"} if sanitizer else {}
        )
        program = Program(self, [str(s.BUILD / "test" / f"shim-{name}"), *words], preload)
        self.programs.append(program)
        return program

    def kill(self, program: Program) -> None:
        """Kills it, and clears its slot as the arbiter does."""
        program.process.kill()
        program.process.wait()
        for tenant in self.arbiter.tenants.values():
            tenant.clear(self.arbiter.slot_of(program.process.pid))

    until = staticmethod(s.until)

    def close(self) -> None:
        """Ends everything."""
        for program in self.programs:
            if program.process.poll() is None:
                program.process.kill()
            program.process.communicate()
        self.arbiter.stop()
        self.sim.stop()


@contextlib.contextmanager
def node(directory: Path, cap: int = CAP, cards: int = 1) -> Iterator[Node]:
    """A node for one test."""
    running = Node(directory, cap, cards)
    try:
        yield running
    finally:
        running.close()


def walk(directory: Path, name: str, steps: list[tuple[str, int]], sanitizer: str = "") -> str:
    """A program from its first step to its last, each with the MiB that ledger and card must
    show; its stderr.
    """
    with node(directory) as running:
        program = running.run(*name.split(), sanitizer=sanitizer)
        for step, used in steps:
            program.pass_by(step, used * MIB)
        return program.end()
