"""PyTorch, unmodified, under the shim: it is taken off its card and brought back while it trains,
serves and captures, and by its allocators of all kinds.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from checkpoints import OK, Process
from programs_support import tenant
from runtime_support import OFFLINE, Program
from test_torch import ALLOCATORS, TORCHES

from bench.harness.node import Rig
from enforcer.fdwait import readable_within

Start = Callable[..., Program]
STEPS = ("train 20", "graph", "streams", "churn 200", "keep", "loader", "conv", "kept")


def _away_and_back(process: Process) -> None:
    assert (process.lock(), process.checkpoint()) == (OK, OK)
    assert (process.restore(), process.unlock()) == (OK, OK)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("torch", TORCHES)
def test_it_leaves_at_any_moment_and_goes_on(
    program: Start, rig: Rig, torch: str, allocator: str
) -> None:
    """Tensors keep their contents; the books of the job are those of before."""
    running = program(torch, "torch", OFFLINE, **ALLOCATORS[allocator])
    process, draw = Process(None, running.process.pid), random.Random(3)
    running.ask("train 3")
    for step in STEPS:
        running.send(step)
        assert running.process.stdout
        while not readable_within(running.process.stdout.fileno(), draw.random() * 0.05):
            _away_and_back(process)
        assert running.answer().get("same", True)
    before = tenant(rig).mem_used
    _away_and_back(process)
    assert running.ask("kept")["same"]
    assert tenant(rig).mem_used == before > 0
    assert "qgpu:" not in running.end()
