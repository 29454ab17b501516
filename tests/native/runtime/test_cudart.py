"""Unmodified libcudart of CUDA 12 and 13 on the simulated driver, without the shim and with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs_support import busy_online, tenant
from runtime_support import CAP_MIB, OFFLINE, ROOT, cudart, libraries

from bench.harness.node import Rig, wait_for

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
CARD_MIB = 81920
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
CALLS = 57
VERSIONS = (12, 13)


@pytest.fixture(params=VERSIONS, ids=lambda version: f"cuda{version}")
def library(request: pytest.FixtureRequest) -> Path:
    """The runtime of that major version; setup installs both."""
    (found,) = [path for path in libraries() if path.suffix == f".{request.param}"]
    return found


@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_all_calls_succeed(rig: Rig, library: Path, job: int | None) -> None:
    program = cudart(rig, library, job)
    told = program.ask("calls")
    assert (told["failed"], told["number"]) == ([], CALLS)
    assert (told["count"], told["device"], told["major"]) == (1, 0, 9)
    assert told["runtime"] // 1000 == int(library.suffix[1:]) and told["driver"] == 13000
    assert (told["bytes"], told["byte"]) == ([7], 5), "fills and copies are real"
    assert told["milliseconds"] > 0
    assert 240 <= told["freed"] <= 260, "the reset gave back 256 MiB, and 1 MiB is held again"
    assert told["memory"][1] == (CAP_MIB if job else CARD_MIB)
    assert program.end() == ""


def test_the_cap_is_what_the_runtime_sees(rig: Rig, library: Path) -> None:
    program = cudart(rig, library, OFFLINE)
    told = program.ask("fill")
    assert told["status"] == OUT_OF_MEMORY and told["memory"][1] == CAP_MIB
    assert CAP_MIB - 1024 <= told["held"] <= CAP_MIB
    assert program.ask("fill")["held"] == told["held"], "it goes on after the refusal"
    assert "refused: job 2 holds" in program.end()
    assert cudart(rig, library, None).ask("fill")["held"] > 16 * CAP_MIB, "alone: the whole card"


def test_a_closed_gate_holds_its_work_back(rig: Rig, library: Path) -> None:
    program = cudart(rig, library, OFFLINE)
    assert program.ask("calls")["failed"] == []
    with busy_online(rig):
        program.send("calls")
        wait_for("it waits at the gate", lambda: tenant(rig).busy)
        assert program.process.poll() is None
    assert program.answer()["failed"] == []
    assert tenant(rig).closed_preempted_ns > 0
    assert program.end() == ""


def test_without_the_answer_to_its_test_the_runtime_refuses_the_driver(
    rig: Rig, library: Path
) -> None:
    """The control: the same driver built with SIM_RUNTIME=0."""
    driver = ROOT / "build/test/sim-no-answer"
    told = cudart(rig, library, None, LD_LIBRARY_PATH=str(driver)).ask("calls")
    assert len(told["failed"]) > 40


def test_debug_names_what_is_not_served(rig: Rig, library: Path) -> None:
    program = cudart(rig, library, None, QGPU_SIM_DEBUG="1")
    assert program.ask("calls")["failed"] == []
    lines = program.end().splitlines()
    # One table that the runtime of CUDA 12.9 and later asks for, and does without.
    assert set(lines) <= {"qgpu-sim: export table f8cff95121468b4eb9e2fb469e7c0dd9 is not known"}
    assert lines or library.suffix == ".12"
