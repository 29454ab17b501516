"""Where jobs of Slurm's accounting come from: the sacct command, or pyslurm where it fits the Slurm that is here.

Both answer with the same `SacctJob`s. pyslurm is an extra (`pip install qgpu[pyslurm]`): it links Slurm's own library,
so only a release of exactly the same major version may be loaded. Anything else is left alone, without a word.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from slurm_plugin.accounting import pyslurm as pyslurm_adapter
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting.sacct import SacctJob, Window

OFF = "QGPU_NO_PYSLURM"  # any value: the command, whatever is installed


class Accounting(Protocol):
    """Jobs that Slurm accounted. Every call raises SacctError with a sentence."""

    def jobs(self, job_ids: Sequence[str]) -> list[SacctJob]:
        """These jobs; an array's number stands for all its tasks."""
        ...

    def between(self, window: Window) -> list[SacctJob]:
        """Jobs that ran in a window, their times cut at its edges."""
        ...


class CommandLine:
    """The sacct command."""

    def jobs(self, job_ids: Sequence[str]) -> list[SacctJob]:
        """Ask for them by number."""
        return sacct.jobs(job_ids)

    def between(self, window: Window) -> list[SacctJob]:
        """Ask for a window."""
        return sacct.jobs_between(window)


def major(text: str) -> str | None:
    """ "25.11" of a text that names a version such as 25.11.2."""
    match = re.search(r"\b([0-9]{2})\.([0-9]{1,2})\b", text)
    return f"{match[1]}.{int(match[2]):02d}" if match else None


def _installed() -> str | None:
    try:
        return version("pyslurm")
    except PackageNotFoundError:
        return None


def _slurm() -> str:
    try:
        return sacct.run(["sacct", "--version"])
    except sacct.SacctError:
        return ""


def _load() -> Any:
    """pyslurm, without what it does to the loader for whatever is loaded later. It reads slurm.conf here."""
    flags = sys.getdlopenflags()
    try:
        return importlib.import_module("pyslurm")
    finally:
        sys.setdlopenflags(flags)


def choose(
    installed: Callable[[], str | None] = _installed,
    slurm: Callable[[], str] = _slurm,
    load: Callable[[], Any] = _load,
) -> Accounting:
    """pyslurm if it is installed, of the same major version as Slurm and knows what is asked; else the command."""
    found = None if os.environ.get(OFF) else installed()
    if found is None or major(found) is None or major(found) != major(slurm()):
        return CommandLine()
    try:
        module = load()
    except (ImportError, OSError):
        return CommandLine()
    return pyslurm_adapter.Pyslurm(module) if pyslurm_adapter.fits(module) else CommandLine()
