"""PyTorch for CUDA 13 and for CUDA 12, unmodified, on the simulated driver under the shim. No test
compares results of kernels.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
from programs_support import busy_online, tenant
from runtime_support import CAP_MIB, OFFLINE, Program

from bench.harness.node import Rig, wait_for

TORCHES = ("torch-cuda13", "torch-cuda12")
STEPS = ("train", "infer", "conv", "attention", "amp", "graph", "streams", "loader", "ddp")
ALLOCATORS = {
    "caching": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
OUT_OF_MEMORY = re.compile(r"out of memory.*4\.00 GiB|Allocation on device", re.DOTALL)
CONTEXT_MIB = 512  # at most: code of kernels is loaded with the first of them

Start = Callable[..., Program]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_a_step_runs(program: Start, torch: str, job: int | None, step: str) -> None:
    running = program(torch, "torch", job)
    told = running.ask(step)
    assert told.get("same", True) and told.get("fork", 64) == told.get("spawn", 64) == 64
    running.end()


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("torch", TORCHES)
def test_the_cap_is_out_of_memory_and_the_program_goes_on(
    program: Start, torch: str, allocator: str
) -> None:
    running = program(torch, "torch", OFFLINE, **ALLOCATORS[allocator])
    told = running.ask("fill")
    assert CAP_MIB - 2 * CONTEXT_MIB <= told["held"] <= CAP_MIB and told["again"] == 64
    assert OUT_OF_MEMORY.search(told["words"]), told
    assert running.ask("train 3")["ms"] > 0
    assert "refused: job 2 holds" in running.end()


@pytest.mark.parametrize("torch", TORCHES)
def test_all_ways_to_ask_for_memory_tell_the_cap(program: Start, rig: Rig, torch: str) -> None:
    shims = f"{rig.shim}:{rig.shim.with_name('libnvidia-ml.so.1')}"
    running = program(torch, "torch", OFFLINE, LD_PRELOAD=shims)
    running.ask("train 3")
    seen, managed = running.ask("memory"), running.ask("nvml")
    assert seen["total"] == seen["properties"] == managed["total"] == CAP_MIB
    assert abs(seen["free"] - managed["free"]) <= 64
    assert CAP_MIB - seen["free"] >= seen["reserved"] > 0
    running.end()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_books_are_the_cards_after_many_operations(
    program: Start, rig: Rig, allocator: str
) -> None:
    """What the job is charged is what the card has for it, but for context and code, to the KiB."""
    running = program("torch-cuda13", "torch", OFFLINE, **ALLOCATORS[allocator])
    running.ask("churn 100")
    running.ask("fill")
    overhead = _held(rig) - tenant(rig).mem_used
    assert 0 < overhead <= CONTEXT_MIB << 20
    for number in range(1000, 1003):
        running.ask(f"churn {number}")
        wait_for("the books agree", lambda: _held(rig) - tenant(rig).mem_used == overhead)
    running.process.kill()
    running.process.communicate()
    wait_for("all of it is free", lambda: tenant(rig).mem_used == _held(rig) == 0)


def _held(rig: Rig) -> int:
    """Bytes that the card has for all processes on it, by NVML."""
    with contextlib.closing(rig.nvml()) as nvml:
        return sum(process.mem_used for process in nvml.processes(rig.uuids[0]))


def test_sleep_and_wake_give_everything_back(program: Start) -> None:
    running = program("torch-cuda13", "torch", OFFLINE)
    free = running.ask("sleep_wake 3")["free"]
    assert min(free) >= CAP_MIB - CONTEXT_MIB
    running.end()


@pytest.mark.parametrize("torch", TORCHES)
def test_training_stands_still_while_online_works(program: Start, rig: Rig, torch: str) -> None:
    running = program(torch, "torch", OFFLINE)
    running.ask("train 3")
    with busy_online(rig):
        running.send("train 3")
        wait_for("it waits at the gate", lambda: tenant(rig).busy)
        before = tenant(rig).launches
        assert tenant(rig).launches == before
    assert running.answer()["ms"] > 0
    assert tenant(rig).closed_preempted_ns > 0
    running.end()
