"""Live states of the nodes that are on this machine: one on a real cluster, all of them in a
sandbox.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from enforcer.reporting.state import FILE_NAME, NodeState, StateError, read
from enforcer.reporting.viewclient import SOCK_NAME, ViewError, ask, owner_of
from gres.config.site import Config, ConfigError

STALE_S = 5.0  # age in seconds from which a state counts as old: an idle node writes each 4 s


def here() -> str:
    """This node's name, as qgpud would take it."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def nodes_here(config: Config, name: str | None, cluster: bool) -> list[str]:
    """Names to show: the one asked for, this one, or all whose qgpud runs on this machine. Raises
    ConfigError.
    """
    if name is not None:
        config.node(name)
        return [name]
    names = config.node_names()
    if not cluster and here() in names:
        return [here()]
    found = [node for node in names if (Path(config.node(node).run_dir) / FILE_NAME).exists()]
    if not found:
        raise ConfigError(
            f"no node of {config.cluster} runs qgpud on this machine ({here()}): start it, or ask"
            " on a node"
        )
    return found


def read_node(config: Config, name: str) -> NodeState:
    """One node's live state: from its qgpud, which then samples each second, else from its file.

    Raises StateError with a sentence.
    """
    run_dir = Path(config.node(name).run_dir)
    sock, why = run_dir / SOCK_NAME, None
    if owner_of(sock) == 0:
        try:
            return NodeState.of(ask(sock, {"ask": "state"}))
        except ViewError as error:
            why = str(error)
    try:
        return read(run_dir / FILE_NAME)
    except PermissionError:
        raise StateError(why or f"{sock}: no qgpud of root answers here") from None


def read_all(config: Config, names: Sequence[str]) -> tuple[list[NodeState], list[str]]:
    """States that could be read, and a sentence for each that could not or is old."""
    states, notes = [], []
    for name in names:
        try:
            states.append(read_node(config, name))
        except StateError as error:
            notes.append(f"{name}: {error}")
    for state in states:
        age = time.time() - state.at
        if age > STALE_S:
            notes.append(
                f"{state.node}: these figures are {age:.0f} s old; qgpud is not running there"
            )
    return states, notes
