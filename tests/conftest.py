"""What every test module shares."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _descriptors_are_given_back() -> Iterator[None]:
    """Ledgers and sockets in reference cycles end with their module, not when the collector happens to run."""
    yield
    gc.collect()
