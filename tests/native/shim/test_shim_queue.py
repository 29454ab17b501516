"""A thread that waits for room when its gate closes: the arbiter knows of it already, it rings
at the end only.
"""

from __future__ import annotations

import time

import pytest
import shim_support as s

pytestmark = pytest.mark.native
WHY_PREEMPTED, WHY_SHARE = 0x100, 0x200
OPEN = s.WINDOW | s.TRACK


def queues(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """A kernel that takes long is on the card, the next launch waits for room."""
    s.learned(arbiter, probe, 200_000, 14)
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.proc("queued") == 1)
    arbiter.card.rings()


def closes(arbiter: s.FakeArbiter, why: int) -> None:
    arbiter.card.set(s.CLOSED | why | OPEN)
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    s.until(lambda: arbiter.card.proc("queued") == 0)  # right after that: it is counted once
    assert arbiter.card.proc("waiting") == 1


def ends(arbiter: s.FakeArbiter) -> None:
    """The card reaches what was launched."""
    arbiter.card.reach()


def goes(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(OPEN)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("waiting") == arbiter.card.proc("queued") == 0


def test_who_found_room_is_counted_no_more(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    queues(arbiter, probe)
    ends(arbiter)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("queued") == 0


def test_who_waited_for_room_rings_at_the_end_and_not_before(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    queues(arbiter, probe)
    closes(arbiter, WHY_SHARE)
    time.sleep(0.02)  # what does not come cannot be waited for
    assert arbiter.card.rings() == 0
    ends(arbiter)
    s.until(lambda: arbiter.card.rings() == 1)
    goes(arbiter, probe)


def test_it_rings_at_a_gate_that_closed_for_online(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """The arbiter looks first at who rings."""
    queues(arbiter, probe)
    closes(arbiter, WHY_PREEMPTED)
    s.until(lambda: arbiter.card.rings() >= 1)
    goes(arbiter, probe)


def test_it_rings_where_nothing_is_left_to_end(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    queues(arbiter, probe)
    arbiter.card.gate_page.flags = s.CLOSED | WHY_SHARE | OPEN
    ends(arbiter)
    s.until(lambda: arbiter.card.rings() >= 1)
    assert arbiter.card.proc("waiting") == 1
    goes(arbiter, probe)
