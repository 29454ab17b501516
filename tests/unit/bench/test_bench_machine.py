"""The bench's description of its machine, and its choice among runs."""

from __future__ import annotations

import os
import time
from collections import namedtuple
from pathlib import Path

import pytest

from bench.harness.calibration import CALL, WAKE_UP, calibrated
from bench.harness.machine import CpuTime, calmest, kept_awake


def test_the_host_s_part_is_of_all_time() -> None:
    before = CpuTime(1000, 60)
    assert before.stolen_percent(CpuTime(1200, 70)) == 5.0
    assert before.stolen_percent(before) == 0.0


def test_guests_of_the_machine_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = "user nice system idle iowait irq softirq steal guest guest_nice"
    times = namedtuple("times", fields)(100, 5, 20, 800, 10, 1, 4, 60, 7, 3)
    monkeypatch.setattr("bench.harness.machine.psutil.cpu_times", lambda: times)
    assert CpuTime.now() == CpuTime(1000, 60)


def chosen(stolen: list[int]) -> tuple[int, int]:
    """Which run counts, and how many there were, if so many of 1000 ticks are stolen in each of
    them.
    """
    runs: list[int] = []
    clock = CpuTime(0, 0)

    def read() -> CpuTime:
        return clock

    def measure() -> int:
        nonlocal clock
        clock = CpuTime(clock.total + 1000, clock.stolen + stolen[len(runs)])
        runs.append(len(runs))
        return runs[-1]

    return calmest(measure, read), len(runs)


def test_a_calm_run_is_not_repeated() -> None:
    assert chosen([9]) == (0, 1)


def test_the_calmer_of_two_runs_counts() -> None:
    assert chosen([50, 5]) == (1, 2)
    assert chosen([50, 80]) == (0, 2)


def of_lowest_rank(pid: int) -> int:
    """How many threads of this process run under SCHED_IDLE."""
    return sum(
        os.sched_getscheduler(int(t.name)) == os.SCHED_IDLE
        for t in Path(f"/proc/{pid}/task").iterdir()
    )


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_a_thread_of_the_lowest_rank_keeps_each_processor_awake() -> None:
    before = children()
    with kept_awake():
        (keeper,) = children() - before
        deadline = time.monotonic() + 10
        while of_lowest_rank(keeper) < len(os.sched_getaffinity(0)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert of_lowest_rank(keeper) == len(os.sched_getaffinity(0))
    assert children() == before


@pytest.mark.native
def test_the_units_of_the_machine_are_measured_until_told_to_stop() -> None:
    with calibrated() as machine:
        assert not machine.told
    assert machine.told["samples"] >= 1
    assert 0 < machine.ns(CALL) < machine.ns(WAKE_UP)
    assert "a PLT call with an atomic add" in machine.words()
