"""The shim reports its process's channel groups to an arbiter, exactly as the driver has them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import groups_support as g
import pytest
import shim_support as s

pytestmark = pytest.mark.native
MAKE = "x = c.c_void_p(); cuda.call('cuCtxCreate_v2', c.byref(x), 0, {card}); made.append(x)"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[g.Place]:
    with g.place(tmp_path) as running:
        yield running


def governed(here: g.Place, **options: str) -> g.Program:
    """A program with a primary context, whose groups the arbiter knows."""
    program = here.program(**options)
    program.ask("made = []")
    program.context()
    here.arbiter.hear(
        lambda: bool(here.arbiter.known()) and len(here.arbiter.known()[0].groups) == 3
    )
    return program


def driver_has(log: list[dict[str, object]], pid: int) -> dict[int, set[int]]:
    """Scheduled groups and their channels as the control device's own log tells it."""
    parents: dict[tuple[str, str], tuple[str, int]] = {}
    scheduled: set[tuple[str, str]] = set()

    def drop(client: str, handle: str) -> None:
        gone = [k for k, (parent, _) in parents.items() if k[0] == client and parent == handle]
        parents.pop((client, handle), None)
        scheduled.discard((client, handle))
        for key in gone:
            drop(*key)

    for call in log:
        if call.get("owner") != pid or int(str(call.get("status", "0x1")), 16) != 0:
            continue
        client, handle = str(call.get("client")), str(call.get("object"))
        if str(call["call"]).startswith("alloc"):
            parents[client, handle] = str(call.get("parent")), int(str(call["class"]), 16)
        elif call["call"] == "free":
            drop(client, handle)
        elif call["call"] == "control" and int(str(call["cmd"]), 16) == 0xA06C0101:
            scheduled.add((client, handle))
    found: dict[int, set[int]] = {}
    for (client, handle), (parent, kind) in parents.items():
        if kind == 0xA06C and (client, handle) in scheduled:
            found.setdefault(int(handle, 16), set())
        if kind == 0xC86F and (client, parent) in scheduled:
            found.setdefault(int(parent, 16), set()).add(int(handle, 16))
    return found


def arbiter_has(here: g.Place, pid: int) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for told in here.arbiter.known():
        if told.pid == pid:
            found |= {
                group: {c for c, of in told.channels.items() if of == group}
                for group in told.groups
            }
    return found


def agree(here: g.Place, program: g.Program) -> None:
    """In the end the arbiter knows what the device has, no more and no less."""
    pid = program.process.pid
    s.until(lambda: arbiter_has(here, pid) == driver_has(here.log, pid), 10)


def test_a_context_is_reported_before_the_program_continues(here: g.Place) -> None:
    program = governed(here)
    (told,) = here.arbiter.known()
    assert sorted(told.groups.values()) == [1, 9, 10] and len(told.channels) == 10
    assert told.flags == 0 and told.uuid == here.arbiter.uuids[0]
    agree(here, program)


def test_one_message_tells_a_whole_context(here: g.Place) -> None:
    """However many calls made it, and however long that takes."""
    program = governed(here)
    before = len(here.arbiter.told)
    here.sim.control(f"delay call=rm.alloc us=3000 pid={program.process.pid}")
    program.ask(MAKE.format(card=0))
    here.arbiter.hear(lambda: len(here.arbiter.known()[0].groups) == 6)
    assert len(here.arbiter.told) == before + 1


def test_a_teller_in_no_hurry_is_waited_for(here: g.Place) -> None:
    """5 ms at most: it takes one of them here, in the driver, for each group that it sees for
    the first time.
    """
    program = governed(here)
    here.sim.control(f"delay call=rm.get_timeslice us=700 pid={program.process.pid}")
    code = "t = time.monotonic_ns(); " + MAKE.format(card=0) + "; took = time.monotonic_ns() - t"
    slow = []
    for _ in range(5):
        program.ask(code)
        slow.append(program.ask("took"))
    here.sim.control("clear")
    program.ask(code)
    here.arbiter.hear(
        lambda: bool(here.arbiter.known()) and len(here.arbiter.known()[0].groups) == 21
    )
    assert min(slow) > 3 * 700_000  # type: ignore[type-var]


