"""Stopped channel groups: orders to the shim, and how they continue when the actor is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import groups_support as g
import pytest
import shim_support as s

pytestmark = pytest.mark.native
RUN = "cuda.launch(2000)"
WAIT = "cuda.raw('cuCtxSynchronize')"
RELEASE = "cuda.raw('cuDevicePrimaryCtxReset_v2', 0)"
SCHEDULE, FREE = "0xa06c0101", "free"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[g.Place]:
    with g.place(tmp_path) as running:
        yield running


def governed(here: g.Place, **options: str) -> g.Program:
    program = here.program(**options)
    program.context()
    here.arbiter.hear(
        lambda: bool(here.arbiter.known()) and len(here.arbiter.known()[0].groups) == 3
    )
    return program


def stopped(program: g.Program) -> None:
    """Its kernel does not get on: what takes 2 ms is not done in 200."""
    program.ask(RUN)
    program.send(WAIT)
    assert not program.answered(0.2)


def goes_on(program: g.Program) -> None:
    """What it waited for is done."""
    assert program.answer(10) == 0


def calls(here: g.Place, pid: int) -> list[tuple[str, str]]:
    """(call or command, object) of a process, in the device's order; scheduling with `+` or `-`."""
    found = []
    for call in here.log:
        if call.get("owner") != pid:
            continue
        name = str(call.get("cmd", call["call"]))
        if int(name, 16) == 0xA06C0101 if name.startswith("0x") else False:
            name = "+" if str(call.get("params", "")).startswith("01") else "-"
        found.append((name, str(call.get("object"))))
    return found


def last_before_free(here: g.Place, pid: int) -> dict[str, str]:
    """Per group that was stopped: the last order that it got before it was freed, or in the end."""
    last: dict[str, str] = {}
    done: set[str] = set()
    for name, handle in calls(here, pid):
        if handle in done:
            continue
        if name in "+-":
            last[handle] = name
        elif name == FREE:
            done.add(handle)
    return last


@pytest.mark.parametrize("method", [g.SCHEDULE, g.DISABLE])
def test_stops_and_continues_on_order(here: g.Place, method: int) -> None:
    program = governed(here)
    acted = here.arbiter.order(g.STOP, method)
    assert acted and (acted.status, acted.count) == (0, 3)
    stopped(program)
    acted = here.arbiter.order(g.CONTINUE, method)
    assert acted and (acted.status, acted.count) == (0, 3)
    goes_on(program)


def test_slices_on_order_and_back(here: g.Place) -> None:
    governed(here)
    (told,) = here.arbiter.known()
    before = told.slices()
    acted = here.arbiter.order(g.SLICE, g.TIMESLICE, 777)
    assert acted and acted.status == 0 and told.slices() == [777] * 3
    acted = here.arbiter.order(g.CONTINUE, g.TIMESLICE)
    assert acted and acted.status == 0 and told.slices() == before


def test_half_a_stop_is_undone_and_reported(here: g.Place) -> None:
    program = governed(here)
    here.sim.control(f"error call=rm.preempt code=0x65 times=1 pid={program.process.pid}")
    acted = here.arbiter.order(g.STOP, g.SCHEDULE)
    assert acted and (acted.status, acted.count) == (g.TIMEOUT, 2)
    program.ask(RUN)
    assert program.ask(WAIT, 10) == 0


def test_an_order_about_a_card_that_it_has_not_is_refused(here: g.Place) -> None:
    governed(here)
    here.arbiter.uuids.append("GPU-00000000-0000-0000-0000-000000000000")
    acted = here.arbiter.order(g.STOP, g.SCHEDULE, card=1)
    assert acted and (acted.status, acted.count) == (g.BAD_STATE, 0)


@pytest.mark.parametrize("by", ["arbiter", "shim", "channels"])
def test_goes_on_when_the_arbiter_dies(here: g.Place, by: str) -> None:
    """Whoever had stopped it, and however."""
    program = governed(here)
    (told,) = here.arbiter.known()
    if by == "arbiter":
        assert set(told.schedule(False)) == {0}
    else:
        here.arbiter.order(g.STOP, g.SCHEDULE if by == "shim" else g.DISABLE)
    stopped(program)
    here.arbiter.stop()
    goes_on(program)


