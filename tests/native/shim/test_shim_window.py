"""The window: it bounds the work in flight, also of a tenant that is alone."""

from __future__ import annotations

import time

import pytest
import shim_support as s

pytestmark = pytest.mark.native


def window(arbiter: s.FakeArbiter, probe: s.Probe, kernel_us: int, window_us: int = 500) -> None:
    """A window and a function whose duration has been learned.

    Where a test counts launches up to a full window, kernels and window are long: work that has
    run for twice its estimate counts for more, and a busy machine may take 200 us to launch five.
    """
    # the last ones are learned from when the next are launched
    s.learned(arbiter, probe, kernel_us, 18)
    arbiter.card.gate_page.window_us = window_us
    assert probe.ask("hold 1") == 0


def test_window_bounds_work_in_flight(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    window(arbiter, probe, 100)
    launched = probe.counts()["launches"]
    probe.send("launch 0 0x10 12")
    s.until(lambda: arbiter.card.proc("window_bypass") >= 1)
    arbiter.card.set(s.CLOSED | s.TRACK)  # nothing more gets through while we count
    probe_launches = arbiter.card.proc("launches") - launched
    # what is next to end, up to two launches, is overdue, so it takes no room any more
    most = 500 + 100 * (2 + arbiter.card.proc("window_bypass"))
    assert arbiter.card.proc("inflight_us") <= most
    assert probe_launches >= 5
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def test_window_takes_what_fits_and_no_more(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    window(arbiter, probe, 1500, 4700)
    bypassed = arbiter.card.proc("window_bypass")
    assert probe.ask("launch 0 0x10 3") == 0
    assert arbiter.card.proc("window_bypass") == bypassed
    assert probe.ask("launch 0 0x10 1") == 0  # when the first one has run its time
    assert arbiter.card.proc("window_bypass") == bypassed
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 1") == 0  # the fifth does not fit and nothing moves
    assert time.monotonic() - started >= 0.002
    assert arbiter.card.proc("window_bypass") == bypassed + 1


def test_full_window_goes_on_as_the_gpu_does(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Each marker that is reached makes room; nothing has to be let through."""
    window(arbiter, probe, 100)
    assert probe.ask("hold 0") == 0
    assert probe.ask("launch 0 0x10 200") == 0
    assert arbiter.card.proc("window_bypass") == 0


def test_unknown_function_fills_the_window(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    window(arbiter, probe, 10)
    assert probe.ask("launch 0 0x9990 1") == 0  # never seen: counts as the whole window
    started = time.monotonic()
    assert probe.ask("launch 0 0x9990 1") == 0  # waits 2 ms for progress, then is let through
    assert time.monotonic() - started >= 0.002
    assert arbiter.card.proc("window_bypass") == 1


def test_what_follows_the_first_launch_is_held(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Online after a pause: its first launch goes, the next one when the arbiter says so, or 2
    ms later.
    """
    window(arbiter, probe, 200, 20_000)
    arbiter.card.set(s.NOTIFY | s.HOLD | s.WINDOW | s.TRACK)
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 2") == 0
    assert time.monotonic() - started >= 0.002, "nobody ended the hold"
    assert arbiter.card.rings() >= 1 and arbiter.card.proc("window_bypass") == 0, (
        "it did not wait for room"
    )
    arbiter.card.set(s.HOLD | s.WINDOW | s.TRACK)
    assert probe.ask("launch 0 0x10 5") == 0, "held once for each ring"


def test_gate_that_closes_at_a_full_window_holds(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    window(arbiter, probe, 400)
    assert probe.ask("launch 0 0x10 1") == 0
    arbiter.card.set(s.CLOSED | s.WINDOW | s.TRACK)
    probe.send("launch 0 0x10 1")
    assert not probe.answered(0.1)
    arbiter.card.set(s.WINDOW | s.TRACK)
    assert int(probe.answer()) == 0


def test_long_kernel_is_queued_shortly_before_the_end_of_what_runs(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """It does not fit beside it, but the card shall not wait for this thread to wake up. One of
    them, not more.
    """
    window(arbiter, probe, 20000)
    bypassed, launches = arbiter.card.proc("window_bypass"), arbiter.card.proc("launches")
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 2") == 0
    assert time.monotonic() - started > 0.015
    assert arbiter.card.proc("window_bypass") == bypassed, (
        "2 ms later it would have been let through all the same"
    )
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.proc("window_bypass") == bypassed + 1 or probe.answered())
    assert arbiter.card.proc("window_bypass") == bypassed + 1, (
        "a third stands until what runs is overdue"
    )
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("launches") == launches + 3


def test_kernels_of_uncertain_length_are_queued_when_what_runs_has_run_its_longest(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """A function that takes now 20 and now 2 ms: not after 2 ms, but shortly before 20; and one
    of them, not more.
    """
    s.learned(arbiter, probe, 2000, 2)
    window(arbiter, probe, 20000)
    bypassed = arbiter.card.proc("window_bypass")
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 2") == 0
    assert time.monotonic() - started > 0.015
    assert arbiter.card.proc("window_bypass") == bypassed
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.proc("window_bypass") == bypassed + 1, (
        "a third stands until what runs is overdue"
    )


def test_sample_of_a_kernel_that_ran_when_the_gate_closed(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Another tenant may have been on the card, so it does not say how long the kernel takes."""
    s.learned(arbiter, probe, 10, 2)
    assert probe.ask("launch 0 0x10 1") == 0  # the sample; those before it are taken in
    probe.ask("elapsed_us 50000")
    arbiter.card.gate_page.changes = 2  # it closed and opened
    assert probe.ask("launch 0 0x10 1") == 0 and probe.ask("sync 0") == 0
    assert probe.ask("elapsed_us 10") == 0
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.proc("inflight_us") < 20_000


def test_who_stands_at_a_closed_gate_tells_when_its_work_has_ended(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """The next turn can begin then; the arbiter need not look for it all the time."""
    window(arbiter, probe, 400)
    assert probe.ask("launch 0 0x10 1") == 0
    arbiter.card.set(s.CLOSED | s.WINDOW | s.TRACK)
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.rings() > 0)  # it stands there
    assert not probe.answered(0.01)
    assert arbiter.card.rings() == 0, "nothing has ended"
    arbiter.card.reach()
    s.until(lambda: arbiter.card.rings() == 1)
    assert not probe.answered(0.01)
    assert arbiter.card.rings() == 0, "once is enough"
    arbiter.card.set(s.WINDOW | s.TRACK)
    assert int(probe.answer()) == 0


# ---- the window of a tenant that is alone --------------------------------------------------------


def lone(arbiter: s.FakeArbiter, probe: s.Probe, kernel_us: int) -> tuple[int, int]:
    """A window of 20 ms and a function whose duration has been learned; launches and bypasses so
    far.
    """
    window(arbiter, probe, kernel_us)
    arbiter.card.gate_page.window_us = 20000
    return arbiter.card.proc("launches"), arbiter.card.proc("window_bypass")


def in_flight(arbiter: s.FakeArbiter, before: tuple[int, int]) -> int:
    """Launches that went in until the window was full and nothing moved; not those let through
    after that.
    """
    launches, bypassed = before
    s.until(lambda: arbiter.card.proc("window_bypass") > bypassed)
    arbiter.card.set(s.CLOSED | s.TRACK)
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    return (
        arbiter.card.proc("launches")
        - launches
        - (arbiter.card.proc("window_bypass") - bypassed)
        - 1
    )


@pytest.mark.parametrize(
    ("kernel_us", "least", "most"), [(10000, 3, 3), (3000, 7, 8), (1000, 20, 28), (200, 100, 151)]
)
def test_wide_window_is_a_bound_too(
    arbiter: s.FakeArbiter, probe: s.Probe, kernel_us: int, least: int, most: int
) -> None:
    """Long kernels are counted one by one; of short ones some pass unseen, an eighth of the window
    at most. What is before the first fence, about a quarter, takes no room when it is overdue. Of a
    kernel's estimate up to a tenth is taken off, for its launch call. On a busy machine a sample,
    and so the estimate, may be as much too long.
    """
    before = lone(arbiter, probe, kernel_us)
    probe.send("launch 0 0x10 200")
    assert least <= in_flight(arbiter, before) <= most
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def test_wide_window_lets_few_unknown_functions_in(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    before = lone(arbiter, probe, 1000)
    probe.send("launch 0 0x5550 100")
    assert in_flight(arbiter, before) <= 10
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def test_wide_window_samples_few_launches(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Short kernels that the GPU keeps up with: event pairs, which cost, are rare."""
    _, bypassed = lone(arbiter, probe, 10)
    assert probe.ask("hold 0") == 0
    assert probe.ask("launch 0 0x10 100") == 0
    before = probe.counts()["event_records"]
    assert probe.ask("launch 0 0x10 20000") == 0
    assert probe.counts()["event_records"] - before <= 2 * 20000 / (16 * 31) + 2
    assert arbiter.card.proc("window_bypass") == bypassed
