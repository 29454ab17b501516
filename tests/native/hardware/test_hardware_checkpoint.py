"""A governed program leaves its card by the driver's checkpoint calls and comes back: the real shim
and arbiter around it, with hardware preemption. The calls are made from outside, by root, and by
the program itself.
"""

from __future__ import annotations

from pathlib import Path

import arbiter_support as a
import checkpoints as k
import pytest
from checkpoints import Process
from hardware_support import Node, node
from test_hardware_stack import LONG_US, Governed, ends, finishes, serve

pytestmark = pytest.mark.native
MIB = 1 << 20


def mem_used(here: Node, job: int) -> int:
    return a.tenant_stats(here.link, job, here.cards[0]).mem_used


def filled(program: Governed) -> None:
    """It holds 64 MiB with contents."""
    program.ask(
        f"import os; data = os.urandom(1 << 20); p = cuda.alloc({64 * MIB});"
        "cuda.call('cuMemcpyHtoD_v2', p, data, c.c_size_t(len(data)));"
        "back = c.create_string_buffer(len(data))"
    )


def still_filled(program: Governed) -> bool:
    program.ask("cuda.call('cuMemcpyDtoH_v2', back, p, c.c_size_t(len(data)))")
    return bool(program.ask("back.raw == data"))


def test_it_comes_back_with_books_words_and_groups(tmp_path: Path) -> None:
    """The job's memory stays on the shim's books meanwhile. Kernels afterwards are seen to end, and
    its new channel groups are stopped for online as the old ones were.
    """
    with node(tmp_path) as here:
        serve(here)
        offline = Governed(here, 2, "offline")
        here.becomes(2, "ready")
        filled(offline)
        process, booked = Process(here.sim, offline.pid), mem_used(here, 2)
        assert booked >= 64 * MIB
        for _ in range(3):
            process.leave()
            assert k.memory(here.sim) == [(0, {})]
            assert mem_used(here, 2) == booked
            process.come_back()
            assert still_filled(offline)
            for _ in range(20):
                offline.ask("cuda.launch(1000)")
            ends(offline)
            here.becomes(2, "ready")
            a.wait_for(
                lambda: not a.tenant_stats(here.link, 2, here.cards[0]).busy, "its work is over"
            )
        online = Governed(here, 1, "online")
        offline.ask(f"cuda.launch({LONG_US})")
        online.send("[cuda.launch(20000) for _ in range(100)]")
        here.becomes(2, "stopped")
        finishes(online)
        ends(offline)


def test_a_governed_program_asks_for_itself_and_for_others(tmp_path: Path) -> None:
    """The shim passes these calls on. They free memory of the card, and nothing of the books."""
    with node(tmp_path) as here:
        serve(here)
        one, two = Governed(here, 2, "offline"), Governed(here, 2, "offline")
        for program in (one, two):
            filled(program)
        booked = mem_used(here, 2)
        call = "cuda.raw('cuCheckpointProcess{}', {}, None)"
        for pid in (one.pid, two.pid):
            assert one.ask(call.format("Lock", pid)) == k.OK
            assert one.ask(call.format("Checkpoint", pid)) == k.OK
            assert pid not in k.memory(here.sim)[0][1]
            assert mem_used(here, 2) == booked
            assert one.ask(call.format("Restore", pid)) == k.OK
            assert one.ask(call.format("Unlock", pid)) == k.OK
        assert still_filled(one) and still_filled(two)
        assert mem_used(here, 2) == booked


def test_a_stopped_program_leaves_when_it_goes_on(tmp_path: Path) -> None:
    """Work of channel groups that stand still does not end, so a checkpoint waits for online."""
    with node(tmp_path) as here:
        serve(here)
        offline, online = Governed(here, 2, "offline"), Governed(here, 1, "online")
        here.becomes(2, "ready")
        offline.ask(f"cuda.launch({LONG_US})")
        online.send("[cuda.launch(20000) for _ in range(30)]")
        here.becomes(2, "stopped")
        process = Process(here.sim, offline.pid)
        assert process.lock() == k.OK
        assert process.checkpoint() == k.OK
        assert here.tenant(2).continues >= 1
        finishes(online)
        process.come_back()
        ends(offline)


def test_killed_while_it_is_away_it_leaves_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        serve(here)
        offline = Governed(here, 2, "offline")
        here.becomes(2, "ready")
        filled(offline)
        Process(here.sim, offline.pid).leave()
        offline.kill()
        a.wait_for(lambda: mem_used(here, 2) == 0, "the books are empty")
        a.wait_for(lambda: here.descriptors() == 0, "the arbiter lets go of its files")
        assert k.memory(here.sim) == [(0, {})]
