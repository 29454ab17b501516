"""A thread that waited for its last work reports the idle time; with possible further work there is
no report.
"""

from __future__ import annotations

import time

import pytest
import shim_support as s

from enforcer.wire import abi

pytestmark = pytest.mark.native


@pytest.mark.parametrize("order", ["sync 0", "ctx_sync"])
def test_who_waited_for_its_work_tells_since_when_it_rests(
    arbiter: s.FakeArbiter, probe: s.Probe, order: str
) -> None:
    assert probe.ask("launch 0 0x10 7") == 0
    before = time.monotonic_ns()
    assert probe.ask(order) == 0
    first = arbiter.card.proc("idle_ns")
    assert before < first < time.monotonic_ns()
    assert arbiter.card.proc("idle_launches") == arbiter.card.proc("launches") == 7
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.proc("idle_launches") == 7, (
        "it has launched since, so that this says nothing"
    )
    assert probe.ask(order) == 0
    assert arbiter.card.proc("idle_launches") == 8 and arbiter.card.proc("idle_ns") > first


@pytest.mark.parametrize("size, launches", [(64, 7), (4 << 20, 8)])
def test_who_fetched_the_result_of_its_work_tells_it_too(
    arbiter: s.FakeArbiter, probe: s.Probe, size: int, launches: int
) -> None:
    assert probe.ask("launch 0 0x10 7") == 0
    before = time.monotonic_ns()
    assert probe.ask(f"invoke cuMemcpyDtoH_v2 big 0x1000 {size}") == 0
    first = arbiter.card.proc("idle_ns")
    assert before < first < time.monotonic_ns()
    assert arbiter.card.proc("idle_launches") == arbiter.card.proc("launches") == launches
    assert probe.ask("invoke cuMemcpyDtoH_v2 big 0x1000 64") == 0
    assert arbiter.card.proc("idle_ns") == first, "nothing was launched since"


def test_who_has_work_elsewhere_does_not_rest(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 5") == 0
    assert probe.ask("sync 0") == 0  # this driver does not wait while it is held
    assert arbiter.card.marker()[0] > arbiter.card.marker()[1]
    assert arbiter.card.proc("idle_ns") == 0
    assert probe.ask("reach 100") >= 1
    assert probe.ask("sync 0") == 0
    assert arbiter.card.proc("idle_launches") == 5


def test_without_fences_there_is_no_idle_report(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_writes 1") == 0
    assert probe.ask("launch 0 0x10 10") == 0
    assert probe.ask("sync 0") == 0
    assert arbiter.card.proc("idle_ns") == 0


def test_it_rings_where_others_wait_for_its_pauses(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Once for each end of work, and only while the gate asks for it."""
    assert probe.ask("launch 0 0x10 7") == 0
    assert probe.ask("sync 0") == 0
    arbiter.card.rings()
    arbiter.card.set(abi.GATE_TRACK | abi.GATE_IDLE)
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.rings() == 0, "work began, and did not end"
    assert probe.ask("sync 0") == 0
    assert arbiter.card.rings() == 1
    assert probe.ask("sync 0") == 0
    assert arbiter.card.rings() == 0, "nothing was launched since"
    arbiter.card.set(abi.GATE_TRACK)
    assert probe.ask("launch 0 0x10 1") == 0 and probe.ask("sync 0") == 0
    assert arbiter.card.rings() == 0
