"""Prepares what the first Prolog would otherwise wait for."""

from __future__ import annotations

from pathlib import Path

from enforcer.daemon.granting.driver import BrokenNodeError
from enforcer.daemon.injecting.fitted import prune
from enforcer.daemon.node import NodeService


def make_ready(service: NodeService) -> None:
    """Fit the shim to the driver, and remove unused copies."""
    try:
        paths = service.view.paths()
    except BrokenNodeError:
        return  # the first Prolog reports it
    prune(
        Path(service.node.state_dir),
        {paths.shim, *(grant.shim_path for grant in service.grants.values())},
    )
