"""Jobs whose Epilog never came: qgpud asks slurmctld, though its unit reaches this host alone."""

from __future__ import annotations

import pytest
from harness.machine import Machine
from harness.site import Site, until

EPILOG = "/etc/slurm/qgpu/epilog"
ALONE = 240  # seconds, at most: qgpud asks about a minute after the job's last slurmstepd


def leave_behind(site: Site, node: Machine) -> int:
    """A job of alice that fills a card of the node, whose Epilog does nothing."""
    right = node.read(EPILOG)
    node.write(EPILOG, "#!/bin/sh\nexit 0\n", 0o755)
    job = site.submit(f"-w {node.name} --gres=qgpu:80 -o /dev/null --wrap true")
    site.await_job(job, "COMPLETED")
    node.write(EPILOG, right, 0o755)
    listed = node.run("ls /run/qgpu/grants").out.split()
    assert f"{job}.json" in listed, (listed, "no Epilog ended it")
    return job


def journal(node: Machine, words: str) -> str:
    """Lines of qgpud's log with these words."""
    return node.run(f"journalctl -u qgpud -b | grep -- '{words}'", check=False).out


@pytest.fixture(scope="module")
def forgotten(site: Site) -> int:
    """A job that left its grant on n2, where nobody comes after it; qgpud was restarted since."""
    job = leave_behind(site, site["n2"])
    site["n2"].run("systemctl restart qgpud")
    return job


def test_a_job_gets_its_place_from_one_that_left_its_grant(site: Site, forgotten: int) -> None:
    assert forgotten
    node = site["n1"]
    job = leave_behind(site, node)
    words = "-w n1 --gres=qgpu:80 -o /dev/null --wrap 'sleep 600'"
    taken = [site.submit(words, user="bob") for _ in range(2)]
    for other in taken:
        site.await_job(other, "RUNNING")
        site.await_output(node, f"jq -r .state /run/qgpu/grants/{other}.json", "active")
    assert " reason=lost" in journal(node, f"event=end job={job} ")
    assert not journal(node, "event=jobs-unknown")
    site["ctl"].run(f"scancel {taken[0]} {taken[1]}")
    for other in taken:
        site.await_job(other, "CANCELLED")


def test_a_grant_that_is_in_nobodys_way_ends_too(site: Site, forgotten: int) -> None:
    node = site["n2"]
    line = f"event=end job={forgotten} "
    until(lambda: " reason=lost" in journal(node, line), f"the end of job {forgotten}", ALONE)
    listed = node.run("ls /run/qgpu/grants").out.split()
    assert f"{forgotten}.json" not in listed
    assert not journal(node, "event=jobs-unknown")
    node.run("qgpu doctor")
