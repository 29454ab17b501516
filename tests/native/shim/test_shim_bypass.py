"""Kernels that wait for a launch which a full window holds back, and kernels that only take
long.
"""

from __future__ import annotations

import pytest
import shim_support as s

pytestmark = pytest.mark.native


def freed_by_a_launch(arbiter: s.FakeArbiter, probe: s.Probe, claims_us: int) -> int:
    """A kernel in stream 0 ends after the launch in stream 1 was let through, and events say that
    it took so long. Returns the estimate of the first one before that, in us.
    """
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    estimate = arbiter.card.proc("inflight_us")
    assert probe.ask("launch 0 0x30 1") == 0  # takes the place of the one that may be queued
    bypassed = arbiter.card.proc("window_bypass")
    assert probe.ask("launch 1 0x20 1") == 0
    assert arbiter.card.proc("window_bypass") == bypassed + 1
    assert probe.ask(f"elapsed_us {claims_us}") == 0
    assert probe.ask("hold 0") == 0
    assert probe.ask("reach 10") >= 2
    # events are looked at before a launch
    assert probe.ask("launch 0 0x40 1") == 0 and probe.ask("sync 0") == 0
    return estimate


@pytest.fixture
def bed(arbiter: s.FakeArbiter, probe: s.Probe) -> tuple[s.FakeArbiter, s.Probe]:
    """A second stream, and a window of 500 us."""
    assert probe.ask("stream 1") == 0
    arbiter.card.set(s.WINDOW | s.TRACK)
    return arbiter, probe


def test_kernel_that_waits_for_a_launch_is_not_waited_for(
    bed: tuple[s.FakeArbiter, s.Probe],
) -> None:
    """It took 2 ms because it waited; who believes that waits longer for its end, and it for him,
    longer each time.
    """
    arbiter, probe = bed
    first = freed_by_a_launch(arbiter, probe, 2500)
    estimates = [freed_by_a_launch(arbiter, probe, 3900) for _ in range(9)]
    assert first == 500, "it was unknown"
    assert min(estimates) >= 2400 and max(estimates) <= 2500


def test_kernel_that_goes_on_after_a_launch_was_let_through_is_waited_for(
    bed: tuple[s.FakeArbiter, s.Probe],
) -> None:
    """Then it takes its time by itself, and no more launches are put behind it."""
    arbiter, probe = bed
    freed_by_a_launch(arbiter, probe, 1_000_000)
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    bypassed = arbiter.card.proc("window_bypass")
    probe.send("launch 1 0x50 1")
    assert not probe.answered(0.5)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("window_bypass") == bypassed, "it was queued before the end"
