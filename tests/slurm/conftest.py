"""One sandbox for all live tests of a run; it is brought up when the first of them asks for it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import dead_daemons
import pytest
from jobs_support import Live, alone

from cli.sandbox import files
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import DEFAULT_ROOT, SandboxOptions

SHARED: list[Sandbox] = []  # once it is up


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs root and a live cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason="a sandbox needs root"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """A failed test's report says which daemons of its sandbox have ended by themselves."""
    outcome = yield
    report = outcome.get_result()
    fixtures = getattr(item, "funcargs", {}).values()
    if report.failed and (
        text := dead_daemons.report(dead_daemons.sandboxes([*SHARED, *fixtures]))
    ):
        report.sections.append((dead_daemons.TITLE, text))


def _remove_abandoned() -> None:
    """Sandboxes of test runs that were killed; they are named after the process id of their run."""
    for state in DEFAULT_ROOT.glob("t*"):
        match = re.fullmatch(r"t(\d+)", state.name)
        if match and not Path("/proc", match[1]).exists():
            try:
                Sandbox(SandboxOptions(state.name)).down()
            except (SandboxError, OSError):
                # Its end was killed as well, or another run removes it just now.
                shutil.rmtree(state, ignore_errors=True)


def keep_logs(cluster: Sandbox) -> None:
    """The daemons' logs of a sandbox in which a test failed, below build/failed: it is gone when
    somebody looks.
    """
    target = files.build_dir() / "failed" / cluster.options.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(cluster.layout.state / "log", target)
    print(f"the logs of the sandbox are in {target}")


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A running sandbox of two nodes with two 80 GiB cards each, shared by all live tests."""
    _remove_abandoned()
    cluster = Sandbox(SandboxOptions(f"t{os.getpid()}"), progress=print)
    cluster.up()
    SHARED.append(cluster)
    yield cluster
    SHARED.clear()
    if request.session.testsfailed:
        keep_logs(cluster)
    cluster.down()


@pytest.fixture
def live(sandbox: Sandbox) -> Iterator[Live]:
    """The shared sandbox with an empty queue before and after the test, and no node out of
    service.
    """
    yield from alone(Live(sandbox))
