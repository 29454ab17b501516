"""What every test module shares: fake nodes, and that no test leaves anything open for others to
stumble over.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from left_support import Open, children, descriptors, left, left_for_good

from enforcer.daemon.node import NodeService
from simulator.fakes import FakeNode

# No example has a time limit, because the machine may be busy.
settings.register_profile("qgpu", deadline=None)
settings.load_profile("qgpu")

ROOT = Path(__file__).resolve().parent
FAILED = pytest.StashKey[bool]()
# Files that take longest. They begin first, or one worker would still have one of them when all
# others are done.
LONG = (
    "test_real_schedules.py",
    "test_jobs_failures.py",
    "test_shim_memory_model.py",
    "test_gpu_sim.py",
    "test_jobs_accounting.py",
    "test_surface.py",
    "test_injection.py",
    "test_sandbox_lifecycle.py",
    "test_hardware_hostile.py",
    "test_hostile_live.py",
    "test_setup_live.py",
    "test_dead_memory.py",
    "test_doctor_live.py",
    "test_native_gres.py",
    "test_shim_default_streams.py",
    "test_run_endtoend.py",
    "test_shim_submit_groups.py",
    "test_shim_programs.py",
    "test_install_tree.py",
    "test_hardware_stack.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first (`--no-loadscope-reorder` keeps this order), the others as they were
    found.
    """
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remember that the test did not pass."""
    if call.excinfo is not None:
        item.stash[FAILED] = True


def pytest_collection_finish() -> None:
    """What was collected lives to the end: the collector of garbage need not walk it after each
    test.
    """
    gc.collect()
    gc.freeze()


def opened(request: pytest.FixtureRequest) -> Open:
    """Descriptors and processes; of tests of a live cluster only the former: its daemons come
    and go by themselves.
    """
    live = "sandbox" in request.fixturenames or bool(
        {"slurm", "install"} & {*request.path.relative_to(ROOT).parts[:1]}
    )
    return descriptors(), {} if live else children()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before all others of the test and so ended after them: a test must give back all
    that it opened.
    """
    before, environment = opened(request), dict(os.environ)
    yield
    # The simulated driver reads it, so a test that calls the driver in this process sets it.
    os.environ.update(environment)
    for name in os.environ.keys() - environment:
        del os.environ[name]
    # The traceback of a test that failed keeps what its fixtures had: one report of it is enough.
    if not request.node.stash.get(FAILED, False) and left(before, opened(request)):
        # pytest lets go of a test's fixtures only after this one
        (request.node.funcargs or {}).clear()
        gc.collect()  # and what only reference cycles hold is given back as well, if late
        if rest := left_for_good(before, lambda: opened(request)):
            pytest.fail(f"the test leaves behind: {', '.join(rest)}", pytrace=False)


@pytest.fixture
def nodes() -> Iterator[Callable[..., FakeNode]]:
    """Makes fake nodes; what their daemons hold open is given back after the test."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: object, **options: object) -> FakeNode:
            return stack.enter_context(contextlib.closing(FakeNode(*arguments, **options)))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def node(tmp_path: Path, nodes: Callable[..., FakeNode]) -> FakeNode:
    """The test's fake node."""
    return nodes(tmp_path)


@pytest.fixture
def service(node: FakeNode) -> NodeService:
    """A daemon on it that has started."""
    service = node.service()
    service.start()
    return service


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """The lines with a word that qgpud has logged."""
    logging.getLogger("qgpud").propagate = True
    caplog.set_level(logging.DEBUG, "qgpud")
    return lambda word: [
        record.getMessage() for record in caplog.records if word in record.getMessage()
    ]


@pytest.fixture
def child(node: FakeNode) -> Iterator[int]:
    """A process of job 9."""
    process = subprocess.Popen(["sleep", "60"])
    node.jobs_of_pids[process.pid], node.owners_of_pids[process.pid] = 9, os.getuid()
    yield process.pid
    process.kill()
    process.wait()
