"""The micro-benchmark of the shim measures the state that it is asked for."""

from __future__ import annotations

import os
import subprocess

import pytest

from bench.harness.node import BUILD

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a grant"),
    pytest.mark.timeout(120),
]


def told(*args: str) -> dict[str, float]:
    run = subprocess.run(
        [BUILD / "test/launch-bench", "--pairs", "3", *args],
        check=True,
        capture_output=True,
        text=True,
    )
    return {
        name: float(value) for name, value in (line.split() for line in run.stdout.splitlines())
    }


def test_launches_with_one_and_8_threads_and_allocations_are_timed() -> None:
    found = told("--live", "10")
    assert {
        "launch_overhead_ns",
        "launch_overhead_ns_8t",
        "launch_default_stream_overhead_ns",
    } <= set(found)
    assert {"alloc_pair_overhead_ns", "alloc_pair_live_overhead_ns"} <= set(found)
    figures = {name for name in found if name.endswith(("_ns", "_8t"))}
    assert all(found[f"{name}_unit"] > 0 for name in figures), "each has the machine's unit beside"


@pytest.mark.parametrize("window", ["0", "400", "20000"])
def test_in_any_window_launches_alone_can_be_timed(window: str) -> None:
    found = told("--live", "-1", "--window-us", window)
    assert {"launch_overhead_ns", "launch_overhead_ns_8t"} <= set(found)
    assert not any(name.startswith("alloc") for name in found)


def test_a_wrong_option_is_said() -> None:
    run = subprocess.run(
        [BUILD / "test/launch-bench", "--kernel-us", "0"], capture_output=True, text=True
    )
    assert run.returncode == 2 and "--kernel-us 1 or more" in run.stderr
