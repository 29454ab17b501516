"""What is made ready before the first Prolog, so that none waits for it."""

from __future__ import annotations

from pathlib import Path

from enforcer.daemon.granting.driver import BrokenNodeError
from enforcer.daemon.injecting.fitted import prune
from enforcer.daemon.node import NodeService


def make_ready(service: NodeService) -> None:
    """Fit the shim to the driver, and remove copies that no job uses any more."""
    try:
        paths = service.view.paths()
    except BrokenNodeError:
        return  # the first Prolog says it
    prune(Path(service.node.state_dir), {paths.shim, *(grant.shim_path for grant in service.grants.values())})
