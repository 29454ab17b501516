"""Captures: when one is over, and that nothing of ours spoils one of another thread."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import arbiter_support as a
import pytest
import shim_support as s

from bench.rig import BUILD, Rig

pytestmark = pytest.mark.native


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants")
def test_questions_of_ours_spoil_no_capture_of_another_thread(tmp_path: Path) -> None:
    """The driver takes its time over our event query, so that captures begin between what we know and what it hears."""
    with Rig(tmp_path, settings={"idle_release_ms": 1}) as rig:
        offline, online = rig.grant(2, "offline"), rig.grant(1, "online")
        program = rig.spawn(
            [BUILD / "test/shim-task", "captures", "300"], offline, stdin=subprocess.PIPE, bufsize=1
        )
        assert program.stdout and program.stdin
        assert program.stdout.readline().strip() == "ready"
        assert rig.fault(f"delay call=cuEventQuery us=2000 pid={program.pid}") >= 0
        watch = a.Tenant(rig.run_dir, online, rig.uuids[0])  # there is somebody online: a window of 500 us
        program.stdin.write("\n")
        program.stdin.flush()
        turns = 0
        while program.poll() is None and not s.readable_within(program.stdout.fileno(), 0.03):
            turns += watch.begin()  # and offline's thread stands at its gate now and then
            s.readable_within(program.stdout.fileno(), 0.01)
            watch.finish()
        assert program.stdout.readline().strip() == "0 spoiled", program.stderr and program.stderr.read()
        assert program.wait(20) == 0
        watch.close()
    assert turns > 5
