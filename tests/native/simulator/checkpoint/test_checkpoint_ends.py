"""Checkpoint calls that do not end as they should: a target or a caller that dies at any moment,
work without end, failures, refusals, and callers without the right to ask.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints as k
import pytest
from checkpoints import target
from sim_tools import MIB, client_env, start, until

from simulator.sim import Simulator

pytestmark = pytest.mark.native

CALLER = """
import os, sys
from checkpoints import *
pid = int(sys.argv[1])
for name in sys.argv[2:]:
    call = getattr(driver(), f"cuCheckpointProcess{name[0].upper()}{name[1:]}")
    got = call(pid, c.byref(c.c_int()) if name == "GetState" else None)
    print(name, got, flush=True)
"""


def caller(sim: Simulator, pid: int, *calls: str) -> subprocess.Popen[str]:
    """Another process that makes the calls and prints what they answer."""
    env = client_env(sim)
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).resolve().parents[4])
    return subprocess.Popen(
        [sys.executable, "-c", CALLER, str(pid), *calls],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def calling(sim: Simulator, pid: int, *calls: str) -> Iterator[subprocess.Popen[str]]:
    process = caller(sim, pid, *calls)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def slow(built: None, tmp_path: Path) -> Iterator[Simulator]:
    """A card whose link takes a second for a GB."""
    with start(
        tmp_path / "sim", minor_base=os.getpid() % 1000 * 16, extra=("--copy-gbs", "1")
    ) as simulator:
        yield simulator


@pytest.mark.parametrize("seed", range(12))
def test_a_target_that_is_killed_gives_everything_back(slow: Simulator, seed: int) -> None:
    draw = random.Random(seed)
    with target(slow) as process:
        process.ask(f"keep({100 * MIB}, {MIB})")
        with calling(slow, process.pid, *("lock", "checkpoint", "restore", "unlock") * 3) as calls:
            for _ in range(draw.randrange(12)):
                assert calls.stdout and calls.stdout.readline().endswith(" 0\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                calls.wait(draw.random() * 0.15)
            process.process.kill()
            process.process.wait()
            said, err = calls.communicate(timeout=60)
            assert calls.returncode == 0, err
        assert k.memory(slow) == [(0, {})]
        assert process.state_call() == k.INVALID_VALUE
        answers = {int(line.split()[1]) for line in said.splitlines()}
        assert answers <= {k.OK, k.INVALID_VALUE, k.NOT_INITIALIZED}  # gone; not quite gone
        with target(slow) as next_one:
            assert next_one.ask(f"g.try_alloc({80000 * MIB}) != 0") == "True"


@pytest.mark.parametrize("seed", range(12))
def test_a_caller_that_is_killed_leaves_a_state_to_go_on_from(slow: Simulator, seed: int) -> None:
    draw = random.Random(seed)
    with target(slow) as process:
        process.ask(f"keep({100 * MIB}, {MIB})")
        for _ in range(3):
            with calling(
                slow, process.pid, *("lock", "checkpoint", "restore", "unlock") * 3
            ) as calls:
                for _ in range(draw.randrange(12)):
                    assert calls.stdout and calls.stdout.readline().endswith(" 0\n")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    calls.wait(draw.random() * 0.15)
            process.unlock()  # it waits for what was begun
            if process.state == k.CHECKPOINTED:
                assert k.memory(slow) == [(0, {})]
                process.come_back()
            elif process.state == k.LOCKED:
                assert process.unlock() == k.OK
            assert process.state == k.RUNNING
            assert process.ask("same()") == "True"


def test_endless_work_does_not_end_the_wait(sim: Simulator) -> None:
    """The lock is taken; a checkpoint waits until its caller is gone, then the process is locked as
    before.
    """
    with target(sim) as process:
        sim.control(f"hang pid={process.pid}")
        process.ask("g.launch(1)")
        with calling(sim, process.pid, "lock", "checkpoint") as calls:
            assert calls.stdout and calls.stdout.readline() == "lock 0\n"
            with pytest.raises(subprocess.TimeoutExpired):
                calls.wait(0.3)
            assert process.state == k.LOCKED
        assert process.unlock() == k.OK  # after what its caller had begun was given up
        assert process.state == k.RUNNING
        assert process.ask("g.raw('cuStreamQuery', None)") == str(k.NOT_READY)


def test_a_lock_that_cannot_be_taken_in_time(built: None, tmp_path: Path) -> None:
    """A launch that waits for a place in the queue is in the midst of a call."""
    with (
        start(tmp_path / "sim", minor_base=os.getpid() % 1000 * 16, queue_depth=16) as sim,
        target(sim) as process,
    ):
        sim.control(f"hang pid={process.pid}")
        process.tell("[g.launch(1) for _ in range(17)]")
        assert until(process.waits)
        assert process.lock(200) == k.NOT_READY
        assert process.state == k.RUNNING
        with calling(sim, process.pid, "lock") as calls:
            with pytest.raises(subprocess.TimeoutExpired):
                calls.wait(0.2)
            assert process.lock(100) == k.NOT_READY  # behind that one
        assert process.state == k.RUNNING
        assert process.lock(100) == k.NOT_READY


def test_a_stopped_target_is_not_locked_in_time(sim: Simulator) -> None:
    with target(sim) as process:
        process.process.send_signal(signal.SIGSTOP)
        for _ in range(3):
            assert process.lock(50) == k.NOT_READY
        assert process.state == k.RUNNING
        process.process.send_signal(signal.SIGCONT)
        assert process.ask("keep(1 << 20) and 1") == "1"
        process.leave()
        process.process.send_signal(signal.SIGSTOP)
        with calling(sim, process.pid, "restore") as calls:
            with pytest.raises(subprocess.TimeoutExpired):
                calls.wait(0.2)
            assert process.state == k.CHECKPOINTED
            process.process.send_signal(signal.SIGCONT)
            assert calls.communicate(timeout=60)[0] == "restore 0\n"
        assert process.unlock() == k.OK
        assert process.ask("same()") == "True"


# ---- what cannot leave ----

TYPES = """
handle = (c.c_ubyte * 64)(); p, pool, fd = c.c_uint64(), c.c_void_p(), c.c_int()
class Prop(c.Structure):
    _fields_ = [(x, c.c_int) for x in ("type", "handles", "place", "id")]
    _fields_ += [("rest", c.c_char * 64)]
