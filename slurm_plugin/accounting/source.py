"""Chooses the source of Slurm's accounting: the sacct command, or pyslurm if it fits this Slurm.

Both give the same `SacctJob`s. pyslurm is an extra (`pip install qgpu[pyslurm]`). It links Slurm's
library, so only a release of the same major version may be loaded. Others are ignored.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

from slurm_plugin import records
from slurm_plugin.accounting import pyslurm as pyslurm_adapter
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting.sacct import SacctJob, Window
from slurm_plugin.records import SlurmError

OFF = "QGPU_NO_PYSLURM"  # any value selects the command


class Accounting(Protocol):
    """Jobs in Slurm's accounting. Each call raises SlurmError with a sentence."""

    def jobs(self, job_ids: Sequence[str]) -> list[SacctJob]:
        """These jobs; an array's number stands for all its tasks."""
        ...

    def between(self, window: Window) -> list[SacctJob]:
        """Jobs that ran in a window; their times are cut at its edges unless they are listed."""
        ...


class CommandLine:
    """The sacct command."""

    def jobs(self, job_ids: Sequence[str]) -> list[SacctJob]:
        """Ask by number."""
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
        return records.run(["sacct", "--version"])
    except SlurmError:
        return ""


def _load() -> Any:
    """Import pyslurm, and undo its change of the loader for later imports. It reads slurm.conf
    here.
    """
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
    """pyslurm if installed, of Slurm's major version and complete; else the command."""
    found = None if os.environ.get(OFF) else installed()
    if found is None or major(found) is None or major(found) != major(slurm()):
        return CommandLine()
    try:
        module = load()
    except (ImportError, OSError):
        return CommandLine()
    return pyslurm_adapter.Pyslurm(module) if pyslurm_adapter.fits(module) else CommandLine()
