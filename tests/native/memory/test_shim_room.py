"""Allocations that the driver refuses, and those of a held job: who waits, for how long, and what
the arbiter hears of it. The arbiter's words are the test's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_support as s
from room_support import tell

from enforcer.wire import abi

pytestmark = pytest.mark.native
GIB, MIB = s.GIB, s.MIB
HELD = s.CLOSED | s.TRACK | abi.GATE_WHY_MEMORY
MANY = 200  # threads: more than have a record
WAYS = {
    "alloc 0 4194304": 4 * MIB,
    "managed 0 4194304": 4 * MIB,
    "create 0 4194304": 4 * MIB,
    "alloc_async 0 4194304 0": 4 * MIB,
    "pitch 0 512 8192": 4 * MIB,
}


@pytest.fixture(params=[s.SHIM, s.BUILD / "test/shim-asan/libcuda.so.1"], ids=["", "asan"])
def probe(
    tmp_path: Path, arbiter: s.FakeArbiter, request: pytest.FixtureRequest
) -> Iterator[s.Probe]:
    """A governed program with a context and a stream, on a card where refusals wait."""
    options = {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    with s.governed(tmp_path, s.CAP, shim=request.param, env=options) as running:
        s.started(running)
        assert running.ask("stream 0") == 0
        tell(arbiter.card, wait=1)
        yield running


def wanted(arbiter: s.FakeArbiter) -> int:
    return arbiter.card.proc("mem_wanted")


def waits(arbiter: s.FakeArbiter, probe: s.Probe, size: int) -> None:
    """It waits for these bytes, has rung, and reserves nothing."""
    s.until(lambda: wanted(arbiter) == size)
    s.until(lambda: arbiter.card.rings() > 0)
    assert not probe.answered() and arbiter.card.proc("mem_pending") == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_allocation_waits_and_gets_its_memory(
    arbiter: s.FakeArbiter, probe: s.Probe, way: str
) -> None:
    arbiter.card.rings()
    assert probe.ask("refuse_allocs -1") == 0
    probe.send(way)
    waits(arbiter, probe, WAYS[way])
    tell(arbiter.card, "mem_retry")
    assert probe.answer() == "0"
    assert wanted(arbiter) == 0 and arbiter.card.rings(), "it says that it has it"
    assert arbiter.card.proc("mem_used") == WAYS[way]
    assert probe.counts()["allocs"] == 2
    assert probe.finish() == ""


def test_a_try_that_is_refused_again_waits_on(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """What it wants stands in the meantime: nothing new is to be told."""
    assert probe.ask("refuse_allocs -3") == 0
    assert probe.ask(f"allocs 1 {MIB}") == 0
    s.until(lambda: wanted(arbiter) == MIB)
    for tries in (2, 3):
        tell(arbiter.card, "mem_retry")
        s.until(lambda tries=tries: probe.counts()["allocs"] == tries)
        assert wanted(arbiter) == MIB and probe.ask("allocs_got") == 0
    tell(arbiter.card, "mem_retry")
    assert probe.ask("allocs_join") == 0 and probe.ask("allocs_got") == 1


def test_without_the_order_a_refusal_stands_at_once(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    tell(arbiter.card, wait=0)
    arbiter.card.rings()
    assert probe.ask("refuse_allocs 1") == 0
    for way in WAYS:
        assert probe.ask(way) == s.OUT_OF_MEMORY
    assert probe.counts()["allocs"] == len(WAYS)
    assert wanted(arbiter) == 0 and arbiter.card.rings() == 0
    assert arbiter.card.proc("mem_used") == arbiter.card.proc("mem_pending") == 0
    assert arbiter.card.proc("mem_denied") == 0, "no cap refused it"
    assert probe.finish() == ""


def test_the_cap_refuses_at_once(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask(f"alloc 0 {25 * GIB}") == s.OUT_OF_MEMORY
    assert wanted(arbiter) == 0
    assert "refused: job 4711 holds" in probe.finish()


def test_after_the_last_try_the_refusal_stands(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_allocs 1") == 0
    probe.send(f"alloc 0 {GIB}")
    waits(arbiter, probe, GIB)
    tell(arbiter.card, "mem_final")
    assert int(probe.answer()) == s.OUT_OF_MEMORY
    assert probe.counts()["allocs"] == 2 and wanted(arbiter) == 0
    probe.send(f"alloc 0 {GIB}")
    waits(arbiter, probe, GIB)
    tell(arbiter.card, wait=0)
    assert int(probe.answer()) == s.OUT_OF_MEMORY
    assert probe.counts()["allocs"] == 3, "the former answer was of the former one; no other try"
    assert probe.finish() == ""


def test_the_last_try_may_succeed(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_allocs -1") == 0
    probe.send(f"alloc 0 {GIB}")
    waits(arbiter, probe, GIB)
    tell(arbiter.card, "mem_final")
    assert probe.answer() == "0" and arbiter.card.proc("mem_used") == GIB


def test_what_another_process_took_meanwhile_is_not_given_twice(
    tmp_path: Path, arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Two of a job near the cap: who waits keeps nothing from the other, and asks anew."""
    with s.governed(tmp_path, s.CAP) as other:
        s.started(other)
        assert probe.ask("refuse_allocs -1") == 0
        probe.send(f"alloc 0 {16 * GIB}")
        waits(arbiter, probe, 16 * GIB)
        assert other.ask(f"alloc 0 {16 * GIB}") == 0
        tell(arbiter.card, "mem_retry")
        assert int(probe.answer()) == s.OUT_OF_MEMORY
        assert probe.counts()["allocs"] == 1, "the cap refused it, not the driver"
        assert wanted(arbiter) == 0
        assert "job 4711 holds 16.0 of 24.0 GiB" in probe.finish()


