"""The checkpoint calls of the simulated driver: each state with each call, and who may call."""

from __future__ import annotations

import os
from collections.abc import Callable

import checkpoints as k
import pytest
from checkpoints import Process, Target, target

from simulator.sim import Simulator

pytestmark = pytest.mark.native

CALLS: dict[str, Callable[[Process], int]] = {
    "lock": Process.lock,
    "checkpoint": Process.checkpoint,
    "restore": Process.restore,
    "unlock": Process.unlock,
}
# What each state allows, and what it becomes by that.
ALLOWED = {
    (k.RUNNING, "lock"): k.LOCKED,
    (k.LOCKED, "checkpoint"): k.CHECKPOINTED,
    (k.LOCKED, "unlock"): k.RUNNING,
    (k.CHECKPOINTED, "restore"): k.LOCKED,
}
WAY = {
    k.RUNNING: (),
    k.LOCKED: ("lock",),
    k.CHECKPOINTED: ("lock", "checkpoint"),
    k.FAILED: ("lock", "checkpoint"),
}


def bring(sim: Simulator, process: Target, state: int) -> None:
    """The process into that state, from running."""
    for step in WAY[state]:
        if state == k.FAILED and step == "checkpoint":
            sim.control(f"midway call=cuCheckpointProcessCheckpoint pid={process.pid}")
            assert process.checkpoint() == k.UNKNOWN
        else:
            assert CALLS[step](process) == k.OK
    assert process.state == state


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", WAY)
def test_each_call_in_each_state(sim: Simulator, state: int, call: str) -> None:
    with target(sim) as process:
        process.ask("keep(1 << 20)")
        bring(sim, process, state)
        after = ALLOWED.get((state, call))
        assert CALLS[call](process) == (k.ILLEGAL_STATE if after is None else k.OK)
        assert process.state == (state if after is None else after)


def test_contents_come_back_and_nvml_shows_the_way(sim: Simulator) -> None:
    """Off the card it holds and shows nothing there; what comes back is bit for bit the same."""
    with target(sim) as process:
        for size in (4096, 1 << 20, (3 << 20) + 5, 64 << 20):
            process.ask(f"keep({size}, min({size}, 5 << 20))")
        (used, listed), _ = k.memory(sim)
        assert listed == {process.pid: used}
        assert process.thread() != process.pid
        process.leave()
        assert k.memory(sim)[0] == (0, {})
        process.come_back()
        assert k.memory(sim)[0] == (used, {process.pid: used})
        assert process.ask("same()") == "True"


def test_a_locked_process_waits(sim: Simulator) -> None:
    """Its calls return after the unlock, and not before."""
    with target(sim) as process:
        assert process.lock() == k.OK
        process.tell("keep(1 << 20) and print('allocated', flush=True)")
        assert process.checkpoint() == k.OK
        assert k.memory(sim)[0] == (0, {})
        process.come_back()
        assert process.heard() == "allocated"


def test_a_process_that_is_not_there_or_has_no_driver(sim: Simulator) -> None:
    ended = os.fork()
    if not ended:
        os._exit(0)
    os.waitpid(ended, 0)
    for pid, status in ((ended, k.INVALID_VALUE), (0, k.INVALID_VALUE), (-1, k.INVALID_VALUE)):
        assert Process(sim, pid).state_call() == status
        assert Process(sim, pid).lock() == status
    assert Process(sim, os.getpid()).state_call() == k.NOT_INITIALIZED
    assert Process(sim, os.getpid()).lock() == k.NOT_INITIALIZED
