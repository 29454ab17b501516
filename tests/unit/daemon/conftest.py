"""What tests of the daemon share."""

from __future__ import annotations

import pytest
from questions_support import ME

from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.answers import Asks


@pytest.fixture
def asks(service: NodeService) -> Asks:
    """Answers questions of our own user, who may do all that root may."""
    return Asks(service, ME)
