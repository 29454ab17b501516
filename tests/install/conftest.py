"""The site that the tests of the packages share; they run in the order of their names, as a
site's admin would work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import editor, page
from harness import site as sites
from harness.given import hand_out, packages
from harness.machine import Machine
from harness.site import Site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder carry the marker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.install)


def driver(node: Machine) -> None:
    """The simulated cards' package: what a driver is to a node."""
    (package,) = packages("QGPU_INSTALL_PACKAGES").glob("qgpu-simulator_*.deb")
    shutil.copy(package, node.inside("/root"))
    subprocess.run(["chroot", node.files, "dpkg", "-i", f"/root/{package.name}"], check=True)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Four hosts with a stock Slurm that works."""
    suite, tree = os.environ["QGPU_INSTALL_SUITE"], Path(os.environ["QGPU_INSTALL_TREE"])
    with sites.running(suite, tree, Path(os.environ["QGPU_INSTALL_STATE"]), driver) as up:
        hand_out(up, "QGPU_INSTALL_PACKAGES")
        yield up


@pytest.fixture(scope="session")
def kept(site: Site) -> dict[tuple[str, str], str]:
    """The site's own files of Slurm as they were before qgpu came, by host and path."""
    return {
        (host.name, f"/etc/slurm/{file.name}"): file.read_text()
        for host in site.hosts.values()
        for file in host.inside("/etc/slurm").glob("*.conf")
    }


@pytest.fixture(scope="session")
def follow(site: Site, kept: dict[tuple[str, str], str]) -> Callable[[str], None]:
    """Do what a section of docs/install.md says."""
    assert kept

    def section(title: str) -> None:
        blocks = [
            block for block in page.blocks() if block.section == title and block.on != "build"
        ]
        assert blocks, f"docs/install.md has no commands under '{title}'"
        for block in blocks:
            for host in site.on(block.on):
                run_block(site, host, block)

    return section


def run_block(site: Site, host: Machine, block: page.Block) -> None:
    """Run one block on one host, and compare what it prints with what the page shows."""
    done = host.run(
        block.text if block.user != "root" else f"set -e\n{block.text}", block.user, not block.edits
    )
    if block.edits:
        assert done.status in (0, 1), done.text
        editor.follow(host, block.text.split()[-1])
    if block.shown is not None:
        assert page.shows(block.shown, done.out), (
            f"line {block.line} shows {block.shown}, printed is {done.out}"
        )
    if "restart slurm" in block.text:
        site.await_controller()
