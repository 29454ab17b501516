"""Fixtures of the native tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from node_support import Chain, chains


@pytest.fixture
def start() -> Iterator[Callable[..., Chain]]:
    """Makes the test's node, ready to serve, and ends it after the test."""
    with chains() as make:
        yield make
