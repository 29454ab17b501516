"""Programs that nvcc compiled, on the simulated driver: with the runtime inside, as a library, and
with a default stream for each thread.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from programs_support import busy_online, tenant
from runtime_support import OFFLINE, Program, built, libraries

from bench.harness.node import Rig, wait_for
from enforcer.wire import abi

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
KINDS = {
    "static": ("-cudart", "static"),
    "shared": ("-cudart", "shared"),
    "per_thread": ("-cudart", "static", "-default-stream", "per-thread"),
}


@pytest.fixture(scope="module", params=KINDS)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built in one of the ways."""
    return built(tmp_path_factory.mktemp("nvcc"), "app.cu", *KINDS[request.param])


def started(rig: Rig, app: Path, job: int | None) -> Program:
    """The program; where it needs libcudart, that of the package."""
    places = f"{rig.driver.parent}:{libraries()[-1].parent}"
    return Program(rig, [app], job, LD_LIBRARY_PATH=places)


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_kernels_variables_and_graphs(rig: Rig, app: Path, job: int | None) -> None:
    program = started(rig, app, job)
    for _ in range(2):
        told = program.ask("once")
        assert told["fails"] == 0, program.end()
        assert (told["constant"], told["variable"], told["address"]) == (112, 12, 1)
        assert (told["shared"], told["threads"], told["nodes"]) == (1024, 1024, 20)
        assert 0 < told["registers"] < 64 and told["blocks"] == 8
        assert told["milliseconds"] > 0
    assert program.end() == ""
    if job:
        # Two runs: 20 kernels alone, and 5 launches of a graph.
        assert tenant(rig).launches >= 2 * (20 + 5)


def test_a_closed_gate_stops_a_loop_of_kernels(rig: Rig, app: Path) -> None:
    program = started(rig, app, OFFLINE)
    assert program.ask("work") == {"works": 1}
    with busy_online(rig):
        wait_for("it waits at the gate", lambda: tenant(rig).gate & abi.GATE_CLOSED)
        before = tenant(rig).launches
        assert tenant(rig).launches - before <= 64
    wait_for("it goes on", lambda: tenant(rig).launches > before + 100)
    program.process.send_signal(signal.SIGTERM)
    told = program.answer()
    assert told["fails"] == 0 and told["launches"] > 100
    assert program.end() == ""


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_large_variables_and_limits_count(rig: Rig, tmp_path: Path, job: int | None) -> None:
    """The variables with the first kernel: the runtime leaves its images to be loaded late."""
    program = Program(
        rig, [built(tmp_path, "variables.cu")], job, LD_LIBRARY_PATH=str(rig.driver.parent)
    )
    for _ in range(2):
        told = program.ask("once")
        assert told["used"] == [64 + 8, 64 + 8 + 64, 0]
        assert told["status"] == [0, 0, 2 if job else 0]
        if job:
            assert tenant(rig).mem_used == 0, "the reset gave all back"
    error = program.end()
    assert ("refused: job 2 holds" in error) == bool(job), error
