"""The Ansible role, on the hosts that the removal left: what it does, and that a second run
changes nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import editor
from harness.given import packages
from harness.site import HOSTS, NETWORK, Site
from harness.trees import CHECKOUT
from test_install_30_jobs import past_cap

ANSIBLE = CHECKOUT / "packaging/ansible"
GROUPS = {"qgpu_controller": ["ctl"], "qgpu_node": ["n1", "n2"], "qgpu_login": ["login"]}
ROLES = {"ctl": "controller", "n1": "node", "n2": "node", "login": "login"}


class Play:
    """Runs site.yml from outside, as an admin's own machine would."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "qgpu.yaml"
        self.config.write_text(site["ctl"].read("/etc/qgpu/qgpu.yaml"))
        lines = [
            f"[{group}]\n" + "".join(_line(name, site) for name in names)
            for group, names in GROUPS.items()
        ]
        (directory / "hosts.ini").write_text("\n".join(lines))

    def run(self, *words: str) -> dict[str, dict[str, int]]:
        """Run the play; the recap's counts by host."""
        argv = [CHECKOUT / "build/ansible/bin/ansible-playbook", "-i", self.directory / "hosts.ini"]
        argv += [
            "-e",
            f"qgpu_config={self.config}",
            "-e",
            f"qgpu_packages_dir={packages('QGPU_INSTALL_PACKAGES')}",
        ]
        environment = {
            **os.environ,
            "ANSIBLE_HOME": str(self.directory),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
        }
        done = subprocess.run(
            [*argv, *words, ANSIBLE / "site.yml"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        recap = done.stdout[done.stdout.index("PLAY RECAP") :]
        rows = re.findall(r"^(\w+) +: (.*)$", recap, re.MULTILINE)
        return {host: {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", row)} for host, row in rows}


def _line(name: str, site: Site) -> str:
    words = (
        f"ansible_host={NETWORK}.{HOSTS[name]} ansible_user=root "
        "ansible_python_interpreter=/usr/bin/python3"
    )
    return f"{name} {words} ansible_ssh_private_key_file={site.key}\n"


@pytest.fixture(scope="module")
def play(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """The play of this site."""
    return Play(site, tmp_path_factory.mktemp("ansible"))


def test_check_mode_changes_nothing(site: Site, play: Play) -> None:
    play.run("--check")
    for host in site.hosts.values():
        assert not host.inside("/usr/bin/qgpu").exists()


def test_first_run_installs(site: Site, play: Play) -> None:
    play.run("-e", "qgpu_left=warn", "-e", "qgpu_doctor=false")
    for host, role in ROLES.items():
        editor.follow(site[host], role)
    site["ctl"].run("systemctl restart slurmctld")
    site.await_controller()
    for node in site.nodes:
        node.run("systemctl restart slurmd")
    site.await_idle()


def test_second_run_changes_nothing(play: Play) -> None:
    play.run()
    again = play.run()
    assert {host: counts["changed"] for host, counts in again.items()} == dict.fromkeys(HOSTS, 0)
    assert {
        host: counts["changed"] for host, counts in play.run("--check").items()
    } == dict.fromkeys(HOSTS, 0)


def test_change_restarts_only_what_is_needed(site: Site, play: Play) -> None:
    ask = "systemctl show -P MainPID {0}"
    before = {unit: site[host].run(ask.format(unit)).out for host, unit in PROCESSES}
    play.config.write_text(play.config.read_text() + "enforcer: {idle_release: 50ms}\n")
    assert play.run()["n1"]["changed"] > 0
    after = {unit: site[host].run(ask.format(unit)).out for host, unit in PROCESSES}
    assert {unit for unit in before if before[unit] != after[unit]} == {"qgpud"}


PROCESSES = [("ctl", "slurmctld"), ("n1", "slurmd"), ("n1", "qgpu-arbiter"), ("n1", "qgpud")]


def test_jobs_are_governed(site: Site) -> None:
    assert "of 23.4 GiB on this card" in past_cap(site)
