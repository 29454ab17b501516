"""What host doctor takes this one for, and that each role gets its own checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from site_support import FakeHost, Site

from cli.doctor import roles
from cli.doctor.examine import examine

HOSTS: dict[str, tuple[str, Callable[[Site], object], str]] = {
    "slurm.conf names the controller": ("vm", lambda s: s.end(10), "a controller"),
    "slurmctld runs": ("other", lambda s: s.end(11), "a controller"),
    "the host has a node's name": ("n2", lambda s: s.end(10), "node n2"),
    "both": ("n1", lambda s: None, "a controller and node n1"),
    "a slurmd without cards": ("cpu1", lambda s: s.end(10), "a login"),
    "nothing runs": ("login", lambda s: [s.end(10), s.end(11)], "a login"),
    "a slurmctld of another cluster": ("login", lambda s: other(s), "a login"),
    "qgpud is enabled": ("n1", lambda s: [s.end(10), s.enable("qgpud")], "node n1"),
}


def other(site: Site) -> None:
    site.end(10)
    site.process(20, "slurmctld", "slurmctld", "-f", "/elsewhere/slurm.conf")


@pytest.fixture
def at(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Site]:
    """The installation as seen from a host of that name, where nothing of systemd's is enabled."""
    monkeypatch.setattr(roles, "WANTED", site.root / "wanted")

    def named(name: str) -> Site:
        monkeypatch.setattr(FakeHost, "name", name)
        monkeypatch.setattr("cli.daemon.socket.gethostname", lambda: f"{name}.example.org")
        return site

    return named


@pytest.mark.parametrize("case", HOSTS)
def test_roles_are_guessed(at: Callable[[str], Site], case: str) -> None:
    name, change, says = HOSTS[case]
    site = at(name)
    change(site)
    first = examine(str(site.yaml), None, (), site.host)[0]
    assert first.text.endswith(f"; this host is {says}"), first.text


def test_one_node_alone_is_not_every_host(at: Callable[[str], Site]) -> None:
    site = at("login")
    site.end(10)
    site.edit("etc/qgpu.yaml", 'names: "n[1-2]"', "names: n1")
    assert examine(str(site.yaml), None, (), site.host)[0].text.endswith("this host is a login")
    site.edit("etc/slurm.conf", "NodeName=n[1-2]", "NodeName=n1 NodeHostname=login")
    assert examine(str(site.yaml), None, (), site.host)[0].text.endswith("this host is node n1")


def test_a_node_missing_in_qgpu_yaml_is_reported(at: Callable[[str], Site]) -> None:
    site = at("n3")
    site.end(10)
    site.enable("qgpud")
    checks = examine(str(site.yaml), None, (), site.host)
    assert (
        checks[0].status == "fail"
        and "has no node n3" in checks[0].text
        and "--node" in checks[0].todo
    )


@pytest.mark.parametrize("role", roles.ROLES)
def test_each_role_has_its_own_checks_and_is_well(site: Site, role: roles.Role) -> None:
    checks = site.checks((role,))
    assert {check.group for check in checks} == {"host", role}
    assert [check for check in checks if check.status == "fail"] == []
    names = {check.name for check in checks}
    assert ("qgpud" in names) == (role == "node") and ("tables" in names) == (role == "controller")


def test_a_login_host_without_the_plugin_is_warned(site: Site) -> None:
    Path(site.root / "opt/qgpu_spank.so").unlink()
    found = {check.name: check for check in site.checks(("login",))}
    assert found["spank"].status == "warn" and "--vram" in found["spank"].text
