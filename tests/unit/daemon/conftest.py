"""What tests of the daemon share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from questions_support import ME
from reclaim_support import Lab, lab

from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks
from simulator.fakes import FakeNode


@pytest.fixture
def asks(service: NodeService) -> Asks:
    """Answers questions of our own user, who may do all that root may."""
    return Asks(service, ME)


@pytest.fixture
def made(node: FakeNode) -> Iterator[Lab]:
    """The test's fake node, with reclaimable jobs, a script as the helper and a fake Slurm."""
    with lab(node) as found:
        yield found


@pytest.fixture
def moving(node: FakeNode) -> Iterator[Lab]:
    """The same, and its jobs also return to another card."""
    with lab(node, more=", move: true") as found:
        yield found
