"""A rolling upgrade while jobs run, by the commands of docs/install.md."""

from __future__ import annotations

from collections.abc import Callable

from harness.given import hand_out
from harness.site import Site
from test_install_30_jobs import past_cap
from test_install_40_faults import Load


def version(site: Site, host: str) -> str:
    """The version of qgpu on a host."""
    return site[host].run("dpkg-query -W -f '${Version}' qgpu").out


def test_upgrade_under_load(site: Site, follow: Callable[[str], None]) -> None:
    before = version(site, "n1")
    load = Load(site)
    hand_out(site, "QGPU_INSTALL_UPDATE")
    follow("Upgrade")
    for host in site.hosts:
        assert version(site, host) > before
    load.more()
    assert site.job(load.job)["JobState"] == "RUNNING"
    assert "of 23.4 GiB on this card" in past_cap(site, "-w n1 --qos=offline --gres=qgpu:30")
    load.end()


def test_doctor_fails_nowhere(site: Site) -> None:
    for host in site.hosts.values():
        host.run("qgpu doctor")
