"""Several PyTorch trainings on one card get it by their shares. Each kernel takes 2 ms: trainings
wait for the card and not for the processors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_support import CAP_MIB, Program, answering

from bench.harness.node import Rig, wait_for
from simulator.sim import busy_ns

TORCHES = ("torch-cuda13", "torch-cuda12")
KERNEL_US = 2000
WARM_UP, KERNELS = 20, 150  # of each training, at least: before the time that counts, and in it
ENDLESS = 1_000_000  # steps
FIRST_JOB = 11
Start = Callable[..., Program]
SHARES = {"two": (30, 60), "five": (10, 15, 20, 25, 30)}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with one card on which each kernel takes the same time."""
    answering()
    costs = tmp_path / "costs"
    costs.write_text(f"* {KERNEL_US}us\n")
    with Rig(tmp_path, sim_options=("--kernel-cost", str(costs))) as running:
        yield running


def launches(rig: Rig) -> dict[int, int]:
    """Launches of each job so far."""
    return {tenant.job_id: tenant.launches for tenant in rig.link.stats()}


def all_launch(rig: Rig, number: int) -> None:
    """Wait until each job has launched that number of further kernels."""
    before = launches(rig)
    wait_for(
        f"{number} launches of each job",
        lambda: all(now - before[job] >= number for job, now in launches(rig).items()),
        seconds=60,
    )


@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_trainings_get_the_card_by_their_shares(
    program: Start, rig: Rig, torch: str, shares: tuple[int, ...]
) -> None:
    """By what the card executed while all of them had work, each within a fifth of its part."""
    running = {}
    for job, share in enumerate(shares, FIRST_JOB):
        rig.grant(job, "offline", share, mem_mib=CAP_MIB)
        running[job] = program(torch, "torch", job)
    for training in running.values():
        training.ask("train 1")
    for training in running.values():
        training.send(f"train {ENDLESS}")
    all_launch(rig, WARM_UP)
    begin = time.monotonic_ns()
    all_launch(rig, KERNELS)
    end = time.monotonic_ns()
    busy = busy_ns(rig.trace(), begin, end)
    had = [busy[training.process.pid] / sum(busy.values()) for training in running.values()]
    due = [share / sum(shares) for share in shares]
    assert had == pytest.approx(due, rel=0.2)
