"""The healthy installation that these tests break."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from site_support import Site

from cli.doctor.checks import node, system


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """It needs device nodes, so root. The driver, qgpud's answer and the arbiter's threads are
    ports.
    """
    if os.geteuid() != 0:
        pytest.skip("makes device nodes")
    tmp_path.chmod(0o755)
    site = Site(tmp_path)
    monkeypatch.setattr(node, "PynvmlNvml", lambda library: site.nvml)

    def ask(
        run_dir: str, body: dict[str, Any], timeout: float = 0
    ) -> tuple[dict[str, object], list[int]]:
        return site.daemon, []

    monkeypatch.setattr(node, "ask", ask)
    monkeypatch.setattr(system.os, "sched_getscheduler", lambda tid: os.SCHED_FIFO)
    return site
