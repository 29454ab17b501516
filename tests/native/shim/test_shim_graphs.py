"""What graphs keep and captures take, with the shim as without (tests/native/programs/graphs.c)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs_support import OFFLINE, ended

from bench.harness.node import BUILD, Rig

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A job that has both cards of its node."""
    with Rig(tmp_path, cards=2) as running:
        running.grant(OFFLINE, "offline", mem_mib=4096, card=(0, 1))
        yield running


@pytest.mark.parametrize("governed", [False, True], ids=["alone", "shim"])
@pytest.mark.parametrize("what", ["arguments", "boxes", "children"])
def test_graphs(rig: Rig, what: str, governed: bool) -> None:
    argv = [BUILD / "test/sim-graphs", what]
    process = rig.spawn(argv, rig.grants[OFFLINE] if governed else None)
    assert ended(process, 60)[0] == "two cards"
