"""best-effort is equal between tenants, also where one has several contexts, each a client of
the card's slices. Who is alone keeps its gate open.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.node import Rig, wait_for
from enforcer.wire import abi

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
FEW, MANY = 1, 2

# Works without pause in so many contexts.
WORK = """
import ctypes as c, sys, threading
from sim_client import PTX, Cuda
d = Cuda()
def work(context):
    module, kernel, n = c.c_void_p(), c.c_void_p(), c.c_uint64(2_000_000)
    d.call("cuCtxSetCurrent", context)
    d.call("cuModuleLoadData", c.byref(module), PTX)
    d.call("cuModuleGetFunction", c.byref(kernel), module, b"qgpu_work")
    params = (c.c_void_p * 1)(c.addressof(n))
    while True:
        for _ in range(32):
            d.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, params, None)
        d.call("cuCtxSynchronize")
contexts = [d.ctx]
while len(contexts) < int(sys.argv[1]):
    contexts.append(c.c_void_p()); d.call("cuCtxCreate_v2", c.byref(contexts[-1]), 0, 0)
threads = [threading.Thread(target=work, args=(context,), daemon=True) for context in contexts]
for thread in threads: thread.start()
threads[0].join()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, settings={"policy_offline": "best-effort"}) as running:
        for job in (FEW, MANY):
            running.grant(job, "offline", share=50)
        yield running


def program(rig: Rig, job: int, contexts: int) -> subprocess.Popen[str]:
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "support/simulator")}
    argv = [sys.executable, "-c", textwrap.dedent(WORK), str(contexts)]
    return rig.spawn(argv, rig.grants[job], env=env)


def part(rig: Rig, pid: int, seconds: float) -> float:
    """What of the card's work of the next seconds is this process's, by the simulator's own
    trace.
    """
    begun = time.monotonic_ns()
    time.sleep(seconds)
    took: Counter[int] = Counter()
    for piece in rig.trace():
        took[piece.pid] += max(0, piece.t_end - max(piece.t_start, begun))
    return took[pid] / took.total()


def closings(rig: Rig) -> int:
    """How often a gate was closed so far."""
    return sum(bool(gate.flags & abi.GATE_CLOSED) for gate in rig.gates())


def undisturbed(rig: Rig, pid: int) -> bool:
    """Whether it alone works for half a second, and no gate is closed meanwhile."""
    before = closings(rig)
    return part(rig, pid, 0.5) == 1 and closings(rig) == before


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def test_four_contexts_of_a_process_get_no_more_than_one_of_another(rig: Rig) -> None:
    few, many = program(rig, FEW, 1), program(rig, MANY, 4)
    wait_for("both work", lambda: {few.pid, many.pid} <= {piece.pid for piece in rig.trace()}, 20)
    before = closings(rig)
    # How near to a half it comes is measured by the bench (shares, four processes beside one).
    # By the slices of the card alone it is about 0.8 in each sample.
    wait_for("it gets no more than its share", lambda: part(rig, many.pid, 2) < 0.7, 60)
    assert closings(rig) > before, "they take turns"
    end(few, many)


def test_one_context_each_takes_turns_and_who_is_alone_does_not(rig: Rig) -> None:
    one, other = program(rig, FEW, 1), program(rig, MANY, 1)
    wait_for("both work", lambda: {one.pid, other.pid} <= {piece.pid for piece in rig.trace()}, 20)
    before = closings(rig)
    wait_for("they take turns", lambda: closings(rig) > before + 10, 20)
    end(one)
    wait_for("its gate is never closed any more", lambda: undisturbed(rig, other.pid), 20)
    end(other)
