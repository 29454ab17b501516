"""Kernels that wait for a launch which a full window holds back, and kernels that only take
long.
"""

from __future__ import annotations

import time

import pytest
import shim_support as s

pytestmark = pytest.mark.native


def freed_by_a_launch(probe: s.Probe, later: float = 0.0) -> None:
    """A kernel in stream 0 ends when the launch in stream 1 was let through (or so much later),
    and is a sample.
    """
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    assert probe.ask("launch 1 0x20 1") == 0
    time.sleep(later)
    assert probe.ask("hold 0") == 0
    assert probe.ask("reach 10") >= 2
    assert (
        probe.ask("launch 0 0x30 1") == 0 and probe.ask("sync 0") == 0
    )  # events are looked at before a launch


def waiting(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """A window of 500 us; all events say 2 s."""
    assert probe.ask("stream 1") == 0
    assert probe.ask("elapsed_us 2000000") == 0
    arbiter.card.set(s.WINDOW | s.TRACK)


def test_kernel_that_waits_for_a_launch_is_not_waited_for(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """It took 2 s because it waited; who believes that waits 2 s for its end, and it for him,
    again and again.
    """
    waiting(arbiter, probe)
    started = time.monotonic()
    for _ in range(10):
        freed_by_a_launch(probe)
    assert time.monotonic() - started < 5, "ten times its time would be 20 s"
    assert arbiter.card.proc("window_bypass") == 10


def test_kernel_that_goes_on_after_a_launch_was_let_through_is_waited_for(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Then it takes its time by itself, and no more launches are put behind it."""
    waiting(arbiter, probe)
    freed_by_a_launch(probe, 0.05)  # nobody looked: whether it waited is not known
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    for function in range(
        0x40, 0x70, 0x10
    ):  # of unknown length: so short that nobody thinks that it freed the first
        probe.send(f"launch 1 {function:#x} 1")
        if not probe.answered(0.5):
            break
        assert int(probe.answer()) == 0
    else:
        pytest.fail("three launches were let through behind a kernel that takes 2 s")
    assert function > 0x40, "nobody knew of the first one that it does not wait"
    assert int(probe.answer()) == 0
