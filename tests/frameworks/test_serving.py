"""What serving engines do with memory, under a cap: pools that grow, weights that sleep, models
that take turns. On the simulated driver copies move real bytes, so weights are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_support import OFFLINE, Program, answering

from bench.harness.node import Rig

TORCHES = ("torch-cuda13", "torch-cuda12")
CAP_MIB = 1536
CONTEXT_MIB = 512  # at most, with cuBLAS's own memory
SIZE_MIB = 768  # of weights: more than half of what the cap leaves
SLEEP_MIB = 256
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

Start = Callable[..., Program]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with one card and a job with a small cap."""
    answering()
    with Rig(tmp_path) as running:
        running.grant(OFFLINE, "offline", mem_mib=CAP_MIB)
        yield running


@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("settings", [{}, EXPANDABLE], ids=["caching", "expandable"])
def test_a_decode_loop_grows_to_the_cap_and_goes_on(
    program: Start, torch: str, settings: dict[str, str]
) -> None:
    running = program(torch, "serving", OFFLINE, **settings)
    told = running.ask("decode")
    first, second = told["blocks"]
    assert 4 <= first <= CAP_MIB // 64 and abs(first - second) <= 1, told
    assert told["replays"] > first and told["free"] >= CAP_MIB - CONTEXT_MIB - 64, told
    assert "refused: job 2 holds" in running.end()


@pytest.mark.parametrize("torch", TORCHES)
def test_sleep_gives_all_back_and_wake_brings_it_to_the_same_place(
    program: Start, torch: str
) -> None:
    running = program(torch, "serving", OFFLINE)
    told = running.ask(f"sleep {SLEEP_MIB}")
    assert told["same"]
    gained = [b - a for a, b in zip(told["awake"], told["asleep"], strict=True)]
    # a new context is counted a little later: between the two of one round at most
    assert sorted(gained)[1:2] == [SLEEP_MIB] and min(told["asleep"]) >= CAP_MIB - CONTEXT_MIB
    running.end()


@pytest.mark.parametrize("torch", TORCHES)
def test_two_models_take_turns_under_a_cap_for_one(program: Start, torch: str) -> None:
    running = program(torch, "serving", OFFLINE)
    told = running.ask(f"turns {SIZE_MIB}")
    assert told["refused"] and told["same"]
    assert min(told["free"]) >= CAP_MIB - CONTEXT_MIB and len(set(told["free"][-2:])) == 1
    assert "refused: job 2 holds" in running.end()
