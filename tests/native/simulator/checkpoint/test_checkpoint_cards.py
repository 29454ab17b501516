"""Where a process comes back to: the same card, another one, none; what the copies take, and what
its channel groups become.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import checkpoints as k
import pytest
from checkpoints import Process, Target, target
from rm_support import NO_DEVICE, taken
from sim_pair import pair, until
from sim_tools import MIB, spawn, start, uuids

from simulator.sim import Kind, Simulator
from simulator.simcontrol import read_control_log

pytestmark = pytest.mark.native

LATENCY_NS = 1500
# In a process: the client that its groups belong to, and their handles.
GROUPS = """
from sim_rm import *
s = g.stream()
def owner(r): return next(x for x in r.clients() if GROUP in r.objects(x).values())
def groups():
    r = Rm(); return [h for h, kind in r.objects(owner(r)).items() if kind == GROUP]
"""


@pytest.fixture
def slow(built: None, tmp_path: Path) -> Iterator[Simulator]:
    """Three cards whose links take a second for a GB."""
    with start(
        tmp_path / "sim",
        cards=3,
        memory_mib=1024,
        context_mib=50,
        minor_base=os.getpid() % 1000 * 16,
        extra=("--copy-gbs", "1"),
        control_log=tmp_path / "rm.log",
    ) as simulator:
        yield simulator


def test_both_ways_take_what_the_link_takes(slow: Simulator) -> None:
    """One copy each, of all bytes that the context had; on two cards at the same time."""
    with target(slow, "h = Cuda(1)\ng.call('cuCtxSetCurrent', g.ctx)\n") as process:
        process.ask(f"[g.alloc({16 * MIB}) for _ in range(3)] and 1")
        process.ask(f"h.call('cuCtxSetCurrent', h.ctx) or h.alloc({32 * MIB}).value")
        process.leave()
        process.come_back()
        slow.control("flush")
        moved = [i for i in slow.intervals() if i.stream == 4095]
    ways = {(i.card, i.kind): i for i in moved}
    assert sorted(ways) == [(card, kind) for card in (0, 1) for kind in (Kind.HTOD, Kind.DTOH)]
    for (card, _), piece in ways.items():
        assert piece.work == (48, 32)[card] * MIB and piece.pid == process.pid
        assert piece.duration == LATENCY_NS + piece.work
    for kind in (Kind.HTOD, Kind.DTOH):
        assert ways[0, kind].t_start < ways[1, kind].t_end
        assert ways[1, kind].t_start < ways[0, kind].t_end


def test_it_comes_back_on_another_card(slow: Simulator) -> None:
    """The card's name in the process is what it was; what it shows is the new one."""
    one, two, three = uuids(slow)
    who = "(u := c.create_string_buffer(16), g.call('cuDeviceGetUuid_v2', u, {}), u.raw.hex())[2]"
    with target(slow) as process:
        process.ask(f"keep({3 * MIB})")
        for card, pairs in enumerate(({one: two}, {two: three, one: one}, {three: one}), 1):
            process.leave()
            process.come_back(pairs)
            used = [bool(listed) for _, listed in k.memory(slow)]
            assert used == [at == card % 3 for at in range(3)]
            assert process.ask("same()") == "True"
            seen = [process.ask(who.format(i)) for i in range(3)]
            assert seen[0] == k.uuid_bytes((one, two, three)[card % 3]).hex()
            assert len(set(seen)) == 3
            process.ask("g.launch(100) or g.call('cuCtxSynchronize')")
        slow.control("flush")
        ran = [i.card for i in slow.intervals() if i.kind == Kind.KERNEL]
    assert ran == [1, 2, 0]


def test_pairs_that_cannot_be_meant(slow: Simulator) -> None:
    one, two, three = uuids(slow)
    unknown = "GPU-00000000-0000-0000-0000-000000000001"
    with target(slow, "h = Cuda(1)\n") as process:
        process.ask(f"keep({MIB})")
        process.leave()
        for pairs in (
            {one: two},  # the other card of the process is not named
            {one: three, two: three},  # two onto one
            {one: unknown, two: two},
            {unknown: one, one: one, two: two},
        ):
            assert process.restore(pairs) == k.INVALID_VALUE
            assert process.state == k.CHECKPOINTED
        process.come_back({one: three, two: one})
        assert [bool(listed) for _, listed in k.memory(slow)] == [True, False, True]
        assert process.ask("same()") == "True"


def test_a_card_that_the_process_may_not_open(slow: Simulator) -> None:
    one, two, _ = uuids(slow)
    with target(slow) as process:
        process.ask(f"keep({MIB})")
        process.leave()
        (slow.config.directory / "dev/qgpusim1").unlink()
        assert process.restore({one: two}) == k.INVALID_DEVICE
        assert process.state == k.CHECKPOINTED
        process.come_back()
        assert process.ask("same()") == "True"


