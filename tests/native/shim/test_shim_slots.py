"""A process and its slot: without an arbiter, twice in one process, and after it executed
another program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, ONLINE, busy_online, line, python, tenant

from bench.harness.node import Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=4096)
        yield running


STEPS = """
    try:
        d = Cuda()
    except AssertionError:
        d = None # not registered: no context
    print("up", d is not None and d.try_alloc({before} * MIB) > 0, flush=True)
    while d is None:
        sys.stdin.readline()
        try:
            d = Cuda()
        except AssertionError:
            pass
        print(d is not None, flush=True)
    for line in sys.stdin: print(d.try_alloc(int(line) * MIB) > 0, flush=True)
"""


def asks(process: subprocess.Popen[str], mib: int) -> str:
    """The program tries to allocate so much."""
    assert process.stdin
    process.stdin.write(f"{mib}\n")
    process.stdin.flush()
    return line(process)


@pytest.mark.parametrize("how", ["killed", "stopped", "new, and qgpud is away"])
def test_without_an_arbiter_a_job_gets_no_more_than_its_cap(rig: Rig, how: str) -> None:
    """ONLINE may have 1 GiB. Processes that it started before go on within that; later ones get
    nothing.
    """
    old = python(rig, STEPS.format(before=100), ONLINE, subprocess.PIPE)
    assert line(old) == "up True"
    if how == "stopped":
        rig.arbiter.send_signal(signal.SIGSTOP)
    else:
        rig.arbiter.kill()
        rig.arbiter.wait()
    if how.startswith("new"):
        rig.start_arbiter(told=False)
    begun = time.monotonic()
    new = [python(rig, STEPS.format(before=900), ONLINE, subprocess.PIPE) for _ in range(3)]
    assert [line(process) for process in new] == ["up False"] * 3
    assert 9 < time.monotonic() - begun < 30, "it waits for an answer, but not for ever"
    assert asks(old, 800) == "True", "who is registered goes on"
    assert asks(old, 300) == "False", "up to the cap"
    if how == "stopped":
        rig.arbiter.send_signal(signal.SIGCONT)
    else:
        rig.start_arbiter() if how == "killed" else rig.sync()
    wait_for("all are registered", lambda: tenant(rig, ONLINE).procs == 4)
    for process in new:
        wait_for("it has its context", lambda process=process: asks(process, 0) == "True")
    assert asks(new[0], 100) == "True"
    assert [asks(process, 100) for process in new] == ["False"] * 3, (
        "together they have 1000 of 1024 MiB"
    )
    for process in new:
        process.kill()
        error = process.communicate()[1]
        assert "no device memory: the arbiter of this node did not register process" in error
        assert ("is qgpud running" if how.startswith("new") else "does not answer") in error
    old.kill()
    old.communicate()


def test_second_copy_of_the_shim_in_a_process_hides_no_memory(rig: Rig) -> None:
    code = """
    d = Cuda(); d.alloc(600 * MIB)
    load = c.CDLL(None).dlmopen; load.restype = c.c_void_p
    shim = os.environ["LD_PRELOAD"].split(":")[0].encode()
    other = c.CDLL("second", handle=load(c.c_long(-1), shim, 2)) # a namespace of its own, RTLD_NOW
    context = c.c_void_p()
    assert other.cuInit(0) == 0
    print(other.cuCtxCreate_v2(c.byref(context), 0, 0), flush=True)
    d.call("cuCtxSetCurrent", d.ctx)
    print(d.try_alloc(600 * MIB), d.try_alloc(300 * MIB) > 0, flush=True)
    sys.stdin.readline()
    """
    process = python(rig, code, ONLINE, stdin=subprocess.PIPE)
    assert [line(process), line(process)] == ["2", "0 True"], "900 of the job's 1024 MiB"
    assert (tenant(rig, ONLINE).mem_used >> 20, tenant(rig, ONLINE).procs) == (900, 1)
    assert (
        "another copy of the driver library in this process"
        in process.communicate("\n", timeout=60)[1]
    )


@pytest.mark.parametrize("then", ["d = Cuda()", "pass"], ids=["with a card", "without"])
def test_program_that_executes_another_stands_at_no_gate_any_more(rig: Rig, then: str) -> None:
    """Another thread stood at the closed gate in that moment; what runs now has no work."""
    code = f"""
    d = Cuda()
    def stand():
        d.call("cuCtxSetCurrent", d.ctx)
        while True: d.launch(1)
    threading.Thread(target=stand, daemon=True).start()
    sys.stdin.readline()
    head = open("/proc/self/cmdline").read().split(chr(0))[2].split("d = Cuda()")[0]
    body = "{then}; print('up', flush=True); time.sleep(600)"
    os.execv(sys.executable, [sys.executable, "-c", head + body])
    """
    with busy_online(rig):
        process = python(rig, code, stdin=subprocess.PIPE)
        wait_for("a thread stands at the gate", lambda: tenant(rig).busy)
        time.sleep(0.2)
        assert tenant(rig).busy
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        assert line(process) == "up"
        wait_for("nobody stands there any more", lambda: not tenant(rig).busy, 5)
        assert not any(tenant(rig).busy for _ in range(200))
    process.kill()
    process.communicate()
