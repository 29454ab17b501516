"""Memory of every kind, and what a process does with its cards, after it left them and came back
(tests/native/programs/checkpoint.c), also with the driver under sanitizers and on other cards.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkpoints as k
import pytest
from checkpoints import Process
from hostile import sanitized
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim_tools import BUILD, client_env, make, uuids

from simulator.sim import Simulator

pytestmark = pytest.mark.native
# Handles lie in memory that is no heap: what they alone point to would be called lost.
ASAN = {"ASAN_OPTIONS": "detect_leaks=0"}


class Program(Process):
    """The program that knows what its memory holds."""

    def __init__(self, sim: Simulator, name: str, seed: int) -> None:
        make(f"build/test/{name}")
        self.process = subprocess.Popen(
            [BUILD / "test" / name, str(seed)],
            env=client_env(sim, **ASAN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        super().__init__(sim, self.process.pid)
        self.heard()

    def heard(self) -> None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == "ok\n", self.process.communicate()[1]

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def does(self, command: str) -> None:
        self.tell(command)
        self.heard()

    def end(self) -> None:
        _, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, "")


@contextmanager
def program(sim: Simulator, name: str, seed: int) -> Iterator[Program]:
    made = Program(sim, name, seed)
    try:
        yield made
        made.end()
    finally:
        made.process.kill()
        made.process.communicate()


def swapped(sim: Simulator) -> dict[str, str]:
    one, two = uuids(sim)
    return {one: two, two: one}


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.lists(st.sampled_from(["leave", "move", "change", "work"]), min_size=1, max_size=6),
)
def test_everything_is_as_it_was(sim: Simulator, seed: int, steps: list[str]) -> None:
    other = swapped(sim)
    with program(sim, "sim-checkpoint", seed) as process:
        for step in steps:
            if step in ("leave", "move"):
                before = k.memory(sim)
                process.leave()
                assert k.memory(sim) == [(0, {}), (0, {})]
                process.come_back(other if step == "move" else None)
                after = k.memory(sim)
                assert after == (before[::-1] if step == "move" else before)
            else:
                process.does(step)
            process.does("same")
        process.does("work")
    assert k.memory(sim) == [(0, {}), (0, {})]


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_is_as_it_was_under_sanitizers(tmp_path: Path, seed: int) -> None:
    """Both the process and the device side."""
    with (
        sanitized(tmp_path, cards=2) as sim,
        program(sim, "sim-checkpoint-asan", seed) as process,
    ):
        other = swapped(sim)
        for pairs in (None, other, other):
            process.leave()
            process.come_back(pairs)
            for command in ("same", "work", "change", "same"):
                process.does(command)


def test_it_leaves_at_any_moment(sim: Simulator) -> None:
    """Commands run on while the process comes and goes, and end well."""
    with program(sim, "sim-checkpoint", os.getpid()) as process:
        for command in ("work", "change", "same", "work", "same") * 4:
            process.tell(command)
            process.leave()
            process.come_back()
            process.heard()
