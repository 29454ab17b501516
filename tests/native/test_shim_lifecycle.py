"""What programs and nodes do to the shim: fork, closing every descriptor, dead arbiters, false grants."""

from __future__ import annotations

import errno
import os
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
        assert probe.ask(f"fork {5 * s.GIB}") == s.OUT_OF_MEMORY, "parent and child share the job's cap"
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


def test_work_under_way_is_told_to_the_next_arbiter(tmp_path: Path) -> None:
    """By a ring: until the next launch nothing else would make that arbiter look, and offline might run meanwhile."""
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask("refuse_writes 1") == 0  # no marker follows, so the work stays under way
        assert probe.ask("launch 0 0x10 10") == 0
        assert arbiter.card.proc("unmarked") == 1
        arbiter.stop()
        arbiter.start()
        s.until(lambda: arbiter.card.rings() > 0)
        assert arbiter.card.proc("unmarked") == 1, "shown before the ring"
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
        assert 0.2 < time.monotonic() - began < 3
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
        s.started(probe)
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.3), "unregistered compute waits"
        arbiter.status = 0
        assert int(probe.answer()) == 0
        assert len(arbiter.card.asked) > 1


def test_refusal_of_the_arbiter_lets_nothing_through_before_the_lease(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    arbiter.status = 1  # EPERM
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.5)
        arbiter.status = 0
        assert int(probe.answer()) == 0


def test_refused_card_leaves_the_others_governed(tmp_path: Path) -> None:
    """The first card of two is refused: the second has its gate and its cap, the first has neither work nor memory."""
    caps = [s.GIB, s.GIB]
    arbiter = s.FakeArbiter(tmp_path, caps)
    first, second = arbiter.uuids
    arbiter.refused[first] = errno.EPERM
    with s.governed(tmp_path, caps) as probe:
        assert probe.ask("devices 2") == 0
        s.started(probe, 1)
        assert probe.ask(f"alloc 0 {2 * s.GIB}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 0 {s.MIB}") == 0
        assert probe.ask("launch 0 0x10 3") == 0
        assert (arbiter.tenants[second].proc("launches"), arbiter.tenants[second].proc("mem_used")) == (
            3,
            s.MIB,
        )
        assert probe.ask("ctx 0") == 0
        assert probe.ask(f"alloc 1 {s.MIB}") == s.OUT_OF_MEMORY, "refused, and not after ten seconds"
        asked = len(arbiter.tenants[second].asked)
        assert probe.ask("launch 0 0x10 1") == 0, (
            "ten seconds after cuInit work goes on there as without an arbiter"
        )
        assert probe.ask("ctx 1") == 0
        arbiter.tenants[second].set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        for _ in range(10):
            assert not probe.answered(0.1), "the other card's gate is not open for that"
            arbiter.tenants[second].beat()
        assert len(arbiter.tenants[second].asked) == asked
        arbiter.tenants[second].set(s.TRACK)
        assert int(probe.answer()) == 0
        assert probe.ask("ctx 0") == 0
        arbiter.refused.clear()
        s.until(lambda: probe.ask(f"alloc 1 {s.MIB}") == 0)
        assert probe.ask("launch 0 0x10 5") == 0
        assert (arbiter.tenants[first].proc("launches"), arbiter.tenants[first].proc("mem_used")) == (
            5,
            s.MIB,
        )
        assert len(arbiter.tenants[second].asked) == asked, "on the same connection, for that card alone"
        assert "did not register this process on a card: " in probe.finish()
    arbiter.stop()


@pytest.mark.parametrize("which", [0, 1])
def test_card_that_is_to_ask_again_leaves_the_others_alone(tmp_path: Path, which: int) -> None:
    """The other of two is registered meanwhile, and looked after: a doorbell that is lost is replaced."""
    caps = [s.GIB, s.GIB]
    arbiter = s.FakeArbiter(tmp_path, caps)
    late, good = arbiter.uuids[which], arbiter.uuids[1 - which]
    arbiter.refused[late] = errno.EAGAIN
    with s.governed(tmp_path, caps) as probe:
        assert probe.ask("devices 2") == 0
        s.started(probe, 1 - which)
        assert probe.ask("launch 0 0x10 3") == 0
        assert arbiter.tenants[good].proc("launches") == 3
        asked = len(arbiter.tenants[late].asked)
        s.until(lambda: len(arbiter.tenants[late].asked) > asked + 8, 2)
        assert len(arbiter.tenants[good].asked) == 1
        links = Path(f"/proc/{probe.process.pid}/fd").iterdir()
        (bell,) = [int(fd.name) for fd in links if "eventfd" in str(fd.readlink())]
        assert probe.ask(f"close {bell}") == 0
        s.until(lambda: len(arbiter.tenants[good].asked) == 2)
        assert probe.ask(f"ctx {which}") == 0
        probe.send(f"alloc 0 {s.MIB}")
        assert not probe.answered(0.3), "it waits for the answer"
        arbiter.refused[late] = errno.EPERM
        assert int(probe.answer(3)) == s.OUT_OF_MEMORY, "that is the answer"
        arbiter.refused.clear()
        s.until(lambda: probe.ask(f"alloc 0 {s.MIB}") == 0)
        assert len(arbiter.tenants[good].asked) == 2, "all that on one connection"
    arbiter.stop()


