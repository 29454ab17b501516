"""Daemons are restarted and killed, hosts go down: jobs go on and stay governed."""

from __future__ import annotations

import pytest
from harness.site import Site
from test_install_30_jobs import past_cap

WORK = "/usr/libexec/qgpu/qgpu-workload"
# One long process, and short ones that register anew; `stop` ends the job.
LOAD = f"""#!/bin/sh
{WORK} --memory 4GiB --length 600 --progress >long.out 2>&1 &
while [ ! -e stop ]; do {WORK} --memory 1GiB --length 0.5 >>short.out 2>&1 || exit 1; done
kill -0 $! || exit 2
kill $!
"""


class Load:
    """A job that works on n1, from before a fault until after it."""

    def __init__(self, site: Site) -> None:
        self.site, self.home = site, site["ctl"].homes / "alice"
        for name in ("stop", "long.out", "short.out"):
            (self.home / name).unlink(missing_ok=True)
        (self.home / "load.sh").write_text(LOAD)
        self.job = site.submit("-w n1 --qos=offline --gres=qgpu:30 --no-requeue load.sh")
        site.await_job(self.job, "RUNNING")
        self.more()

    def more(self) -> None:
        """Wait until both kinds of process have done more than until now."""
        for name in ("long.out", "short.out"):
            file = f"/home/alice/{name}"
            before = self.lines(name)
            command = f'test "$(wc -l <{file})" -gt {before} && echo more'
            self.site.await_output(self.site["n1"], command, "more")

    def lines(self, name: str) -> int:
        """What a process of the job has written so far."""
        file = self.home / name
        return len(file.read_text().splitlines()) if file.exists() else 0

    def end(self) -> None:
        """Let the job end, which it does well."""
        (self.home / "stop").touch()
        self.site.await_job(self.job, "COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED")
        assert self.site.job(self.job)["JobState"] == "COMPLETED", (
            self.home / "short.out"
        ).read_text()


@pytest.fixture(scope="module")
def load(site: Site) -> Load:
    """The job, which lives through all faults of daemons."""
    return Load(site)


HOW = {
    "restart": "systemctl restart {0}",
    "kill": "kill -9 $(systemctl show -P MainPID {0}); systemctl start {0}",
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("host", "unit"),
    [
        ("n1", "qgpud"),
        ("n1", "qgpu-arbiter"),
        ("n1", "slurmd"),
        ("ctl", "slurmctld"),
        ("ctl", "slurmdbd"),
    ],
)
def test_daemon_is_exchanged_under_load(
    site: Site, load: Load, host: str, unit: str, how: str
) -> None:
    site[host].run(HOW[how].format(unit))
    site.await_idle()
    site.await_output(site[host], f"systemctl is-active {unit}", "active")
    load.more()
    assert "of 23.4 GiB on this card" in past_cap(site, "-w n1 --qos=offline --gres=qgpu:30")
    assert site.job(load.job)["JobState"] == "RUNNING"


def test_job_ends_well_after_all_that(load: Load) -> None:
    load.end()


def test_bad_rollout_is_survived(site: Site) -> None:
    """Units that failed again and again come back by themselves once their configuration is
    right.
    """
    node, yaml = site["n2"], "/etc/qgpu/qgpu.yaml"
    right = node.read(yaml)
    node.write(yaml, right + "no_such_key: 1\n")
    node.run("systemctl restart qgpud", check=False)
    restarts = "test $(systemctl show -P NRestarts qgpud) -ge 4 && echo often"
    site.await_output(node, restarts, "often")
    assert "no_such_key" in node.run("journalctl -u qgpud -b | tail -20").out
    node.write(yaml, right)
    site.await_output(node, "systemctl is-active qgpud", "active\n")
    node.run("qgpu doctor")


def test_node_reboots(site: Site) -> None:
    site["n1"].reboot()
    site.await_idle()
    site["n1"].run("qgpu doctor")
    assert "of 23.4 GiB on this card" in past_cap(site, "-w n1 --qos=offline --gres=qgpu:30")


def test_node_loses_power_under_load(site: Site) -> None:
    load = Load(site)
    site["n1"].off()
    site["ctl"].run("scontrol update nodename=n1 state=down reason=power")
    site.await_job(load.job, "NODE_FAIL")
    site["n1"].boot()
    site.await_idle()
    site["n1"].run("qgpu doctor")
    assert "of 23.4 GiB on this card" in past_cap(site, "-w n1 --qos=offline --gres=qgpu:30")
