"""What tests of the simulated driver share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from image_reader import Reader
from sim_tools import make, start

from simulator.sim import Simulator


@pytest.fixture(scope="module")
def built() -> None:
    make(
        "build/bin/qgpu-simgpu",
        "build/sim/libcuda.so.1",
        "build/sim/libnvidia-ml.so.1",
        "build/bin/qgpu-workload",
    )


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    """Two cards, unless a file has its own."""
    with start(
        tmp_path / "sim", cards=2, memory_mib=4096, minor_base=os.getpid() % 1000 * 16
    ) as simulator:
        yield simulator


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    make("build/test/sim-image-test")
    program = Reader()
    yield program
    program.end()