@pytest.mark.parametrize("page", ["gate", "job"])
def test_page_that_could_be_pulled_away_is_refused(tmp_path: Path, arbiter: s.FakeArbiter, page: str) -> None:
    good = getattr(arbiter.card, page)
    loose = s.Page(page, len(good.map), s.SEAL)
    loose.map[:] = good.map[:]
    setattr(arbiter.card, page, loose)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.3)
        setattr(arbiter.card, page, good)
        assert int(probe.answer()) == 0


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_finds_nothing(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """Threads, fork, window mode, a restart and a destroyed context without one wrong access."""
    log = tmp_path / "valgrind"
    wrap = ("valgrind", "-q", "--error-exitcode=9", f"--log-file={log}.%p")
    orders = ["init", "ctx 0", "stream 0", f"alloc 0 {s.GIB}", "launch 0 0x10 200", "sync 0", "free 0"]
    orders += ["threads 2 300", "fork 4096", "churn 100", "create 0 4096", "map 0 0x100000 4096", "release 0"]
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


# ---- grants ------------------------------------------------------------------------------------------------


IN_USUAL_PLACE = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    "D=/run/opengl-driver/lib; mount -t tmpfs none /run && mkdir -p $D && cp $0 $D/ && exec $*",
    str(s.STUB),
)


def refused(probe: s.Probe) -> str:
    """The driver works, device memory is refused; returns what was said."""
    s.started(probe)
    assert probe.ask("alloc 0 4096") == s.OUT_OF_MEMORY
    assert probe.ask("create 0 4096") == s.OUT_OF_MEMORY
    assert probe.ask("managed 0 4096") == s.OUT_OF_MEMORY
    assert probe.text("info").endswith(" 0 0")
    return probe.finish()


@pytest.mark.parametrize("seals", [0, s.SEAL, s.SEAL | s.SHRINK | s.GROW])
def test_unsealed_descriptor_is_not_believed(tmp_path: Path, arbiter: s.FakeArbiter, seals: int) -> None:
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP), seals)
    probe = s.launch(tmp_path, {"QGPU_GRANT_FD": str(fd)}, (fd,), IN_USUAL_PLACE)
    os.close(fd)
    error = refused(probe)
    assert error.count("\n") == 1
    assert error.startswith("qgpu: no device memory: grant descriptor")
    assert "it is not sealed" in error
    assert arbiter.card.asked == []


def test_descriptor_of_another_user_is_not_believed(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP))
    os.fchown(fd, 12345, 0)
    probe = s.launch(tmp_path, {"QGPU_GRANT_FD": str(fd)}, (fd,), IN_USUAL_PLACE)
    os.close(fd)
    assert "root did not make it" in refused(probe)
    assert arbiter.card.asked == []


def test_without_any_grant_everything_passes(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    probe = s.launch(tmp_path, {}, (), IN_USUAL_PLACE)
    s.started(probe)
    assert probe.ask(f"alloc 0 {60 * s.GIB}") == 0
    assert probe.text("info") == f"0 {80 * s.GIB} {80 * s.GIB}"
    assert probe.finish() == ""
    assert arbiter.card.asked == []


def file_grant(tmp_path: Path, mode: int = 0o644, content: bytes | None = None) -> Path:
    """A grant file."""
    path = tmp_path / "4711.grant"
    path.write_bytes(s.grant_bytes(tmp_path, s.CAP) if content is None else content)
    path.chmod(mode)
    return path


def test_grant_file_for_children_that_closed_the_descriptor(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    path = file_grant(tmp_path)
    probe = s.launch(tmp_path, {"QGPU_GRANT": str(path), "QGPU_GRANT_FD": "777"})
    s.started(probe)
    assert arbiter.card.asked == [0]
    assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
    probe.finish()


@pytest.mark.parametrize("fault", ["mode", "owner", "symlink", "size", "magic", "version", "fifo", "missing"])
def test_grant_file_is_distrusted(tmp_path: Path, arbiter: s.FakeArbiter, fault: str) -> None:
    good = s.grant_bytes(tmp_path, s.CAP)
    path = file_grant(tmp_path)
    if fault == "mode":
        path.chmod(0o666)
    elif fault == "owner":
        os.chown(path, 12345, 0)
    elif fault == "symlink":
        real = path.rename(tmp_path / "real")
        path.symlink_to(real)
    elif fault == "size":
        path.write_bytes(good[:-1])
    elif fault == "magic":
        path.write_bytes(b"XXXX" + good[4:])
    elif fault == "version":
        path.write_bytes(good[:4] + b"\x09" + good[5:])
    elif fault == "fifo":
        path.unlink()
        os.mkfifo(path)
    else:
        path.unlink()
    probe = s.launch(tmp_path, {"QGPU_GRANT": str(path)}, (), IN_USUAL_PLACE)
    error = refused(probe)
    assert error.count("\n") == 1
    assert str(path) in error
    assert arbiter.card.asked == [], "nobody registers with a grant that is not believed"


def test_whole_card_grant_is_not_governed(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP, state=s.WHOLE))
    probe = s.launch(tmp_path, {"QGPU_GRANT_FD": str(fd)}, (fd,))
    os.close(fd)
    s.started(probe)
    assert probe.ask(f"alloc 0 {25 * s.GIB}") == 0
    assert arbiter.card.asked == []
    assert probe.finish() == ""
