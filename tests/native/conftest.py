"""Fixtures of the native tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shim_support as s
from node_support import Chain, chains


@pytest.fixture
def start() -> Iterator[Callable[..., Chain]]:
    """Makes the test's node, ready to serve, and ends it after the test."""
    with chains() as make:
        yield make


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[s.FakeArbiter]:
    """An arbiter whose one gate the test moves by hand."""
    running = s.FakeArbiter(tmp_path, s.CAP)
    yield running
    running.stop()


@pytest.fixture
def probe(tmp_path: Path, arbiter: s.FakeArbiter) -> Iterator[s.Probe]:
    """A governed program with one stream, registered with `arbiter`."""
    with s.governed(tmp_path, s.CAP) as running:
        s.started(running)
        assert running.ask("stream 0") == 0
        yield running
