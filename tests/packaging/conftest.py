"""What `make product` built, installed once per session as the packages have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from install_support import make


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with the packages' directories."""
    target = tmp_path_factory.mktemp("install")
    make("install", f"DESTDIR={target}", "PREFIX=/usr", "SLURM_PLUGINDIR=/usr/lib/slurm")
    return target
