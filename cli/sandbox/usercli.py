"""`qgpu` for the sandbox's users.

The checkout and its virtual environment may lie where only root may go (below /root). Both are
bound read-only into the sandbox's own mount namespace, and a script in S/opt/bin starts the command
there.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import cli
from cli.sandbox.layout import Layout

SOURCE = Path(next(iter(cli.__path__))).resolve().parent
PACKAGES = Path(sysconfig.get_path("purelib"))
SYSTEM_PYTHON = Path("/usr/bin/python3")


def bound(layout: Layout) -> dict[Path, Path]:
    """What the namespace binds: directory outside -> directory below the state directory."""
    return {SOURCE: layout.opt / "source", PACKAGES: layout.opt / "packages"}


def _reachable(path: Path) -> bool:
    """Whether every user may enter all parents of the path."""
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


def _same_version(python: Path) -> bool:
    """Compiled packages need the minor version that they were installed for."""
    return (
        python.exists()
        and python.resolve().name == f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )


def interpreter() -> Path:
    """A Python that the users can run, if there is one; else the one that runs now."""
    own = Path(os.path.realpath(sys.executable))
    candidates = [own] if _reachable(own) else []
    candidates += [SYSTEM_PYTHON] if _same_version(SYSTEM_PYTHON) else []
    return candidates[0] if candidates else own


def write(layout: Layout, nodes: Sequence[str]) -> None:
    """Write S/opt/bin/qgpu and make the places for the two directories."""
    for place in bound(layout).values():
        place.mkdir(mode=0o755)
    path = ":".join(str(place) for place in bound(layout).values())
    script = layout.opt / "bin" / "qgpu"
    # The driver of a node for who asks about it, as doctor does: that of --node, else of the first.
    script.write_text(
        "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
        f"node={nodes[0]} last=\n"
        "for each; do\n"
        "    case $last in --node) node=$each ;; esac\n"
        "    case $each in --node=*) node=${each#*=} ;; esac\n"
        "    last=$each\n"
        "done\n"
        f'export QGPU_SIM_DIR="${{QGPU_SIM_DIR:-{layout.state}/sim/$node}}"\n'
        f'export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:-{layout.opt}/sim}}"\n'
        f"PYTHONPATH={shlex.quote(path)} PYTHONDONTWRITEBYTECODE=1 "
        f'exec {shlex.quote(str(interpreter()))} -s -P -m cli.main "$@"\n'
    )
    script.chmod(0o755)
