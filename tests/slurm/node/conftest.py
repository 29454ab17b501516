"""Fixtures of the live tests of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from jobs_support import Live

from cli.sandbox.cluster import Sandbox


@pytest.fixture(scope="module", params=["preload", "mount"])
def injection(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[str]:
    """Nodes whose jobs get the shim in that way; all tests of a way follow each other."""
    live = Live(sandbox)
    yaml = sandbox.layout.qgpu_yaml
    text = yaml.read_text()
    changed, found = re.subn(r"(?m)^injection: .*$", f"injection: {request.param}", text)
    assert found == 1
    try:
        yaml.write_text(changed)
        _restart(live)
        yield request.param
        live.empty()
    finally:
        yaml.write_text(text)
        _restart(live)


def _restart(live: Live) -> None:
    for node in live.nodes:
        if live.sandbox.services()[f"{node}.qgpud"]:
            live.stop_qgpud(node)
        live.sandbox.start(node, "qgpud")
