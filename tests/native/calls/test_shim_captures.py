"""Captures: when one is over, and that nothing of ours spoils one of another thread."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s

from bench.harness.node import BUILD, Rig

pytestmark = pytest.mark.native
INVALIDATED, UNMATCHED, UNJOINED, WRONG_THREAD = 901, 903, 904, 908


def asks(probe: s.Probe, stream: int = 0) -> bool:
    """Whether a launch still asks the driver if its stream captures."""
    before = probe.counts()["queries"]
    assert probe.ask(f"launch {stream} 0x10 1") == 0
    return probe.counts()["queries"] > before


@pytest.mark.parametrize("result", [0, INVALIDATED, UNJOINED])
def test_a_capture_that_ended_is_over_whatever_came_of_it(probe: s.Probe, result: int) -> None:
    assert probe.ask(f"end_result {result}") == 0
    assert probe.ask("capture 0") == 0
    assert asks(probe)
    assert probe.ask("end_capture 0") == result
    assert not asks(probe)


@pytest.mark.parametrize("result", [UNMATCHED, WRONG_THREAD])
def test_a_capture_that_goes_on_is_not_over(probe: s.Probe, result: int) -> None:
    assert probe.ask(f"end_result {result}") == 0
    assert probe.ask("capture 0") == 0
    assert probe.ask("end_capture 0") == result
    assert asks(probe)
    assert probe.ask("end_result 0") == 0
    assert probe.ask("end_capture 0") == 0
    assert not asks(probe)


def test_the_end_of_no_capture_ends_no_other(probe: s.Probe) -> None:
    assert probe.ask("stream 1") == 0
    assert probe.ask("capture 0") == 0
    assert probe.ask(f"end_result {UNMATCHED}") == 0
    assert probe.ask("end_capture 1") == UNMATCHED
    assert asks(probe, 1)


def test_a_destroyed_stream_takes_its_capture_with_it(probe: s.Probe) -> None:
    assert probe.ask("stream 1") == 0
    assert probe.ask("capture 0") == 0
    assert probe.ask("destroy 0") == 0
    assert not asks(probe, 1)


def test_a_context_that_ends_takes_its_captures_with_it(probe: s.Probe) -> None:
    assert probe.ask("capture 0") == 0
    assert asks(probe)
    assert probe.ask("ctx_destroy 0") == 0
    assert probe.ask("ctx 0") == 0
    assert probe.ask("stream 1") == 0
    assert not asks(probe, 1)


def test_a_thread_that_ends_takes_the_capture_of_its_own_stream_with_it(probe: s.Probe) -> None:
    assert probe.ask("capture_in_thread") == 0
    assert not asks(probe)


def test_stream_first_used_during_a_capture_is_fast_after_it() -> None:
    done = subprocess.run(
        [s.BUILD / "test" / "shim-seen-unit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")
def test_questions_of_ours_spoil_no_capture_of_another_thread(tmp_path: Path) -> None:
    """The driver takes its time over our event query, so that captures begin between what we
    know and what it hears.
    """
    with Rig(tmp_path, settings={"idle_release_ms": 1}) as rig:
        offline, online = rig.grant(2, "offline"), rig.grant(1, "online")
        program = rig.spawn(
            [BUILD / "test/shim-task", "captures", "600"], offline, stdin=subprocess.PIPE, bufsize=1
        )
        assert program.stdout and program.stdin
        assert program.stdout.readline().strip() == "ready"
        assert rig.fault(f"delay call=cuEventQuery us=2000 pid={program.pid}") >= 0
        # an online tenant is there: a window of 500 us
        watch = a.Tenant(rig.run_dir, online, rig.uuids[0])
        program.stdin.write("\n")
        program.stdin.flush()
        turns = 0
        while program.poll() is None and not s.readable_within(program.stdout.fileno(), 0.03):
            turns += watch.begin()  # and offline's thread stands at its gate now and then
            s.readable_within(program.stdout.fileno(), 0.01)
            watch.finish()
        assert program.stdout.readline().strip() == "0 spoiled", (
            program.stderr and program.stderr.read()
        )
        assert program.wait(60) == 0
        watch.close()
    assert turns > 5