def test_of_two_that_wait_near_the_cap_each_is_answered(
    tmp_path: Path, arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    with s.governed(tmp_path, s.CAP) as other:
        s.started(other)
        for each in (probe, other):
            assert each.ask("refuse_allocs -1") == 0
            each.send(f"alloc 0 {16 * GIB}")
        s.until(lambda: [arbiter.card.proc("mem_wanted", i) for i in (0, 1)] == [16 * GIB] * 2)
        tell(arbiter.card, "mem_retry")
        assert sorted(int(each.answer()) for each in (probe, other)) == [0, s.OUT_OF_MEMORY]


def test_many_threads_wait_and_all_are_served(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Others of the process allocate meanwhile, since no lock is held."""
    assert probe.ask(f"refuse_allocs -{MANY}") == 0
    assert probe.ask(f"allocs {MANY} {MIB}") == 0
    s.until(lambda: probe.counts()["allocs"] == MANY)
    s.until(lambda: wanted(arbiter) >= 100 * MIB)
    assert wanted(arbiter) <= MANY * MIB
    assert probe.ask(f"alloc 0 {GIB}") == 0 and probe.ask("launch 0 0x10 3") == 0
    assert probe.ask("free 0") == 0 and probe.ask("allocs_got") == 0
    tell(arbiter.card, "mem_retry")
    assert probe.ask("allocs_join") == 0 and probe.ask("allocs_got") == MANY
    assert arbiter.card.proc("mem_used") == MANY * MIB
    s.until(lambda: wanted(arbiter) == 0)


def test_a_program_may_end_while_it_waits(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_allocs 1") == 0
    assert probe.ask(f"allocs 8 {MIB}") == 0
    s.until(lambda: wanted(arbiter) == 8 * MIB)
    assert probe.finish() == ""


def test_a_program_may_fork_while_it_waits(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_allocs -8") == 0
    assert probe.ask(f"allocs 8 {MIB}") == 0
    s.until(lambda: wanted(arbiter) == 8 * MIB)
    assert probe.ask(f"fork {MIB}") == 0, "the child has its own CUDA and nothing to wait for"
    assert arbiter.card.proc("mem_wanted", 1) == 0 and wanted(arbiter) == 8 * MIB
    tell(arbiter.card, "mem_retry")
    assert probe.ask("allocs_join") == 0


def test_a_wait_may_be_left_by_siglongjmp(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """What it wanted is forgotten, and the thread allocates again."""
    assert probe.ask("refuse_allocs 1") == 0
    assert probe.ask(f"alloc_timeout {GIB} 20") == 1
    s.until(lambda: wanted(arbiter) == 0)
    assert arbiter.card.proc("mem_pending") == 0
    probe.send(f"alloc 0 {MIB}")
    waits(arbiter, probe, MIB)
    tell(arbiter.card, "mem_final")
    assert int(probe.answer()) == s.OUT_OF_MEMORY
    assert probe.ask("refuse_allocs 0") == 0 and probe.ask(f"alloc 0 {MIB}") == 0


@pytest.mark.parametrize("asynchronous", [0, 1])
def test_a_wait_is_no_cancellation_point(
    tmp_path: Path, arbiter: s.FakeArbiter, asynchronous: int
) -> None:
    """A thread that is cancelled all the same takes back what it wanted. AddressSanitizer itself
    does not bear cancelled threads.
    """
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask("refuse_allocs -1") == 0
        tell(arbiter.card, wait=1)
        assert probe.ask(f"thread_allocs {asynchronous}") == 0
        s.until(lambda: wanted(arbiter) == MIB)
        assert probe.ask("cancel") == 0
        if not asynchronous:
            assert wanted(arbiter) == MIB
            tell(arbiter.card, "mem_retry")
        assert probe.ask("cancelled") == 1
        s.until(lambda: wanted(arbiter) == 0)
        assert arbiter.card.proc("mem_used") == (0 if asynchronous else MIB)


def test_a_new_arbiter_hears_what_is_waited_for(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_allocs 1") == 0
    probe.send(f"alloc 0 {GIB}")
    waits(arbiter, probe, GIB)
    arbiter.stop()
    assert not probe.answered(0.3), "its lease has not run out"
    arbiter.start()
    tell(arbiter.card, wait=1)  # before it is registered, as qgpud orders it
    waits(arbiter, probe, GIB)
    tell(arbiter.card, "mem_final")
    assert int(probe.answer()) == s.OUT_OF_MEMORY


def test_no_arbiter_answers_any_more(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=300)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        tell(arbiter.card, wait=1)
        assert probe.ask("refuse_allocs 1") == 0
        probe.send(f"alloc 0 {GIB}")
        waits(arbiter, probe, GIB)
        arbiter.stop()
        assert int(probe.answer()) == s.OUT_OF_MEMORY
        assert probe.finish() == ""


def test_an_arbiter_that_refuses_the_process_will_not_answer(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    assert probe.ask("refuse_allocs 1") == 0
    probe.send(f"alloc 0 {GIB}")
    waits(arbiter, probe, GIB)
    arbiter.stop()
    arbiter.status = 1  # EPERM: the job has ended
    arbiter.start()
    assert int(probe.answer()) == s.OUT_OF_MEMORY


@pytest.mark.parametrize("way", [*WAYS, "ctx 0"])
def test_a_held_job_takes_no_memory(arbiter: s.FakeArbiter, probe: s.Probe, way: str) -> None:
    """Until it is released, though its gate stays closed for another reason."""
    tell(arbiter.card, wait=0)
    before = probe.counts()["allocs"]
    arbiter.card.set(HELD)
    probe.send(way)
    assert not probe.answered(0.3) and arbiter.card.proc("mem_pending") == 0
    assert wanted(arbiter) == 0, "it does not wait for room"
    arbiter.card.set(s.CLOSED | s.TRACK | abi.GATE_WHY_SHARE)
    assert probe.answer() == "0"
    assert probe.counts()["allocs"] == before + (way != "ctx 0")


def test_a_new_process_of_a_held_job_waits(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """It frees memory and asks questions all the same, once it has a context."""
    arbiter.card.set(HELD)
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        probe.send("ctx 0")
        assert not probe.answered(0.3)
        arbiter.card.set(s.TRACK)
        assert probe.answer() == "0" and probe.ask(f"alloc 0 {MIB}") == 0
        arbiter.card.set(HELD)
        assert probe.ask("free 0") == 0
        assert probe.text("info") == f"0 {24 * GIB} {24 * GIB}"


def test_a_held_job_goes_on_without_an_arbiter(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=300)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        arbiter.card.set(HELD)
        probe.send(f"alloc 0 {MIB}")
        assert not probe.answered(0.1)
        arbiter.stop()
        assert probe.answer() == "0"
