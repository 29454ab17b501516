"""`qgpu card set 0 isolation=none` on a card with running programs: real qgpud, arbiter, shim and simulated cards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from node_support import Chain, end, until, work

GIB = 1 << 30
CARD = 80 * GIB

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(180),
]

# A program that allocates what it is told, in GiB; `info` is what cuMemGetInfo says.
PROGRAM = """
import ctypes as c, sys
cuda = c.CDLL("libcuda.so.1")
context, total, left = c.c_void_p(), c.c_size_t(), c.c_size_t()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
for line in sys.stdin:
    word, _, size = line.strip().partition(" ")
    memory = c.c_uint64()
    if word == "alloc":
        print(cuda.cuMemAlloc_v2(c.byref(memory), c.c_size_t(int(size) << 30)), memory.value, flush=True)
    elif word == "free":
        print(cuda.cuMemFree_v2(c.c_uint64(int(size))), flush=True)
    else:
        assert cuda.cuMemGetInfo_v2(c.byref(left), c.byref(total)) == 0
        print(total.value, left.value, flush=True)
"""


class Program:
    def __init__(self, chain: Chain, job_class: str, mem: str = "4G") -> None:
        words = ("run", "--card", "0", "--class", job_class, "--mem", mem, "--share", "10", "--")
        self.process = chain.qgpu(*words, sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE)
        self.held: list[int] = []

    def ask(self, text: str) -> list[int]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]

    def takes(self, gib: int) -> bool:
        status, memory = self.ask(f"alloc {gib}")
        assert status in (0, 2), status
        self.held += [memory] if status == 0 else []
        return status == 0

    def drops(self) -> None:
        assert self.ask(f"free {self.held.pop()}") == [0]

    def sees(self) -> tuple[int, int]:
        total, left = self.ask("info")
        return total, left


@pytest.fixture
def two(start) -> Iterator[tuple[Chain, Program, Program]]:
    """An online and an offline program with 4 GiB each on card 0."""
    chain = start()
    programs = Program(chain, "online"), Program(chain, "offline")
    try:
        for program in programs:
            assert program.sees()[0] == 4 * GIB
        yield chain, *programs
    finally:
        for program in programs:
            end(program.process)


def test_cap_of_a_running_program_is_lifted_and_comes_back(two):
    chain, online, offline = two
    assert offline.takes(3) and not offline.takes(3), "the cap holds"
    chain.said("card", "set", "0", "isolation=none")
    for program in (online, offline):
        assert program.sees()[0] == CARD, "cuMemGetInfo follows at once"
    assert offline.takes(30) and online.takes(30)
    assert not offline.takes(30), "the card itself is full then"
    assert offline.sees()[1] < 20 * GIB
    chain.said("card", "reset", "0")
    assert offline.sees() == (4 * GIB, 0), "more than its cap: nothing is left"
    assert not offline.takes(1), "merely refused more"
    offline.drops()
    offline.drops()
    assert offline.takes(3) and not offline.takes(3), "within its cap again"
    assert online.process.poll() is None and offline.process.poll() is None


def test_cap_of_one_class_is_lifted_alone(two):
    chain, online, offline = two
    chain.said("card", "set", "0", "isolation.offline=none")
    assert offline.sees()[0] == CARD and online.sees()[0] == 4 * GIB
    assert offline.takes(8) and not online.takes(8)
    chain.said("card", "set", "0", "isolation.online=none", "isolation.offline=governed")
    assert online.sees()[0] == CARD and offline.sees()[0] == 4 * GIB
    assert online.takes(8) and not offline.takes(1)


def test_restarted_arbiter_is_told_again(two):
    chain, _, offline = two
    chain.said("card", "set", "0", "isolation=none")
    assert offline.takes(8)
    chain.arbiter.terminate()
    chain.arbiter.wait()
    assert offline.sees()[0] == CARD, "as it stood"
    chain.arbiter = chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
    until(lambda: sum(tenant.procs for tenant in chain.tenants()) == 2)
    until(lambda: offline.sees()[0] == CARD)
    assert offline.takes(8)


def test_who_is_above_a_cap_that_came_back_is_not_punished(two):
    chain, _, offline = two
    quick = "{ledger_interval: 200ms, nvml_interval: 100ms, audit: {action: kill, slack: 64MiB}}"
    chain.qgpud.terminate()
    chain.qgpud.wait()
    chain.config.write_text(chain.config.read_text().replace("{ledger_interval: 200ms}", quick))
    chain.start_qgpud()
    until(lambda: chain.log().count("event=serving") == 2)
    chain.said("card", "set", "0", "isolation=none")
    assert offline.takes(8)
    (job,) = [tenant.job_id for tenant in chain.tenants() if tenant.job_class == "offline"]
    until(lambda: chain.usage(job).mem_peak >= 8 * GIB)
    chain.said("card", "reset", "0")
    assert not offline.takes(1)
    # A stranger is the clock: when he is found, so would be who is over his cap, since both take two looks.
    stranger = subprocess.Popen(work(chain, "--length", "30"), env=chain.env(), stdout=subprocess.DEVNULL)
    try:
        until(lambda: "event=audit-stranger" in chain.log())
    finally:
        end(stranger)
    assert offline.process.poll() is None and "event=audit-over" not in chain.log()
