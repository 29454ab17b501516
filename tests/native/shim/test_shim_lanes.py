"""Counting launches without an atomic operation, what stands in for it, and an arbiter of
another version.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_support as s
from filter_support import MEMBARRIER, without

from enforcer.fdwait import readable_within
from enforcer.wire import abi

pytestmark = pytest.mark.native


@contextlib.contextmanager
def job(tmp_path: Path, wrap: tuple[str, ...] = ()) -> Iterator[s.Probe]:
    """A started probe with one stream."""
    with s.governed(tmp_path, s.CAP, wrap) as probe:
        s.started(probe)
        assert probe.ask("stream 0") == 0
        yield probe


def counted(arbiter: s.FakeArbiter) -> tuple[int, int, int]:
    """(in lanes of single threads, in the shared lane, in the atomic counter)."""
    lanes = arbiter.card.lanes()
    return sum(lanes[:15]), lanes[15], arbiter.card.job_page.procs[0].launches


def test_each_thread_counts_in_a_lane_of_its_own(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with job(tmp_path) as probe:
        assert probe.ask("launch 0 0x10 1000") == 0
        assert counted(arbiter) == (1000, 0, 0)
        assert probe.ask("threads 6 500") == 0
        assert counted(arbiter) == (4000, 0, 0)
        assert sum(1 for lane in arbiter.card.lanes() if lane) == 7


def test_lanes_of_threads_that_ended_are_used_again(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with job(tmp_path) as probe:
        for _ in range(5):
            assert probe.ask("threads 6 300") == 0
        assert counted(arbiter) == (5 * 6 * 300, 0, 0)


def test_threads_beyond_the_lanes_share_the_last(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with job(tmp_path) as probe:
        assert probe.ask("threads 40 400") == 0
        own, shared, atomic = counted(arbiter)
    assert (own + shared, atomic) == (40 * 400, 0)
    assert shared > 0


def test_small_and_large_gate_words_are_seen_by_the_next_launch(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    """The fast path looks at the word each time: a closed gate holds the very next launch."""
    with job(tmp_path) as probe:
        for _ in range(20):
            assert probe.ask("launch 0 0x10 100") == 0
            before = arbiter.card.proc("launches")
            arbiter.card.set(s.CLOSED | s.TRACK)
            probe.send("launch 0 0x10 1")
            s.until(lambda: arbiter.card.proc("waiting") == 1)
            assert arbiter.card.proc("launches") == before + 1, "counted once, before it waits"
            arbiter.card.set(s.TRACK)
            assert int(probe.answer()) == 0


def test_without_membarrier_launches_are_counted_atomically(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    wrap = without(tmp_path, MEMBARRIER)
    if subprocess.run([*wrap, "/bin/true"], check=False).returncode == 77:
        pytest.skip("this kernel lets nobody filter system calls")
    with job(tmp_path, wrap=wrap) as probe:
        assert probe.ask("launch 0 0x10 1000") == 0
        assert probe.ask("threads 4 500") == 0
        assert counted(arbiter) == (0, 0, 3000)
        arbiter.card.set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        s.until(lambda: arbiter.card.proc("waiting") == 1)
        arbiter.card.set(s.TRACK)
        assert int(probe.answer()) == 0


def test_forked_child_has_lanes_of_its_own(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    with job(tmp_path) as probe:
        assert probe.ask("launch 0 0x10 10") == 0
        assert probe.ask("fork_launch") == 0
        assert probe.ask("launch 0 0x10 10") == 0
    assert arbiter.card.proc("launches") == 20
    assert arbiter.card.proc("launches", slot=1) == 3


@pytest.mark.parametrize("version", [abi.ABI_VERSION - 1, abi.ABI_VERSION + 1])
def test_an_arbiter_of_another_version_is_waited_for(tmp_path: Path, version: int) -> None:
    """There is no context unregistered, and the program says why; the next arbiter registers it."""
    arbiter = s.FakeArbiter(tmp_path, s.CAP, speaks=version)
    with s.governed(tmp_path, s.CAP) as probe:
        assert probe.ask("init") == 0
        assert probe.ask("ctx 0") == s.OUT_OF_MEMORY
        assert probe.process.stderr and readable_within(probe.process.stderr.fileno(), 30)
        assert "it speaks another version of the protocol" in probe.process.stderr.readline()
        assert set(arbiter.versions) == {abi.ABI_VERSION}
        arbiter.stop()
        arbiter.speaks = abi.ABI_VERSION  # the node was upgraded under the job
        arbiter.start()
        s.until(lambda: probe.ask("ctx 0") == 0)
        assert probe.ask("launch 0 0x10 1") == 0
        assert arbiter.card.asked == [0] and counted(arbiter) == (1, 0, 0)
    arbiter.stop()


def test_filter_of_the_test_really_refuses(tmp_path: Path) -> None:
    """The control of the membarrier test: under the filter the call fails."""
    ask = textwrap.dedent("""
        import ctypes, sys
        libc = ctypes.CDLL(None, use_errno=True)
        sys.exit(0 if libc.syscall(324, 4, 0, 0) == -1 and ctypes.get_errno() == 38 else 1)
    """)
    argv = [*without(tmp_path, MEMBARRIER), sys.executable, "-c", ask]
    code = subprocess.run(argv, env=dict(os.environ), check=False).returncode
    if code == 77:
        pytest.skip("this kernel lets nobody filter system calls")
    assert code == 0


def test_who_stands_at_the_gate_sleeps_on_its_word(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """And is woken when it changes. Each 50 ms it looks by itself, and is then awake for a
    moment.
    """
    woken = 0
    for _ in range(5):
        arbiter.card.set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        s.until(lambda: arbiter.card.proc("waiting") == 1)
        assert not probe.answered(0.02)
        woken += arbiter.card.set(s.TRACK)
        assert int(probe.answer()) == 0
    assert woken >= 1
