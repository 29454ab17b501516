"""The shim under ThreadSanitizer, AddressSanitizer and UBSan: threads, moving gates, windows,
restarts, forks.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest
import shim_support as s
from room_support import tell

from enforcer.wire import abi

pytestmark = pytest.mark.native
OPTIONS = {
    "TSAN_OPTIONS": "exitcode=66 die_after_fork=0",
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
STATES = (s.CLOSED | s.TRACK, s.NOTIFY | s.TRACK, s.WINDOW | s.TRACK, s.TRACK)
BEFORE = ("init", "ctx 0", "stream 0", "launch 0 0x10 200", "sync 0", "threads 6 2000")
AFTER = (
    *("capture 0", "launch 0 0x10 5", "end_capture 0", "churn 300", "many 1 100 0x10", "ctx_sync"),
    *(
        "fork 4096",
        "fork_launch",
        "timeout 0 0x10 5",
        f"alloc 0 {s.GIB}",
        "alloc_async 1 4096 0",
        "free_async 1 0",
    ),
    *(
        "graph 0 0x20",
        "copy 0 2097152",
        "invoke cuGraphExecUpdate_v2 0x20 0 0",
        "free 0",
        "ctx_destroy 0",
    ),
)


def twin(kind: str) -> Path:
    return s.BUILD / "test" / f"shim-{kind}" / "libcuda.so.1"


def order(probe: s.Probe, command: str) -> None:
    probe.send(command)
    answer = probe.answer(120)
    assert answer == "0", (command, answer, probe.process.communicate() if not answer else "")


def move(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """The gate goes round until the order that runs is answered."""
    for state in itertools.cycle(STATES):
        arbiter.card.set(state)
        if probe.answered(0.02):
            break
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0


def wait_for_room(arbiter: s.FakeArbiter, probe: s.Probe) -> None:
    """Allocations of many threads, which are answered one after the other."""
    tell(arbiter.card, wait=1)
    order(probe, "refuse_allocs -60")
    order(probe, f"allocs 40 {s.MIB}")
    s.until(lambda: arbiter.card.proc("mem_wanted") > 30 * s.MIB)
    probe.send("allocs_join")
    while not probe.answered(0.01):
        tell(arbiter.card, "mem_retry")
        arbiter.card.set(s.TRACK | s.CLOSED | abi.GATE_WHY_MEMORY)
        arbiter.card.set(s.TRACK)
    assert probe.answer() == "0"


@pytest.mark.parametrize("kind", ["tsan", "asan"])
def test_sanitizer_finds_nothing(tmp_path: Path, kind: str) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    with s.governed(tmp_path, s.CAP, shim=twin(kind), env=OPTIONS) as probe:
        for command in BEFORE:
            order(probe, command)
        for window_us in (500, 20000):
            arbiter.card.gate_page.window_us = window_us
            arbiter.card.set(s.WINDOW | s.TRACK)
            order(probe, "threads 4 500")
        probe.send("threads 4 1500")
        move(arbiter, probe)
        probe.send("threads 4 1500")
        arbiter.stop()  # the daemon is restarted under running threads
        arbiter.start()
        s.until(lambda: len(arbiter.card.asked) >= 1, 20)
        move(arbiter, probe)
        for command in AFTER[:-1]:
            order(probe, command)
        wait_for_room(arbiter, probe)
        order(probe, AFTER[-1])
        error = probe.finish()
    arbiter.stop()
    assert "anitizer" not in error and "runtime error" not in error, error


@pytest.mark.parametrize(
    ("kind", "symbol"), [("tsan", "__tsan_write8"), ("asan", "__asan_report_load8")]
)
def test_the_twin_is_instrumented(kind: str, symbol: str) -> None:
    """The control of the test above: a plain library would find nothing either."""
    out = subprocess.run(
        ["nm", "-D", str(twin(kind))], capture_output=True, text=True, check=True
    ).stdout
    assert symbol in out
    libraries = subprocess.run(
        ["ldd", str(twin(kind))], env=dict(os.environ), capture_output=True, text=True
    )
    assert f"lib{kind}" in libraries.stdout
