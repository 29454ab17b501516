"""Memory of offline jobs is taken back, and jobs move between cards, under the units as shipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from harness import editor
from harness.machine import Machine
from harness.site import Site, until
from harness.trees import CHECKOUT
from test_install_30_jobs import summary

WORK = "/usr/libexec/qgpu/qgpu-workload"
# Host memory of an offline job is what it holds on its card, and these nodes have 4000 MiB.
OFFLINE = "-w n1 --qos=offline --gres=qgpu:30,vram:3800M --requeue"
HELD = 3 << 30  # bytes, beside the context; the card has 80 GiB
HOLDS = f"exec {WORK} --pattern {HELD} --length 1800 --json"
# All of a card but one shard, more than the job above leaves.
ONLINE = "-w n1 --qos=online --gres=qgpu:30,vram:77G"
YAML = "/etc/qgpu/qgpu.yaml"
CLASSES = "classes: {offline: {memory: reclaimable}}\nreclaim: {hysteresis: 1s, move: true}\n"
PAGE = CHECKOUT / "docs/specs/devices.md"
DEVICE = "/var/lib/qgpu-sim/dev/qgpusim"
ROLES = {"ctl": "controller", "n1": "node", "n2": "node", "login": "login"}


def roll_out(site: Site, setup: Callable[[Machine], object]) -> None:
    """What docs/admins.md says once qgpu.yaml is on all hosts."""
    for host in site.hosts.values():
        setup(host)
    for node in site.nodes:
        node.run("systemctl stop slurmd")
    site["ctl"].run("systemctl restart slurmctld")
    site.await_controller()
    for node in site.nodes:
        node.run("systemctl restart qgpud && systemctl start slurmd")
    site.await_idle()


@pytest.fixture(scope="module")
def reclaiming(site: Site) -> Iterator[Site]:
    """The site whose offline jobs are reclaimable; afterwards it is as it was."""
    before = {
        (host.name, path): host.read(path)
        for host in site.hosts.values()
        for path in (
            YAML,
            *(f"/etc/slurm/{x.name}" for x in host.inside("/etc/slurm").glob("*.conf")),
        )
    }
    for host in site.hosts.values():
        host.write(YAML, before[host.name, YAML] + CLASSES)
    try:
        roll_out(site, lambda host: editor.follow(host, ROLES[host.name]))
        yield site
    finally:
        for (name, path), text in before.items():
            site[name].write(path, text, site[name].inside(path).stat().st_mode & 0o777)
        roll_out(site, lambda host: host.run(f"qgpu setup --role {ROLES[host.name]}"))


@dataclass
class Job:
    """An offline job of alice's on n1 that holds memory with known contents."""

    site: Site
    number: int = 0

    def __post_init__(self) -> None:
        (self.site["ctl"].homes / "alice/holds.out").unlink(missing_ok=True)
        self.number = self.site.submit(f"{OFFLINE} -o holds.out --wrap '{HOLDS}'")
        self.on(0)

    def on(self, card: int) -> None:
        """Wait until its memory is on this card."""
        ask = f".cards[]|select(.index=={card}).tenants[]|select(.job_id=={self.number}).mem_used"
        self.site.await_output(
            self.site["n1"],
            f"test $(jq '{ask}' /run/qgpu/state.json) -ge {HELD} && echo all",
            "all",
        )

    def did(self, step: str, count: int = 1) -> None:
        """Wait until qgpud's log says so."""
        words = f"event=reclaim step={step} job={self.number} "
        ask = f"test $(journalctl -u qgpud -b | grep -c '{words}') -ge {count} && echo often"
        self.site.await_output(self.site["n1"], ask, "often")

    def move(self, card: int) -> str:
        """What the command says."""
        done = self.site["n1"].run(f"qgpu job move {self.number} --card {card}", check=False)
        return done.text

    def end(self) -> None:
        """End it; all that it held is as it was."""
        self.site["ctl"].run(f"scancel --signal=TERM --full {self.number}")
        self.site.await_job(self.number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        assert self.site.job(self.number)["JobState"] == "COMPLETED"
        whole((self.site["ctl"].homes / "alice/holds.out").read_text())


def whole(text: str) -> None:
    """What a workload held has not changed."""
    pattern = summary(text)["pattern"]
    assert pattern["pages"] > 0 and pattern["wrong"] == 0, text


@pytest.fixture
def job(reclaiming: Site) -> Iterator[Job]:
    """The job, which is over in the end, as is each other one of alice's."""
    try:
        yield Job(reclaiming)
    finally:
        reclaiming["ctl"].run("scancel -u alice")
        reclaiming.await_idle()


@dataclass
class Other:
    """An online job that wants the same card, until it is told to end."""

    site: Site
    number: int = 0

    def __post_init__(self) -> None:
        (self.site["ctl"].homes / "alice/online.out").unlink(missing_ok=True)
        load = f"exec {WORK} --pattern 70G --length 1800 --json"
        self.number = self.site.submit(f"{ONLINE} -o online.out --wrap '{load}'")

    def end(self) -> None:
        """Let it end once it holds what it wants."""
        holds = f"[.cards[].tenants[]|select(.job_id=={self.number}).mem_used][0]"
        ask = f"test $(jq '{holds}' /run/qgpu/state.json) -gt 75000000000 && echo all"
        self.site.await_output(self.site["n1"], ask, "all")
        self.site["ctl"].run(f"scancel --signal=TERM --full {self.number}")
        self.site.await_job(self.number, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        assert self.site.job(self.number)["JobState"] == "COMPLETED"
        whole((self.site["ctl"].homes / "alice/online.out").read_text())


def test_offline_job_leaves_and_returns(reclaiming: Site, job: Job) -> None:
    other = Other(reclaiming)
    job.did("left")
    other.end()
    job.did("back")
    job.on(0)
    job.end()


def test_helper_survives_a_restart_of_qgpud(reclaiming: Site, job: Job) -> None:
    """The helper waits for a program that is stopped, and is then stopped itself."""
    node = reclaiming["n1"]
    node.run("pkill -STOP -u alice -x qgpu-workload")
    other = Other(reclaiming)
    stop = "pkill -STOP -x qgpu-checkpoint && echo stopped"
    reclaiming.await_output(node, stop, "stopped")
    node.run("pkill -CONT -u alice -x qgpu-workload")
    helper = node.run("pgrep -x qgpu-checkpoint").out
    node.run("systemctl restart qgpud")
    assert node.run("pgrep -x qgpu-checkpoint").out == helper
    node.run("pkill -CONT -x qgpu-checkpoint")
    job.did("found")
    node.run("systemctl restart qgpud")
    job.did("found", 2)
    other.end()
    job.did("back")
    job.on(0)
    job.end()


def test_no_job_moves_without_the_drop_in(reclaiming: Site, job: Job) -> None:
    assert "qgpud has no CAP_SYS_ADMIN, without which" in job.move(1)
    said = reclaiming["n1"].run("qgpu doctor").out
    assert "reclaim.move is set, but no job can be moved: qgpud has no CAP_SYS_ADMIN" in said
    job.end()


@pytest.fixture
def dropped_in(reclaiming: Site) -> Iterator[Site]:
    """The drop-in of docs/specs/devices.md on n1."""
    found = re.search(r"needs `(/etc/\S+)`:\n\n```\n(.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert found
    path, text = found.groups()
    node = reclaiming["n1"]
    node.write(path, text)
    try:
        node.run("systemctl daemon-reload && systemctl restart qgpud")
        yield reclaiming
    finally:
        node.run(f"rm -r {path.rpartition('/')[0]}")
        node.run("systemctl daemon-reload && systemctl restart qgpud")


def opened(site: Site, job: Job) -> list[str]:
    """What a new step of the job gets when it opens either card's file."""
    command = f"for n in 0 1; do head -c0 {DEVICE}$n; done 2>&1"
    text = site.srun(f"--jobid={job.number} --overlap sh -c '{command}'", check=False).text
    return re.findall("No such device|Operation not permitted", text)


def test_jobs_move_with_the_drop_in(dropped_in: Site, job: Job) -> None:
    assert job.move(1) == f"job {job.number} is on card 1\n"
    job.on(1)
    # opened, as far as the major without a driver can be
    until(
        lambda: opened(dropped_in, job) == ["Operation not permitted", "No such device"],
        "a step that may open card 1 alone",
    )
    assert "no job can be moved" not in dropped_in["n1"].run("qgpu doctor").out
    assert job.move(0) == f"job {job.number} is on card 0\n"
    job.on(0)
    other = Other(dropped_in)  # it has the job's card, so the job goes to the other one by itself
    job.on(1)
    other.end()
    job.end()
