"""What tests of the shim share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, ONLINE

from bench.harness.node import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with two cards and a job of each class, unless a file has its own."""
    with Rig(tmp_path, cards=2) as running:
        running.grant(ONLINE, "online", mem_mib=1024)
        running.grant(OFFLINE, "offline", mem_mib=4096)
        yield running