def test_slices_come_back_when_the_arbiter_dies(here: g.Place) -> None:
    program = governed(here)
    (told,) = here.arbiter.known()
    before = told.slices()
    told.set_slices(777)
    here.arbiter.stop()
    here.arbiter.start()
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    (again,) = here.arbiter.known()
    assert again.slices() == before
    assert program.finish() == ""


def test_goes_on_when_the_heart_stops(tmp_path: Path) -> None:
    """An arbiter that keeps its connection and hangs; when its heart beats again, all is told
    anew.
    """
    with g.place(tmp_path, lease_ms=250) as here:
        program = governed(here)
        here.arbiter.card.beat()
        here.arbiter.order(g.STOP, g.SCHEDULE)
        told = len(here.arbiter.told)
        program.ask(RUN)
        program.send(WAIT)
        goes_on(program)
        beating = time.monotonic() + 10
        while len(here.arbiter.told) == told:
            assert time.monotonic() < beating
            here.arbiter.card.beat()
            time.sleep(0.05)
        assert here.arbiter.known()


@pytest.mark.parametrize("answers", [True, False])
def test_no_stopped_context_is_destroyed(here: g.Place, answers: bool) -> None:
    """Also where the arbiter does not say that it leaves it alone."""
    program = governed(here)
    here.arbiter.leaves = answers
    (told,) = here.arbiter.known()
    told.schedule(False)
    began = time.monotonic()
    assert program.ask(RELEASE, 10) == 0
    assert time.monotonic() - began < 30
    here.arbiter.hear(lambda: not here.arbiter.known())
    asked = [t for t in here.arbiter.told if t.flags & g.LEAVE]
    assert len(asked) == 1 and asked[0].groups == told.groups
    s.until(lambda: set(last_before_free(here, program.process.pid).values()) == {"+"})


def test_what_the_shim_stopped_it_continues_before_it_destroys(here: g.Place) -> None:
    """By the method that stopped it: the arbiter knows nothing of that."""
    program = governed(here)
    here.arbiter.order(g.STOP, g.DISABLE)
    assert program.ask(RELEASE, 10) == 0
    here.arbiter.hear(lambda: not here.arbiter.known())
    orders = [c for c in here.log if c.get("cmd") == "0x2080110b" or c["call"] == FREE]
    groups = {f"{handle:#x}" for t in here.arbiter.told for handle in t.groups}
    first = next(
        i for i, c in enumerate(orders) if c["call"] == FREE and str(c.get("object")) in groups
    )
    assert str(orders[first - 1].get("params", "")).startswith("00"), orders[:first]


def test_a_stopped_tenant_waits_before_it_destroys(here: g.Place) -> None:
    program = governed(here)
    here.arbiter.card.set(s.CLOSED | s.TRACK)
    here.arbiter.order(g.STOP, g.SCHEDULE)
    program.send(RELEASE)
    assert not program.answered(0.3)
    s.until(lambda: here.arbiter.card.proc("waiting") == 1)
    here.arbiter.order(g.CONTINUE, g.SCHEDULE)
    here.arbiter.card.set(s.TRACK)
    goes_on(program)


def test_while_it_destroys_it_is_not_stopped(here: g.Place) -> None:
    """An order that crosses the news is refused; afterwards the others are told again, and can
    be.
    """
    program = governed(here)
    program.ask("x = c.c_void_p(); cuda.call('cuCtxCreate_v2', c.byref(x), 0, 0)")
    here.arbiter.hear(lambda: len(here.arbiter.known()[0].groups) == 6)
    here.sim.control(f"delay call=rm.free us=300000 pid={program.process.pid}")
    program.send("cuda.raw('cuCtxDestroy_v2', x)")
    here.arbiter.hear(lambda: any(t.flags & g.LEAVE for t in here.arbiter.told))
    acted = here.arbiter.order(g.STOP, g.SCHEDULE)
    assert acted and (acted.status, acted.count) == (g.BAD_STATE, 0)
    here.sim.control("clear")
    goes_on(program)
    here.arbiter.hear(
        lambda: here.arbiter.told[-1].flags == 0 and len(here.arbiter.told[-1].groups) == 3
    )
    acted = here.arbiter.order(g.STOP, g.SCHEDULE)
    assert acted and (acted.status, acted.count) == (0, 3)