class Team(c.Structure):
    _fields_ = [("cards", c.c_uint), ("size", c.c_size_t), ("rest", c.c_uint64 * 2)]
"""
REFUSED = {
    "managed memory": "g.call('cuMemAllocManaged', c.byref(p), c.c_size_t(4096), 1)",
    "exported memory": "g.call('cuIpcGetMemHandle', handle, g.alloc(4096))",
    "an exported pool": "(g.call('cuDeviceGetDefaultMemPool', c.byref(pool), 0),"
    " g.call('cuMemPoolExportToShareableHandle', c.byref(fd), pool, 1, c.c_uint64(0)))",
    "exported physical memory": "(g.call('cuMemCreate', c.byref(p), c.c_size_t(2 << 20),"
    " c.byref(Prop(1, 1, 1, 0)), c.c_uint64(0)), g.call('cuMemExportToShareableHandle',"
    " c.byref(fd), p, 1, c.c_uint64(0)))",
    "a multicast object": "g.call('cuMulticastCreate', c.byref(p), c.byref(Team(1, 2 << 20)))",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_memory_that_cannot_leave(sim: Simulator, kind: str) -> None:
    """The process stays where it is, and goes on."""
    with target(sim, TYPES) as process:
        process.ask(f"keep({MIB})")
        process.ask(REFUSED[kind])
        shown = k.memory(sim)
        assert process.lock() == k.OK
        assert process.checkpoint() == k.NOT_SUPPORTED
        assert process.state == k.LOCKED and k.memory(sim) == shown
        assert process.unlock() == k.OK
        assert process.ask("same()") == "True"


def test_memory_of_others_cannot_leave_and_does_when_let_go(sim: Simulator) -> None:
    by_value = (
        "class H(c.Structure): _fields_ = [('bytes', c.c_ubyte * 64)]\nhandle = H()\n"
        "p = c.c_uint64()\n"
    )
    with target(sim, by_value) as maker, target(sim, by_value) as opener:
        maker.ask("(q := g.alloc(4096)) and 1")
        got = maker.ask("(g.call('cuIpcGetMemHandle', c.byref(handle), q), bytes(handle).hex())[1]")
        opener.ask(f"c.memmove(c.byref(handle), bytes.fromhex('{got}'), 64)")
        opener.ask("g.call('cuIpcOpenMemHandle_v2', c.byref(p), handle, 1)")
        for process in (maker, opener):
            assert (process.lock(), process.checkpoint()) == (k.OK, k.NOT_SUPPORTED)
            assert process.unlock() == k.OK
        opener.ask("g.call('cuIpcCloseMemHandle', p)")
        maker.ask("g.call('cuMemFree_v2', q)")
        for process in (maker, opener):
            process.leave()
            process.come_back()


# ---- faults on demand ----


@pytest.mark.parametrize(
    ("call", "state", "status"),
    [("Checkpoint", k.LOCKED, 12), ("Restore", k.CHECKPOINTED, 304), ("Lock", k.RUNNING, 999)],
)
def test_errors_on_demand_act_in_the_target(
    sim: Simulator, call: str, state: int, status: int
) -> None:
    with target(sim) as process, target(sim) as other:
        process.ask(f"keep({MIB})")
        sim.control(f"error call=cuCheckpointProcess{call} code={status} times=1 pid={process.pid}")
        other.leave()
        other.come_back()
        for step in (process.lock, process.checkpoint, process.restore):
            if process.state == state:
                assert step() == status and process.state == state
            assert step() == k.OK
        assert process.unlock() == k.OK
        assert process.ask("same()") == "True"


def test_a_blocked_checkpoint_goes_on_when_it_is_let(sim: Simulator) -> None:
    with target(sim) as process:
        process.ask(f"keep({MIB})")
        sim.control(f"block call=cuCheckpointProcessCheckpoint pid={process.pid}")
        with calling(sim, process.pid, "lock", "checkpoint") as calls:
            assert calls.stdout and calls.stdout.readline() == "lock 0\n"
            with pytest.raises(subprocess.TimeoutExpired):
                calls.wait(0.2)
            assert process.state == k.LOCKED
            sim.control("clear")
            assert calls.communicate(timeout=60)[0] == "checkpoint 0\n"
        process.come_back()
        assert process.ask("same()") == "True"


def test_a_question_that_hangs_or_fails(sim: Simulator) -> None:
    """As a real driver's do in some states of other processes."""
    with target(sim) as process:
        sim.control(f"error call=cuCheckpointProcessGetState code=304 times=1 pid={process.pid}")
        assert process.state_call() == 304
        assert process.state == k.RUNNING and process.thread() > 0
        assert process.lock() == k.OK
        sim.control(f"block call=cuCheckpointProcessGetState pid={process.pid}")
        with calling(sim, process.pid, "GetState"):
            # Each call waits behind the question, once that is there; this one not for ever.
            assert until(lambda: process.lock(100) == k.NOT_READY)
        sim.control("clear")
        assert process.state == k.LOCKED
        assert process.unlock() == k.OK


