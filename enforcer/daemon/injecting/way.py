"""Chooses how tasks get the shim for `injection: auto`: `mount` if the node can, else `preload`.

A trial decides: a program makes the mounts of the SPANK plugin in its own namespace. qgpud's unit
may not do that, so the unit runs the trial first and leaves the result in the run directory.
"""

from __future__ import annotations

import json
import logging
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from enforcer.daemon.granting.driver import BrokenNodeError, find_driver
from enforcer.daemon.log import emit
from gres.config.site import Config, Injection, Node
from gres.grant.store import GrantError, GrantStore
from gres.printable import printable

FILE = "injection.json"  # in the run directory
PROGRAM = "qgpu-mounts"  # beside the hook's client
SECONDS = 10  # time for the trial, which takes milliseconds
NOT_TRIED = "not tried on this node yet: the unit of qgpud tries it, by qgpud --probe-injection"


@dataclass(frozen=True)
class Way:
    """`mode` is `mount` or `preload`; `why` is a sentence if it is `preload`, else empty."""

    mode: Injection
    why: str = ""


def probe(config: Config, node: Node) -> Way:
    """Run the trial. Never raises: an error is the reason."""
    shim = config.shim.replace("%n", node.name)
    program = Path(config.hook.client).with_name(PROGRAM)
    try:
        driver = find_driver(config.driver.libcuda.replace("%n", node.name), shim)
        done = subprocess.run(
            [program, driver, shim],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (BrokenNodeError, OSError, subprocess.TimeoutExpired) as error:
        return Way("preload", str(error))
    if done.returncode == 0:
        return Way("mount")
    return Way(
        "preload", (done.stdout or done.stderr).strip() or f"{program} ended with {done.returncode}"
    )


def keep(way: Way, run_dir: Path) -> None:
    """Keep the result for the next start of qgpud. Raises GrantError, OSError."""
    GrantStore(run_dir).keep(FILE, json.dumps({"mode": way.mode, "why": way.why}).encode())


def found(node: Node) -> Way:
    """The result of the last trial, as root keeps it."""
    try:
        data = GrantStore(Path(node.run_dir)).kept(FILE)
        return Way("preload", NOT_TRIED) if data is None else _way(data)
    except (GrantError, OSError, ValueError, TypeError, KeyError) as error:
        return Way("preload", f"what was found cannot be read: {error}")


def resolved(node: Node) -> Node:
    """The node with the way that its grants name, which is logged."""
    if node.injection != "auto":
        return node
    way = found(node)
    emit(
        logging.WARNING if way.why else logging.INFO,
        "injection",
        mode=way.mode,
        why=way.why or None,
    )
    return replace(node, injection=way.mode)


def described(config: Config, node: Node) -> dict[str, str]:
    """For `status`: the way in use, and why it is `preload` if qgpud chose it."""
    chosen = config.node(node.name).injection == "auto"
    return {"injection": node.injection, "injection_why": found(node).why if chosen else ""}


def _way(data: bytes) -> Way:
    said = json.loads(data)
    if said["mode"] not in ("mount", "preload") or not isinstance(said["why"], str):
        raise ValueError("it is not what qgpud writes")
    return Way(said["mode"], printable(said["why"]))