def test_the_descriptor_that_comes_along_is_the_clients(here: g.Place) -> None:
    governed(here)
    (told,) = here.arbiter.known()
    info = os.fstat(told.fd)
    assert (info.st_dev, info.st_ino) == here.sim.control_device()
    assert told.slices() and set(told.schedule(True)) == {0}


def test_what_is_destroyed_is_taken_back(here: g.Place) -> None:
    program = governed(here)
    program.ask(MAKE.format(card=0))
    here.arbiter.hear(lambda: sum(len(t.groups) for t in here.arbiter.known()) == 6)
    assert program.ask("cuda.raw('cuCtxDestroy_v2', made.pop())") == 0
    here.arbiter.hear(lambda: sum(len(t.groups) for t in here.arbiter.known()) == 3)
    assert program.ask("cuda.raw('cuDevicePrimaryCtxReset_v2', 0)") == 0
    here.arbiter.hear(lambda: not here.arbiter.known())
    agree(here, program)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_device_whatever_the_program_does(here: g.Place, seed: int) -> None:
    program, chance, alive = governed(here), random.Random(seed), 0
    for _ in range(25):
        if alive and chance.random() < 0.45:
            program.ask(f"cuda.raw('cuCtxDestroy_v2', made.pop({chance.randrange(alive)}))")
            alive -= 1
        elif alive < 5:  # all channels fit
            program.ask(MAKE.format(card=0))
            alive += 1
    agree(here, program)


CHURN = """
import threading
def churn(times):
    for _ in range(times):
        x = c.c_void_p()
        assert cuda.raw('cuCtxCreate_v2', c.byref(x), 0, 0) == 0
        assert cuda.raw('cuCtxDestroy_v2', x) == 0
def crowd(threads, times):
    all = [threading.Thread(target=churn, args=(times,)) for _ in range(threads)]
    for t in all: t.start()
    for t in all: t.join()
    return 0
"""


def test_threads_make_and_destroy_contexts(here: g.Place) -> None:
    program = governed(here, code=g.SERVE.replace("names =", CHURN + "names ="))
    assert program.ask("crowd(6, 15)", 60) == 0
    agree(here, program)
    assert sum(len(t.groups) for t in here.arbiter.known()) == 3


def test_a_client_for_each_context(tmp_path: Path) -> None:
    """Some versions of the library make one; each has its own devices."""
    with g.place(tmp_path, extra=("--client-per-context",)) as here:
        program = governed(here)
        program.ask(MAKE.format(card=0))
        here.arbiter.hear(lambda: len(here.arbiter.known()) == 2)
        first, second = here.arbiter.known()
        assert first.client != second.client and len(first.groups) == len(second.groups) == 3
        agree(here, program)
        program.ask("cuda.raw('cuCtxDestroy_v2', made.pop())")
        here.arbiter.hear(lambda: len(here.arbiter.known()) == 1)


def test_two_cards(tmp_path: Path) -> None:
    with g.place(tmp_path, cards=2) as here:
        program = governed(here)
        program.ask(MAKE.format(card=1))
        here.arbiter.hear(lambda: len(here.arbiter.known()) == 2)
        assert [len(here.arbiter.known(uuid)) for uuid in here.arbiter.uuids] == [1, 1]
        stopped = here.arbiter.order(g.STOP, g.SCHEDULE, card=1)
        assert stopped and (stopped.status, stopped.count) == (0, 3)
        program.ask("cuda.call('cuCtxSetCurrent', cuda.ctx); cuda.launch(1000)")
        assert program.ask("cuda.raw('cuCtxSynchronize')", 5) == 0, "the first card is not stopped"


def test_a_card_that_is_not_granted_has_no_context(tmp_path: Path) -> None:
    with g.place(tmp_path, cards=2) as here:
        here.arbiter.uuids.pop()
        program = governed(here)
        assert program.ask("cuda.raw('cuCtxCreate_v2', c.byref(c.c_void_p()), 0, 1)") == 800
        program.ask(MAKE.format(card=0))
        here.arbiter.hear(lambda: sum(len(t.groups) for t in here.arbiter.known()) == 6)
        assert {told.uuid for told in here.arbiter.told} == {here.arbiter.uuids[0]}


