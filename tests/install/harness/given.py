"""What `python -m harness` gave the tests: the packages that it built."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.site import Site


def packages(which: str) -> Path:
    """The directory of the packages: QGPU_INSTALL_PACKAGES, or QGPU_INSTALL_UPDATE of the next
    revision.
    """
    return Path(os.environ[which])


def hand_out(site: Site, which: str) -> None:
    """Put the packages where the page says that they are."""
    for host in site.hosts.values():
        directory = host.inside("/root/qgpu-packages")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for package in packages(which).glob("*.deb"):
            shutil.copy(package, directory)
