"""Small copies and fills: one is not worth a turn, a stream of them is work like any other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import shim_support as s
from shim_submit_support import OFFLINE, launches, site

from bench.harness.node import BUILD, Rig, wait_for
from simulator.sim import Interval

pytestmark = pytest.mark.native
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")
SUM = 15  # at most so many small calls are worth a launch (small_copies.c)


def test_a_closed_gate_holds_them_when_their_sum_is_a_launch(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    passed = 0
    while arbiter.card.proc("waiting") == 0:
        probe.send("copy 0 4096")
        s.until(lambda: probe.answered() or arbiter.card.proc("waiting") == 1)
        passed += probe.answered()
        if probe.answered():
            assert int(probe.answer()) == 0
        assert passed < SUM
    assert arbiter.card.proc("copy_bytes") == 0
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("launches") == 1
    assert arbiter.card.proc("copy_bytes") == (passed + 1) * 4096, (
        "those that went before are in the sum"
    )
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("copy 0 4096") == 0, "a new sum begins"
    arbiter.card.set(s.TRACK)


def test_one_that_is_worth_a_launch_waits_at_once(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send("copy 0 524288")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("launches") == 1


def test_a_stream_of_them_rings_and_is_seen(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.NOTIFY | s.TRACK)
    assert probe.ask("copy 0 4096 200") == 0
    assert arbiter.card.rings() > 0
    assert 200 / SUM - 2 <= arbiter.card.proc("launches") <= 200 / SUM + 3
    assert probe.ask("sync 0") == 0
    assert arbiter.card.marker()[0] > 0
    assert arbiter.card.proc("unfenced") == 0


def test_rare_ones_are_not_waited_for(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """An idle online program that looks at a word now and then takes the card from nobody."""
    arbiter.card.set(s.NOTIFY | s.TRACK)
    for _ in range(3 * SUM):
        assert probe.ask("copy 0 4") == 0
        time.sleep(0.002)
    assert (arbiter.card.rings(), arbiter.card.proc("launches")) == (0, 0)


def test_those_in_a_capture_do_not_wait(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("capture 0") == 0
    assert probe.ask("capturing 0 1") == 0
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask(f"copy 0 4096 {4 * SUM}") == 0
    arbiter.card.set(s.TRACK)
    assert probe.ask("capturing 0 0") == 0
    assert probe.ask("end_capture 0") == 0
    assert arbiter.card.proc("launches") == 0


def test_window_reckons_with_the_sum(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """The card stands still, and only a window's worth goes into it."""
    assert probe.ask(f"copy 0 4096 {SUM}") == 0  # the first sum may have gathered slowly
    arbiter.card.set(s.WINDOW | s.TRACK)
    assert probe.ask("hold 1") == 0
    probe.send("copy 0 4096 1000")
    s.until(lambda: arbiter.card.proc("inflight_us") > 460)
    s.until(lambda: arbiter.card.proc("window_bypass") > 0)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


# ---- on the simulated card -----------------------------------------------------------------------


def pieces(rig: Rig, pid: int, since: int) -> list[Interval]:
    """What the cards did for the process with what it submitted since then."""
    return [piece for piece in rig.trace() if piece.pid == pid and piece.t_submit >= since]


@ROOT
@pytest.mark.parametrize(
    ("kind", "threads"), [("fill", 1), ("copy", 4), ("fill_now", 1), ("copy_now", 2)]
)
def test_offline_loop_stops_beside_busy_online(tmp_path: Path, kind: str, threads: int) -> None:
    with site(tmp_path) as one:
        begin = time.monotonic_ns()
        loop = one.rig.spawn(
            [BUILD / "test/shim-task", "small", kind, str(threads)], one.rig.grants[OFFLINE]
        )
        assert loop.stdout
        assert loop.stdout.readline().strip() == "go"
        wait_for("the card works for it", lambda: len(pieces(one.rig, loop.pid, begin)) > 1000)
        if kind != "copy_now":  # each is over when the call returns
            wait_for("it is seen to work", lambda: one.stats().busy)
        slot = one.slot(loop.pid)
        one.close_gate()
        wait_for("all threads wait", lambda: slot.waiting == threads)
        shut, counted = time.monotonic_ns(), launches(slot)
        time.sleep(0.3)  # it would do 100000 in this time
        assert launches(slot) == counted
        assert len(pieces(one.rig, loop.pid, shut)) == 0
        early = len(pieces(one.rig, loop.pid, one.since))
        one.open_gate()
        wait_for("it goes on", lambda: len(pieces(one.rig, loop.pid, shut)) > 1000)
        loop.kill()
    assert early < 20 * SUM * threads, (
        "from the word to the last thread at the gate, whoever is late to be run"
    )


@ROOT
@pytest.mark.parametrize("kind", ["fill", "copy"])
def test_fixed_share_holds_for_a_loop_of_them(tmp_path: Path, kind: str) -> None:
    with Rig(tmp_path, settings={"policy_offline": "fixed-share"}) as rig:
        grant = rig.grant(OFFLINE, "offline", share=10)
        loop = rig.spawn([BUILD / "test/shim-task", "small", kind, "1"], grant)
        assert loop.stdout
        assert loop.stdout.readline().strip() == "go"
        begin = time.monotonic_ns() + 500_000_000
        end = begin + 2_000_000_000
        wait_for("two seconds are over", lambda: time.monotonic_ns() > end + 300_000_000)
        loop.kill()
        inside = [
            p for p in rig.trace() if p.pid == loop.pid and begin <= p.t_start and p.t_end <= end
        ]
        busy = sum(p.duration for p in inside) / (end - begin)
    assert 0 < busy <= 0.11, f"{busy:.3f} of the card for a share of 10 %"