def test_a_reference_that_is_not_the_last_changes_nothing(here: g.Place) -> None:
    program = governed(here)
    told = len(here.arbiter.told)
    more = (
        "[cuda.raw(n, *a) for n, a in (('cuDevicePrimaryCtxRetain', (c.byref(c.c_void_p()), "
        "0)),) * 5]"
    )
    assert program.ask(more) == [0] * 5
    assert program.ask("[cuda.raw('cuDevicePrimaryCtxRelease_v2', 0) for _ in range(5)]") == [0] * 5
    assert len(here.arbiter.told) == told
    assert program.ask("cuda.raw('cuDevicePrimaryCtxRelease_v2', 0)") == 0
    here.arbiter.hear(lambda: not here.arbiter.known())


@pytest.mark.parametrize("by", ["arbiter", "shim"])
def test_a_stopped_program_that_exits(here: g.Place, by: str) -> None:
    program = governed(here)
    (told,) = here.arbiter.known()
    here.arbiter.card.set(s.CLOSED | s.TRACK)
    if by == "arbiter":
        told.schedule(False)
    else:
        here.arbiter.order(g.STOP, g.SCHEDULE)
    assert program.finish() == ""
    assert any(t.flags & g.LEAVE for t in here.arbiter.told)
    assert set(last_before_free(here, program.process.pid).values()) == {"+"}


def test_a_stopped_program_that_is_killed_is_gone(here: g.Place) -> None:
    """The driver's business: nothing of ours keeps it."""
    program = governed(here)
    here.arbiter.order(g.STOP, g.SCHEDULE)
    program.ask(RUN)
    program.process.send_signal(signal.SIGKILL)
    assert program.process.wait(60) == -signal.SIGKILL


def test_a_hanging_teller_thread_harms_no_other(here: g.Place) -> None:
    """It stands in the driver; the program makes contexts, works, and destroys them."""
    program = governed(here)
    here.sim.control(f"block call=rm.get_timeslice pid={program.process.pid}")
    assert program.ask("cuda.raw('cuCtxCreate_v2', c.byref(c.c_void_p()), 0, 0)", 5) == 0
    program.ask("cuda.call('cuCtxSetCurrent', cuda.ctx); cuda.launch(100)")
    assert program.ask(WAIT, 5) == 0
    here.sim.control("clear")
    here.arbiter.hear(lambda: len(here.arbiter.known()[0].groups) == 6)


def test_orders_that_are_not_taken_do_not_grow(here: g.Place) -> None:
    """More than any arbiter has under way: what does not fit is not answered, and the rest is,
    in order.
    """
    governed(here)
    for _ in range(200):
        here.arbiter.order(g.CONTINUE, g.SCHEDULE, wait=False)
    answered = lambda: any(a.serial > 200 for a in here.arbiter.acted)  # noqa: E731
    while not answered():
        here.arbiter.order(g.CONTINUE, g.SCHEDULE, wait=False)
        with here.arbiter.news:
            here.arbiter.news.wait(0.2)
    serials = [a.serial for a in here.arbiter.acted]
    assert serials == sorted(set(serials)) and all(a.status == 0 for a in here.arbiter.acted)


@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_sanitizers_find_nothing(here: g.Place, kind: str) -> None:
    """Threads that make and destroy contexts, while groups stop and go and the arbiter is
    restarted.
    """
    fd = s.sealed("grant", here.grant())
    env = {
        "QGPU_GRANT_FD": str(fd),
        "LD_LIBRARY_PATH": str(g.SIM_DRIVER.parent),
        "QGPU_SIM_DIR": str(here.directory),
    }
    env |= {
        "TSAN_OPTIONS": "exitcode=66 die_after_fork=0",
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    }
    probe = s.launch(
        here.directory, env, (fd,), shim=s.BUILD / "test" / f"shim-{kind}" / "libcuda.so.1"
    )
    os.close(fd)
    here.programs.append(probe.process)
    s.started(probe)
    here.arbiter.hear(lambda: bool(here.arbiter.known()))
    probe.send("contexts 4 15")
    while not probe.answered(0.02):
        here.arbiter.order(g.STOP, g.SCHEDULE, wait=False)
        here.arbiter.order(g.CONTINUE, g.SCHEDULE, wait=False)
    assert probe.answer() == "0"
    probe.send("contexts 4 15")
    here.arbiter.order(g.STOP, g.DISABLE, wait=False)
    here.arbiter.stop()
    here.arbiter.start()
    assert probe.answer(60) == "0"
    assert probe.ask("ctx_destroy 0") == 0
    error = probe.finish()
    assert "anitizer" not in error and "runtime error" not in error, error
