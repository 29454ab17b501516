"""The site that the tests of the packages share; they run in the order of their names, as a site's admin would work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import site as sites
from harness.machine import Machine
from harness.site import Site

STATE = Path("/var/lib/qgpu-install")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder carry the marker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.install)


def cards(node: Machine) -> None:
    """What a driver leaves on a node: device files."""
    lines = "".join(f"c+ /dev/qgpusim{index} 0666 root root - 245:{index}\n" for index in (0, 1))
    node.write("/etc/tmpfiles.d/cards.conf", lines)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Four hosts with a stock Slurm that works."""
    suite, tree = os.environ["QGPU_INSTALL_SUITE"], Path(os.environ["QGPU_INSTALL_TREE"])
    with sites.running(suite, tree, STATE / suite, cards) as up:
        yield up
