"""A process whose threads are in the midst of all kinds of calls while it leaves and comes back."""

from __future__ import annotations

import json
import os
import random
import signal

import checkpoints as k
import pytest
from checkpoints import target
from sim_tools import until

from simulator.sim import Simulator

pytestmark = pytest.mark.native

# Threads that do one thing again and again, each in a stream of its own, and say what went wrong.
THREADS = """
over = threading.Event(); wrong = []; rounds = {}; calls = [0]
count = c.CFUNCTYPE(None, c.c_void_p)(lambda _: calls.__setitem__(0, calls[0] + 1))
def launches(s):
    for _ in range(50): g.launch(20, s)
    g.call("cuStreamSynchronize", s)
def memory(s):
    size = random.randrange(1, 4 << 20); p = g.alloc(size)
    data = os.urandom(min(size, 70000)); put(p, data)
    if get(p, len(data)) != data: wrong.append("memory")
    g.call("cuMemFree_v2", p)
def pools(s):
    p = c.c_uint64(); data = os.urandom(5000)
    g.call("cuMemAllocAsync", c.byref(p), c.c_size_t(random.randrange(5000, 40 << 20)), s)
    put(p, data); g.launch(10, s); g.call("cuStreamSynchronize", s)
    if get(p, 5000) != data: wrong.append("pools")
    g.call("cuMemFreeAsync", p, s)
def events(s):
    a, b = g.event(), g.event()
    g.call("cuEventRecord", a, s); g.launch(100, s); g.call("cuEventRecord", b, s)
    g.call("cuEventSynchronize", b)
    if not g.elapsed_ms(a, b) >= 0.1: wrong.append("events")
    for e in (a, b): g.call("cuEventDestroy_v2", e)
def callbacks(s):
    before = calls[0]
    for _ in range(5): g.launch(20, s); g.call("cuLaunchHostFunc", s, count, None)
    g.call("cuStreamSynchronize", s)
    if calls[0] < before + 5: wrong.append("callbacks")
def contexts(s):
    mine = c.c_void_p()
    g.call("cuCtxCreate_v2", c.byref(mine), 0, 0)
    p = g.alloc(1 << 20); data = os.urandom(100); put(p, data)
    if get(p, 100) != data: wrong.append("contexts")
    g.call("cuCtxDestroy_v2", mine)
def polls(s):
    g.launch(300, s)
    while (status := g.raw("cuStreamQuery", s)) == 600: pass
    if status: wrong.append(f"polls {status}")
def run(what):
    try:
        g.call("cuCtxSetCurrent", g.ctx); s = g.stream()
        while not over.is_set(): what(s); rounds[what.__name__] = rounds.get(what.__name__, 0) + 1
    except BaseException as error: wrong.append(f"{what.__name__}: {error!r}")
running = [threading.Thread(target=run, args=(f,))
           for f in (launches, memory, pools, events, callbacks, contexts, polls)]
def begin():
    for thread in running: thread.start()
def end():
    over.set()
    for thread in running: thread.join()
    return wrong
"""


def test_threads_go_on_as_if_nothing_had_been(sim: Simulator) -> None:
    """At whatever moment of whatever call it is taken off, 40 times."""
    with target(sim, THREADS) as process:
        process.ask("keep(1 << 20)")
        process.ask("begin()")
        for _ in range(40):
            process.leave()
            assert [set(listed) for _, listed in [k.memory(sim)[0]]] == [set()]
            process.come_back()
        assert process.ask("end()") == "[]"
        assert process.ask("same()") == "True"
        done: dict[str, int] = json.loads(process.ask("__import__('json').dumps(rounds)"))
    assert len(done) == 7 and min(done.values()) > 0


def test_a_waiting_thread_returns_when_its_work_is_done(sim: Simulator) -> None:
    """Work that was submitted ends; who waits for it learns so, though the process is locked."""
    with target(sim) as process:
        process.ask("g.launch(2000000)")
        process.tell("g.raw('cuCtxSynchronize')")
        assert until(process.waits)
        assert process.lock() == k.OK
        assert process.checkpoint() == k.OK
        assert process.heard() == "0"
        process.come_back()


def test_callbacks_that_were_submitted_run_before_it_leaves(sim: Simulator) -> None:
    with target(sim, THREADS) as process:
        process.ask("[(g.launch(500), g.call('cuLaunchHostFunc', None, count, None))"
                    " for _ in range(100)] and 1")  # fmt: skip
        process.leave()
        assert process.ask("calls[0]") == "100"
        process.come_back()


def test_forked_children_are_no_part_of_it(sim: Simulator) -> None:
    """A child has the process's files and no driver. It neither keeps memory on the card, nor waits
    at the gate of its parent.
    """
    fork = "(pid := os.fork()) or (signal.pause(), os._exit(0))"
    with target(sim, "import signal\n") as process:
        process.ask("keep(1 << 20)")
        child = int(process.ask(f"({fork}, pid)[1]"))
        try:
            assert k.Process(sim, child).state_call() == k.NOT_INITIALIZED
            assert k.Process(sim, child).lock() == k.NOT_INITIALIZED
            assert process.lock() == k.OK
            # by a second thread: the first one would wait
            process.tell("(os.fork() or os._exit(g.raw('cuCtxSynchronize'))) and os.wait()[1] >> 8")
            assert process.heard() == "3"  # not initialized, in the child
            assert process.checkpoint() == k.OK
            assert k.memory(sim)[0] == (0, {})
            process.come_back()
            assert process.ask("same()") == "True"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_asks_for_itself(sim: Simulator) -> None:
    """Its calls of these functions do not wait, whatever its state."""
    call = "g.raw('cuCheckpointProcess{}', os.getpid(), None)"
    with target(sim) as process:
        process.ask("keep(1 << 20)")
        for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
            assert process.ask(call.format(name)) == "0"
            assert (k.memory(sim)[0] == (0, {})) == (name == "Checkpoint")
        assert process.ask("same()") == "True"


def test_several_processes_take_turns(sim: Simulator) -> None:
    """Each leaves and comes back many times; their calls are made in any order."""
    draw = random.Random(5)
    with target(sim, THREADS) as one, target(sim, THREADS) as two, target(sim, THREADS) as three:
        processes = (one, two, three)
        for process in processes:
            process.ask("keep(300 << 10)")
            process.ask("begin()")
        for _ in range(60):
            process = draw.choice(processes)
            if process.state == k.RUNNING:
                process.leave()
            else:
                process.come_back()
        for process in processes:
            if process.state != k.RUNNING:
                process.come_back()
            assert process.ask("end()") == "[]"
            assert process.ask("same()") == "True"
