"""What programs and nodes do to the shim: fork, closing every descriptor, dead arbiters."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native


def test_registration_shows_the_grant(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        assert arbiter.card.asked == [0], "registered when cuInit returns"
        assert arbiter.grants_seen == 1
        assert probe.ask("init") == 0
        assert arbiter.card.asked == [0], "once per process"


def test_forked_child_is_its_own_process(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {20 * s.GIB}") == 0
        assert probe.ask(f"fork {5 * s.GIB}") == s.OUT_OF_MEMORY, (
            "parent and child share the job's cap"
        )
        assert probe.ask(f"fork {4 * s.GIB}") == 0
        assert arbiter.card.proc("mem_used") == 20 * s.GIB
        assert arbiter.card.proc("mem_used", slot=2) == 4 * s.GIB
        assert len(arbiter.card.asked) == 3
        assert probe.ask("launch 0 0x10 1") == 0
        assert arbiter.card.proc("launches") == 1, "the child wrote its own slot"


def test_program_that_closes_every_descriptor(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """Its own file, which now has all our numbers, must stay empty, and we must come back."""
    theirs = tmp_path / "theirs"
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {s.GIB}") == 0
        assert probe.ask(f"closeall {theirs}") == 0
        arbiter.card.set(s.NOTIFY | s.TRACK)
        assert probe.ask("launch 0 0x10 1") == 0
        s.until(lambda: len(arbiter.card.asked) == 2)
        assert arbiter.card.asked[1] == s.GIB
        s.until(lambda: probe.ask("launch 0 0x10 1") == 0 and arbiter.card.rings() > 0)
        assert theirs.read_bytes() == b""
        assert probe.ask(f"alloc 1 {24 * s.GIB}") == s.OUT_OF_MEMORY


def test_lost_doorbell_alone_is_replaced(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        links = Path(f"/proc/{probe.process.pid}/fd").iterdir()
        bells = [int(fd.name) for fd in links if "eventfd" in str(fd.readlink())]
        assert len(bells) == 1
        assert bells[0] >= 200, "ours do not take the low numbers"
        assert probe.ask(f"close {bells[0]}") == 0
        s.until(lambda: len(arbiter.card.asked) == 2)
        arbiter.card.set(s.NOTIFY | s.TRACK)
        s.until(lambda: probe.ask("launch 0 0x10 1") == 0 and arbiter.card.rings() > 0)


def test_waiting_launch_survives_a_restart(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        arbiter.card.set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        s.until(lambda: arbiter.card.proc("waiting") == 1)
        arbiter.stop()
        assert not probe.answered(0.2)
        arbiter.flags = s.CLOSED | s.TRACK
        arbiter.start()
        s.until(lambda: arbiter.card.proc("waiting") == 1)
        assert not probe.answered(0.2)
        arbiter.card.set(s.TRACK)
        assert int(probe.answer()) == 0
        assert probe.finish() == ""
    arbiter.stop()


def test_unfinished_work_is_reported_to_the_next_arbiter(tmp_path: Path) -> None:
    """By a ring: until the next launch nothing else would make that arbiter look, and offline
    might run meanwhile.
    """
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask("refuse_writes 1") == 0  # no marker follows, so the work stays under way
        assert probe.ask("launch 0 0x10 10") == 0
        assert arbiter.card.proc("unfenced") == 1
        arbiter.stop()
        arbiter.start()
        s.until(lambda: arbiter.card.rings() > 0)
        assert arbiter.card.proc("unfenced") == 1, "shown before the ring"
        assert probe.finish() == ""
    arbiter.stop()


def test_compute_fails_open_after_the_lease_memory_does_not(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=300)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        arbiter.card.set(s.CLOSED | s.TRACK)
        arbiter.stop()
        began = time.monotonic()
        assert probe.ask("launch 0 0x10 1") == 0
        assert 0.2 < time.monotonic() - began < 30
        assert probe.ask("launch 0 0x10 1") == 0
        assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
        lines = probe.finish().splitlines()
    assert len(lines) == 2
    assert "the arbiter of this node does not answer" in lines[0]
    assert "refused" in lines[1]


def test_stale_heartbeat_alone_keeps_the_gate(tmp_path: Path) -> None:
    """The connection lives: a slow arbiter is not a dead one (until it is three leases late)."""
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=400)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        arbiter.card.set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.9)
        assert int(probe.answer()) == 0  # hung for three leases
    arbiter.stop()


def test_governed_again_after_failing_open(tmp_path: Path) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=200)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        arbiter.card.set(s.CLOSED | s.TRACK)
        arbiter.stop()
        assert probe.ask("launch 0 0x10 1") == 0
        arbiter.flags = s.CLOSED | s.TRACK
        arbiter.start()
        s.until(lambda: arbiter.card.asked == [0])
        time.sleep(0.05)  # adoption follows the answer
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.1)
        arbiter.card.set(s.TRACK)
        assert int(probe.answer()) == 0
    arbiter.stop()


def test_again_is_asked_again(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    arbiter.status = 11  # EAGAIN: grants not loaded yet
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        probe.send("ctx 0")
        assert not probe.answered(0.3), "who is not registered waits"
        arbiter.status = 0
        assert int(probe.answer()) == 0
        assert probe.ask("launch 0 0x10 1") == 0
        assert len(arbiter.card.asked) > 1


@pytest.mark.parametrize("page", ["gate", "job"])
def test_page_that_could_be_pulled_away_is_refused(
    tmp_path: Path, arbiter: s.FakeArbiter, page: str
) -> None:
    good = getattr(arbiter.card, page)
    loose = s.Page(page, len(good.map), s.SEAL)
    loose.map[:] = good.map[:]
    setattr(arbiter.card, page, loose)
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        probe.send("ctx 0")
        assert not probe.answered(0.3)
        setattr(arbiter.card, page, good)
        assert int(probe.answer()) == 0
        assert probe.ask("launch 0 0x10 1") == 0


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_finds_nothing(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """Threads, fork, window mode, a restart and a destroyed context without one wrong access."""
    log = tmp_path / "valgrind"
    wrap = ("valgrind", "-q", "--error-exitcode=9", f"--log-file={log}.%p")
    orders = [
        "init",
        "ctx 0",
        "stream 0",
        f"alloc 0 {s.GIB}",
        "launch 0 0x10 200",
        "sync 0",
        "free 0",
    ]
    orders += [
        "threads 2 300",
        "fork 4096",
        "churn 100",
        "create 0 4096",
        "map 0 0x100000 4096",
        "release 0",
    ]
    orders += ["unmap 0x100000 4096", "capture 0", "launch 0 0x10 5", "end_capture 0", "ctx_sync"]
    with s.governed(tmp_path, s.CAP, wrap) as probe:
        for order in orders:
            probe.send(order)
            assert int(probe.answer(60)) == 0, order
        arbiter.card.set(s.WINDOW | s.TRACK)
        probe.send("launch 0 0x10 50")
        assert int(probe.answer(60)) == 0
        arbiter.stop()
        arbiter.start()
        s.until(lambda: len(arbiter.card.asked) == 1, 20)
        probe.send("ctx_destroy 0")
        assert int(probe.answer(60)) == 0
        probe.finish()
    assert [path.read_text() for path in tmp_path.glob("valgrind.*") if path.read_text()] == []
