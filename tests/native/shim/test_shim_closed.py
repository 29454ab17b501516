"""Who is not registered works as little as at a closed gate: refused, unheard, or with a socket
that is not root's.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native

WORK = ["launch 0 0x10 1", "graph 0 0x20", f"copy 0 {s.MIB}"]


def test_who_is_refused_gets_no_context(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    """Without one there is no work and no memory; it may try again once it is registered."""
    arbiter.status = errno.EPERM
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        assert probe.ask("ctx 0") == probe.ask("ctx 0") == s.OUT_OF_MEMORY
        arbiter.status = 0
        s.until(lambda: probe.ask("ctx 0") == 0)
        assert all(probe.ask(work) == 0 for work in WORK)
        error = probe.finish()
    assert error.count("no device memory: the arbiter of this node did not register") == 1


@pytest.mark.parametrize("there", ["nothing", "nobody", "stranger"])
def test_without_an_arbiter_nothing_begins(tmp_path: Path, there: str) -> None:
    """No socket, one at which nobody listens, or not root: a process that was never registered
    waits for its context, ten seconds at most.
    """
    path = tmp_path / "enforcer.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        if there != "nothing":
            listener.bind(str(path))
        if there == "stranger":
            os.seteuid(12345)
            listener.listen(1000)  # the kernel notes who listens
            os.seteuid(0)
        with s.governed(tmp_path, s.CAP) as probe:
            assert probe.ask("init") == 0
            assert probe.ask("ctx 0") == s.OUT_OF_MEMORY
            path.unlink(missing_ok=True)
            arbiter = s.FakeArbiter(tmp_path, s.CAP)
            s.until(lambda: probe.ask("ctx 0") == 0)
            assert probe.ask(WORK[0]) == 0
            assert arbiter.card.proc("launches") == 1
            error = probe.finish()
    arbiter.stop()
    word = {"nothing": "is not there", "nobody": "is not running", "stranger": "is not root"}[there]
    assert error.count("\n") == 1 and "no device memory" in error and word in error


def test_arbiter_that_comes_in_time_is_waited_for(tmp_path: Path) -> None:
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        probe.send("ctx 0")
        assert not probe.answered(1)
        arbiter = s.FakeArbiter(tmp_path, s.CAP)
        assert int(probe.answer()) == 0
        assert probe.ask(WORK[0]) == 0
        assert not probe.finish()
    arbiter.stop()


def test_who_is_refused_after_a_restart_stands_still(tmp_path: Path) -> None:
    """Its old page says for ever that the gate is open; a successor that says no outweighs it."""
    arbiter = s.FakeArbiter(tmp_path, s.CAP, lease_ms=200)
    with s.governed(tmp_path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask("launch 0 0x10 3") == 0
        arbiter.stop()
        arbiter.status = errno.EPERM
        arbiter.start()
        s.until(lambda: arbiter.card.asked == [0])
        s.until(lambda: not answers_at_once(probe))
        assert not probe.answered(1.5), "longer than the lease"
        arbiter.status = 0
        assert int(probe.answer()) == 0
        assert probe.ask("launch 0 0x10 2") == 0
        assert "did not register it" in probe.finish()
    arbiter.stop()


def answers_at_once(probe: s.Probe) -> bool:
    """A launch that passes."""
    probe.send("launch 0 0x10 1")
    return probe.answered(0.2) and int(probe.answer()) == 0


def test_refused_card_leaves_the_others_governed(tmp_path: Path) -> None:
    """The first card of two is refused: the second has its gate and its cap, the first has
    neither work nor memory.
    """
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
        assert (
            arbiter.tenants[second].proc("launches"),
            arbiter.tenants[second].proc("mem_used"),
        ) == (
            3,
            s.MIB,
        )
        assert probe.ask("ctx 0") == s.OUT_OF_MEMORY, "refused, and not after ten seconds"
        asked = len(arbiter.tenants[second].asked)
        arbiter.tenants[second].set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        for _ in range(10):
            assert not probe.answered(0.1), "the other card's gate is not open for that"
            arbiter.tenants[second].beat()
        assert len(arbiter.tenants[second].asked) == asked
        arbiter.tenants[second].set(s.TRACK)
        assert int(probe.answer()) == 0
        arbiter.refused.clear()
        s.until(lambda: probe.ask("ctx 0") == 0)
        assert probe.ask("launch 0 0x10 5") == 0
        assert probe.ask(f"alloc 1 {s.MIB}") == 0
        assert (
            arbiter.tenants[first].proc("launches"),
            arbiter.tenants[first].proc("mem_used"),
        ) == (
            5,
            s.MIB,
        )
        assert len(arbiter.tenants[second].asked) == asked, (
            "on the same connection, for that card alone"
        )
        assert "did not register process" in probe.finish()
    arbiter.stop()


@pytest.mark.parametrize("which", [0, 1])
def test_card_that_is_to_ask_again_leaves_the_others_alone(tmp_path: Path, which: int) -> None:
    """The other of two is registered meanwhile, and looked after: a doorbell that is lost is
    replaced.
    """
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
        probe.send(f"ctx {which}")
        assert not probe.answered(0.3), "it waits for the answer"
        arbiter.refused[late] = errno.EPERM
        assert int(probe.answer(3)) == s.OUT_OF_MEMORY, "that is the answer"
        arbiter.refused.clear()
        s.until(lambda: probe.ask(f"ctx {which}") == 0)
        assert probe.ask(f"alloc 0 {s.MIB}") == 0
        assert len(arbiter.tenants[good].asked) == 2, "all that on one connection"
    arbiter.stop()