def test_no_room_leaves_it_where_it_is(slow: Simulator) -> None:
    """All or nothing, over all cards; what a killed process held is room at once."""
    with target(slow, "h = Cuda(1)\ng.call('cuCtxSetCurrent', g.ctx)\n") as process:
        process.ask(f"keep({256 * MIB}, {MIB})")
        process.leave()
        before = k.memory(slow)
        with target(slow) as other:
            other.ask(f"g.alloc({750 * MIB}) and 1")
            full = k.memory(slow)
            for _ in range(2):
                assert process.restore() == k.NO_MEMORY
                assert process.state == k.CHECKPOINTED
                assert k.memory(slow) == full
            other.process.kill()
            other.process.wait()
            process.come_back()
        assert before == [(0, {})] * 3
        assert [set(listed) for _, listed in k.memory(slow)] == [{process.pid}] * 2 + [set()]
        assert process.ask("same()") == "True"


def test_an_allocation_may_take_what_was_left(slow: Simulator) -> None:
    """Memory of a checkpointed process is another one's until that lets go of it."""
    with target(slow) as first, target(slow) as second:
        for process in (first, second):
            process.ask("0")
        first.ask(f"keep({750 * MIB}, {MIB})")
        assert second.ask(f"g.try_alloc({750 * MIB})") == "0"
        first.leave()
        second.ask(f"keep({750 * MIB}, {MIB})")
        second.leave()
        first.come_back()
        assert first.ask("same()") == "True"
        first.leave()
        second.come_back()
        assert second.ask("same()") == "True"


@pytest.mark.parametrize("per_context", [False, True])
def test_channel_groups_come_back(built: None, tmp_path: Path, per_context: bool) -> None:
    """All objects are freed, the file is closed, also where another process has it, too. New groups
    carry the context: what is stopped does not run.
    """
    with start(
        tmp_path / "sim",
        minor_base=os.getpid() % 1000 * 16,
        control_log=tmp_path / "rm.log",
        client_per_context=per_context,
    ) as sim:
        if sim.control_device() is None:
            pytest.skip(NO_DEVICE)
        with target(sim, GROUPS) as process:
            process.ask(f"keep({MIB})")
            held = taken(process.pid, int(process.ask("files()[0]")))
            before = groups(process)
            assert len(before) == 3
            process.leave()
            assert process.state == k.CHECKPOINTED and k.memory(sim) == [(0, {})]
            assert process.lock() == k.ILLEGAL_STATE
            process.come_back()
            os.close(held)
            after = groups(process)
            assert len(after) == 3 and not set(after) & set(before)
            stop = "[(r := Rm()).schedule(owner(r), h, {}) for h in groups()]"
            assert process.ask(stop.format(0)) == "[0, 0, 0]"
            process.ask("g.launch(1, s)")
            assert process.ask("g.raw('cuStreamQuery', s)") == str(k.NOT_READY)
            assert process.ask(stop.format(1)) == "[0, 0, 0]"
            assert process.ask("g.raw('cuStreamSynchronize', s)") == "0"
            assert process.ask("same()") == "True"
        log = read_control_log(tmp_path / "rm.log")
        made = [call.object for call in log if call.call == "alloc64" and not call.status]
        assert len(made) == len(set(made))


def groups(process: Target) -> list[int]:
    """Handles of the process's channel groups, as its own file knows them."""
    found: list[int] = json.loads(process.ask("groups()"))
    return found


def test_several_contexts_of_one_card(slow: Simulator) -> None:
    """Each has its copies, its memory and its streams."""
    made = """
others = []
for _ in range(5):
    x = c.c_void_p(); g.call("cuCtxCreate_v2", c.byref(x), 0, 0); s = g.stream()
    g.load(); others.append((x, s, g.work)); keep(1 << 20)
def work():
    for x, s, f in others:
        g.call("cuCtxSetCurrent", x); g.work = f; g.launch(100, s)
    for x, s, f in others: g.call("cuStreamSynchronize", s)
    return same()
"""
    with target(slow, made) as process:
        shown = k.memory(slow)
        for _ in range(3):
            process.leave()
            assert k.memory(slow) == [(0, {})] * 3
            process.come_back()
            assert k.memory(slow) == shown
            assert process.ask("work()") == "True"
        slow.control("flush")
        moved = [i for i in slow.intervals() if i.stream == 4095 and i.last]
    assert len({i.ctx for i in moved}) == 5 and len(moved) == 5 * 2 * 3


def test_events_of_several_processes(slow: Simulator) -> None:
    """What was recorded before its process left is over; what is recorded later is waited for."""
    with pair(lambda code: spawn(slow, code)) as (maker, opener):
        process = Process(slow, maker.process.pid)
        maker.ask("record()")
        process.leave()
        assert opener.ask("query()") == "0"
        assert opener.ask("g.raw('cuStreamWaitEvent', s, event, 0)") == "0"
        until(opener, "query(s)", "0")
        process.come_back()
        maker.ask("hold()")
        maker.ask("record()")
        assert opener.ask("query()") == str(k.NOT_READY)
        opener.ask("g.call('cuStreamWaitEvent', s, event, 0)")
        assert opener.ask("query(s)") == str(k.NOT_READY)
        maker.ask("go()")
        until(opener, "query(s)", "0")
