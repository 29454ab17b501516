"""Fixtures of the tests of frameworks: a node with one GPU, and Python environments that
tools/frameworks.sh made.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_support import CAP_MIB, OFFLINE, ONLINE, ROOT, Program, answering

from bench.harness.node import Rig

PLACE = Path(os.environ.get("QGPU_FRAMEWORKS", "/var/cache/qgpu/frameworks"))
PROGRAMS = Path(__file__).parent / "programs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is run by `make test-frameworks` alone."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.frameworks)


@pytest.fixture(scope="session")
def environments() -> set[str]:
    """Names of the environments that are here."""
    argv = [ROOT / "tools/frameworks.sh", "--list"]
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node with one card and a job of each class."""
    answering()
    with Rig(tmp_path) as running:
        running.grant(ONLINE, "online", mem_mib=CAP_MIB)
        running.grant(OFFLINE, "offline", mem_mib=CAP_MIB)
        yield running


@pytest.fixture
def program(rig: Rig, environments: set[str]) -> Callable[..., Program]:
    """Starts a program of PROGRAMS in an environment, as a task of a job (None: without shim)."""

    def start(environment: str, name: str, job: int | None, **env: str) -> Program:
        if environment not in environments:
            pytest.skip(f"{environment} is not installed: tools/frameworks.sh {environment}")
        argv = [PLACE / environment / "bin/python", PROGRAMS / f"{name}_steps.py"]
        return Program(rig, argv, job, HOME=str(rig.directory), **env)

    return start
