"""The gate: closed holds launches, NOTIFY rings, fences show progress."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native


def test_closed_gate_holds_until_it_opens(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    s.until(lambda: arbiter.card.rings() >= 1)  # it counts itself first
    assert not probe.answered(0.2)
    opened = time.monotonic_ns()
    arbiter.card.gate_page.changed_ns = opened
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert opened <= arbiter.card.proc("quantum_start_ns") <= time.monotonic_ns(), (
        "when its turn began"
    )
    assert arbiter.card.proc("waiting") == 0
    assert arbiter.card.proc("gate_waits") == 1
    assert arbiter.card.proc("gate_wait_ns") > 150_000_000
    assert probe.counts()["launches"] == 1


@pytest.mark.parametrize("order", ["graph 0 0x20", "copy 0 1048576"])
def test_graphs_and_large_copies_stand_at_the_gate(
    arbiter: s.FakeArbiter, probe: s.Probe, order: str
) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send(order)
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def test_small_copies_pass(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("copy 0 65536") == 0
    assert arbiter.card.proc("copy_bytes") == 0
    arbiter.card.set(s.TRACK)
    assert probe.ask("copy 0 1048576") == 0
    assert arbiter.card.proc("copy_bytes") == 1048576


def test_notify_rings_and_goes_on(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("launch 0 0x10 1000") == 0
    assert arbiter.card.rings() == 0
    arbiter.card.set(s.NOTIFY | s.TRACK)
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.rings() == 1
    arbiter.card.set(s.TRACK)
    arbiter.card.set(s.NOTIFY | s.TRACK)
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.rings() == 1
    assert arbiter.card.proc("launches") == 1002


def test_notify_does_not_ring_on_every_launch(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(s.NOTIFY | s.TRACK)
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 20000") == 0
    assert arbiter.card.rings() <= 2 + (time.monotonic() - started) * 1000


def test_markers_tell_what_is_done(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("launch 0 0x10 1") == 0  # the first launch after a pause is marked
    first = arbiter.card.marker()
    assert first[0] == first[1] == 1
    assert probe.ask("hold 1") == 0
    assert probe.ask("launch 0 0x10 5") == 0
    assert probe.ask("sync 0") == 0
    submitted, done = arbiter.card.marker()
    assert submitted > done == 1, "the GPU has not reached the end"
    assert arbiter.card.proc("unfenced") == 0
    assert probe.ask("reach 100") >= 1
    assert arbiter.card.marker() == (submitted, submitted)
    assert probe.counts()["registers"] == 1


@pytest.mark.parametrize("order", ["sync 0", "ctx_sync", "record 0"])
def test_a_thread_that_polls_places_a_fence_first(
    arbiter: s.FakeArbiter, probe: s.Probe, order: str
) -> None:
    assert probe.ask("launch 0 0x10 3") == 0
    s.until(lambda: probe.ask("launch 0 0x10 2") == 0 and arbiter.card.proc("unfenced") == 1)
    before = arbiter.card.marker()[0]
    assert probe.ask(order) == 0
    assert arbiter.card.marker()[0] == before + 1
    assert arbiter.card.proc("unfenced") == 0
    assert probe.ask(order) == 0
    assert arbiter.card.marker()[0] == before + 1, "nothing new: no marker"


def test_markers_come_each_millisecond_not_each_launch(probe: s.Probe) -> None:
    started = time.monotonic()
    assert probe.ask("launch 0 0x10 200000") == 0
    took_ms = (time.monotonic() - started) * 1000
    assert 1 <= probe.counts()["writes"] <= took_ms + 2


def test_no_markers_without_track(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    arbiter.card.set(0)
    assert probe.ask("launch 0 0x10 1000") == 0
    assert probe.counts()["writes"] == 0


def test_driver_without_stream_writes_is_tolerated(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("refuse_writes 1") == 0
    assert probe.ask("launch 0 0x10 10") == 0
    assert probe.ask("sync 0") == 0
    submitted, done = arbiter.card.marker()
    assert submitted == done
    assert arbiter.card.proc("unfenced") == 1


def test_destroyed_streams_give_their_markers_back(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    for _ in range(200):
        assert probe.ask("stream 1") == 0
        assert probe.ask("launch 1 0x10 1") == 0
        assert probe.ask("destroy 1") == 0
    assert arbiter.card.marker(2) == (0, 0), "index 0 or 1 was used again and again"
    assert arbiter.card.proc("unfenced") == 0


def test_stream_per_request_does_not_leak(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    def resident_kib() -> int:
        status = Path(f"/proc/{probe.process.pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0])

    assert probe.ask("churn 2000") == 0
    before = resident_kib()
    assert probe.ask("churn 40000") == 0
    assert resident_kib() - before < 1024, "less than 26 bytes per stream"
    assert arbiter.card.proc("unfenced") == 0


def test_more_streams_than_markers(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    for stream in range(64):
        assert probe.ask(f"stream {stream}") == 0
    assert probe.ask("hold 1") == 0
    assert [probe.ask(f"launch {n} 0x10 1") for n in range(64)] == [0] * 64
    assert probe.ask("launch 64 0x10 1") == 0  # slot 64 is slot 0 of the probe: a known stream
    assert all(arbiter.card.marker(n)[0] >= 1 for n in range(64))
    assert probe.ask("stream 0") == 0  # the 65th that does work
    assert probe.ask("launch 0 0x10 1") == 0
    assert arbiter.card.proc("unfenced") == 1
    assert probe.ask("reach 1000") >= 64
    assert arbiter.card.proc("launches") == 66


def test_capture_is_left_alone(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    assert probe.ask("launch 0 0x10 1") == 0
    before = probe.counts()
    launches = arbiter.card.proc("launches")
    assert probe.ask("capture 0") == 0
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask("launch 0 0x10 50") == 0, "launches into a capture run nothing and do not wait"
    assert probe.ask("record 0") == 0
    assert probe.ask(f"alloc_async 0 {25 * s.GIB} 0") == 0, "becomes a node, nothing is allocated"
    assert arbiter.card.proc("launches") == launches
    assert probe.counts()["writes"] == before["writes"]
    arbiter.card.set(s.TRACK)
    assert probe.ask("end_capture 0") == 0
    asked = probe.counts()["queries"]
    assert probe.ask("launch 0 0x10 100") == 0
    assert probe.counts()["queries"] == asked, "without a capture nobody asks"


def test_who_stands_at_a_closed_gate_has_marked_what_it_launched(
    arbiter: s.FakeArbiter, probe: s.Probe
) -> None:
    """Else nobody sees the end of it, and the next turn waits for a lease."""
    assert probe.ask("hold 1") == 0
    s.until(lambda: probe.ask("launch 0 0x10 2") == 0 and arbiter.card.proc("unfenced") == 1)
    before = arbiter.card.marker()[0]
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send("launch 0 0x10 1")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    assert arbiter.card.marker()[0] == before + 1
    assert arbiter.card.proc("unfenced") == 0
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
