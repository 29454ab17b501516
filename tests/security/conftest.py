"""What tests of qgpud.sock share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from asks_support import serving
from daemon_support import Serving

from simulator.fakes import FakeNode


@pytest.fixture
def served(nodes: Callable[..., FakeNode]) -> Iterator[Serving]:
    """A daemon that serves in a thread, in a directory that everybody can enter."""
    with serving(nodes) as one:
        yield one
