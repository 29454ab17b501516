"""Arguments that nodes keep, captured copies and fills of all kinds, and launches into captures
(tests/native/programs/graphs.c); the driver runs under sanitizers and counts what it gives back.
"""

from __future__ import annotations

import subprocess

import pytest
from sim_tools import BUILD, client_env, make

from simulator.sim import Kind, Simulator

pytestmark = pytest.mark.native
# Handles lie in memory that is no heap: what they alone point to would be called lost.
ASAN = {"ASAN_OPTIONS": "detect_leaks=0"}


def program(sim: Simulator, what: str) -> None:
    make("build/test/sim-graphs-asan")
    argv = [BUILD / "test/sim-graphs-asan", what]
    done = subprocess.run(
        argv, env=client_env(sim, **ASAN), capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "two cards\n"), done.stderr


@pytest.mark.parametrize("what", ["arguments", "children"])
def test_what_graphs_keep(sim: Simulator, what: str) -> None:
    program(sim, what)


def test_captures_take_boxes_rows_and_copies_between_cards(sim: Simulator) -> None:
    program(sim, "boxes")
    sim.stop()
    kinds = [piece.kind for piece in sim.intervals()]
    assert kinds.count(Kind.PEER) == 2
