"""One sandbox for all live tests of a run; it is brought up when the first of them asks for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import DEFAULT_ROOT, SandboxOptions


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs root and a live cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason="a sandbox needs root"))


def _remove_abandoned() -> None:
    """Sandboxes of test runs that were killed; they are named after the process id of their run."""
    for state in DEFAULT_ROOT.glob("t*"):
        match = re.fullmatch(r"t(\d+)", state.name)
        if match and not Path("/proc", match[1]).exists():
            Sandbox(SandboxOptions(state.name)).down()


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A running sandbox of two nodes with two 80 GiB cards each, shared by all live tests."""
    _remove_abandoned()
    cluster = Sandbox(SandboxOptions(f"t{os.getpid()}"), progress=print)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    """The shared sandbox with an empty queue before and after the test, and no node out of service."""
    found = Live(sandbox)
    found.empty()
    yield found
    found.empty()
    assert not found.drained(), "the test left a node out of service"