def test_more_groups_than_a_message_holds(here: g.Place) -> None:
    program = governed(here)
    for _ in range(11):
        program.ask(MAKE.format(card=0))
    here.arbiter.hear(
        lambda: bool(here.arbiter.known()) and here.arbiter.known()[0].flags & g.LOST != 0
    )
    while program.ask("len(made)"):
        program.ask("cuda.raw('cuCtxDestroy_v2', made.pop())")
    here.arbiter.hear(lambda: here.arbiter.known()[0].flags == 0)
    agree(here, program)


def test_a_child_of_fork_tells_nothing_of_its_parents(here: g.Place) -> None:
    program = governed(here)
    before = len(here.arbiter.told)
    child = "p = os.fork(); os._exit(lib.cuInit(0) and 0) if p == 0 else os.waitpid(p, 0)"
    program.ask(child)
    program.ask(MAKE.format(card=0))
    here.arbiter.hear(lambda: sum(len(t.groups) for t in here.arbiter.known()) == 6)
    assert {told.pid for told in here.arbiter.told[before:]} == {program.process.pid}
    agree(here, program)


def test_a_program_that_was_executed_tells_its_own(here: g.Place) -> None:
    """The same process: the former program's client went with its descriptors."""
    program = governed(here)
    first = {t.client for t in here.arbiter.known()}
    again = "print(0, flush=True)\n" + g.SERVE
    assert program.ask("os.execv(sys.executable, [sys.executable, '-c', " + repr(again) + "])") == 0
    program.context()
    here.arbiter.hear(lambda: any(t.client not in first for t in here.arbiter.known()))


FIND = (
    "fds = [f for f in range(3, 200) if os.path.exists(f'/proc/self/fd/{{f}}')"
    " and (os.fstat(f).st_dev, os.fstat(f).st_ino) == {device}]"
)


def test_a_control_device_that_the_program_replaced(here: g.Place) -> None:
    """What has its number now is never spoken to, and the arbiter is told that nothing is left."""
    program = governed(here)
    program.ask(FIND.format(device=here.sim.control_device()))
    assert program.ask("len(fds)") == 1
    program.ask("r, w = os.pipe(); kept = os.dup(fds[0]); os.dup2(r, fds[0])")
    acted = here.arbiter.order(g.STOP, g.SCHEDULE)
    assert acted and acted.count == 0
    here.arbiter.order(g.CONTINUE, 0)
    here.arbiter.hear(lambda: not here.arbiter.known())
    program.ask("os.write(w, b'x')")
    assert program.ask("os.read(fds[0], 1).decode()") == "x"
    program.ask("os.dup2(kept, fds[0])")
    program.ask(MAKE.format(card=0))  # the driver is used again, by the same number
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    agree(here, program)


def test_a_new_arbiter_gets_all_groups(here: g.Place) -> None:
    program = governed(here)
    here.arbiter.stop()
    here.arbiter.start()
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    agree(here, program)


def test_an_arbiter_that_asks_gets_the_groups_again(here: g.Place) -> None:
    governed(here)
    before = list(here.arbiter.told)
    here.arbiter.order(3, 0, wait=False)
    here.arbiter.hear(lambda: len(here.arbiter.told) == len(before) + 1)
    assert here.arbiter.told[-1].groups == before[-1].groups


def test_mounted_over_the_drivers_file(here: g.Place) -> None:
    """No preload: the program opens the shim itself, and the real driver's calls are turned to
    it.
    """
    program = here.program(
        code=g.SERVE.replace('c.CDLL("libcuda.so.1")', "c.CDLL(os.environ['SHIM'])"),
        SHIM=str(s.SHIM),
        preload="",
    )
    program.ask("Cuda.__init__.__globals__.update(str=lambda p: os.environ['SHIM'])")
    program.ask("made = []")
    program.context()
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    agree(here, program)
    stopped = here.arbiter.order(g.STOP, g.SCHEDULE)
    assert stopped and stopped.count == 3


def test_threads_of_ours_have_room_beside_large_thread_local_variables(here: g.Place) -> None:
    """glibc takes them out of the stack that a thread was given, and refuses the thread where
    they do not fit.
    """
    program = here.program(preload=f"{s.SHIM} {s.BUILD}/test/early-calls.so")
    assert program.process.stdout
    assert [program.process.stdout.readline()[:5] for _ in range(2)] == ["early"] * 2
    program.context()
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    program.finish()
