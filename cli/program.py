"""What to type to run this same `qgpu` again."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program() -> str:
    """`qgpu` where that is on PATH, else the path of the script beside the interpreter."""
    script = Path(sys.executable).parent / "qgpu"
    found = shutil.which("qgpu")
    if found or not script.exists():
        return "qgpu"
    here = Path.cwd()
    return str(script.relative_to(here)) if script.is_relative_to(here) else str(script)


def python() -> list[str]:
    """The words that run this Python for a module of ours: as isolated from the user's files as
    this process is.
    """
    return [sys.executable, "-IB"] if sys.flags.isolated else [sys.executable]
