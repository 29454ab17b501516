"""Every group of calls that submit work, under shim, arbiter and simulated card: each call meets a
closed gate once.

The programs (programs/submit/sub_*.c) say before each call what must be counted and what the card
must have run; the card's own trace is compared with that in the end, so nothing is lost, doubled,
or let through early.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from arbiter_support import ARBITER_ASAN
from shim_submit_support import site, walk

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.getuid() != 0, reason="needs root: sealed grants"),
]
GROUPS = {"sub_kernel": 17, "sub_copy": 53, "sub_fill": 36, "sub_order": 26, "sub_graph": 14}


@pytest.mark.parametrize("program", GROUPS)
def test_group(tmp_path: Path, program: str) -> None:
    with site(tmp_path) as one:
        steps = walk(one, program)
    assert len(steps) >= GROUPS[program]


@pytest.mark.parametrize("program", ["sub_kernel", "sub_graph", "sub_copy", "sub_fill"])
def test_group_under_sanitizers(tmp_path: Path, program: str) -> None:
    with site(tmp_path, ARBITER_ASAN) as one:
        walk(one, program, sanitized=True)
