"""Fixtures of the tests of real CUDA programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_support import CAP_MIB, OFFLINE, ONLINE, answering

from bench.harness.node import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with one card and a job of each class."""
    answering()
    with Rig(tmp_path) as running:
        running.grant(ONLINE, "online", mem_mib=CAP_MIB)
        running.grant(OFFLINE, "offline", mem_mib=CAP_MIB)
        yield running