@pytest.mark.parametrize("call", ["Checkpoint", "Restore"])
def test_a_failure_in_the_midst(sim: Simulator, call: str) -> None:
    """Half of the allocations are somewhere else. What is left is to kill it."""
    with target(sim) as process:
        process.ask(f"[keep({MIB}) for _ in range(4)] and 1")
        shown = k.memory(sim)
        sim.control(f"midway call=cuCheckpointProcess{call} pid={process.pid}")
        assert process.lock() == k.OK
        steps = (process.checkpoint, process.restore)
        failing = ("Checkpoint", "Restore").index(call)
        assert [step() for step in steps[:failing]] == [k.OK] * failing
        assert steps[failing]() == k.UNKNOWN
        assert process.state == k.FAILED
        assert k.memory(sim) == shown
        for step in (process.lock, process.checkpoint, process.restore, process.unlock):
            assert step() == k.ILLEGAL_STATE
        process.tell("same()")
        process.process.kill()
        process.process.wait()
        assert k.memory(sim) == [(0, {}), (0, {})]


# ---- who may ask ----

NOBODY = 65534


def as_nobody(call: Callable[[], int]) -> int:
    """What it answers another user."""
    come, go = os.pipe()
    if not (child := os.fork()):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        os.write(go, str(call()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(come, 32)
    os.close(come)
    os.close(go)
    return int(answer)


def test_only_the_same_user_and_root(built: None) -> None:
    """root asks of anyone; a user of his own processes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with (
            start(directory / "sim", minor_base=os.getpid() % 1000 * 16) as sim,
            target(sim) as process,
        ):
            assert process.state == k.RUNNING
            for call in (process.lock, process.unlock, process.state_call):
                assert as_nobody(call) == k.NOT_PERMITTED
            assert process.lock() == k.OK
            assert as_nobody(process.unlock) == k.NOT_PERMITTED
            assert process.state == k.LOCKED
