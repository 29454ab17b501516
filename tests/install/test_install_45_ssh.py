"""ssh into a job by Slurm's pam_slurm_adopt: what such a session gets, without and with our
module.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator

import pytest
from harness.machine import Result
from harness.site import Site, until
from test_install_30_jobs import summary

WORK = "/usr/libexec/qgpu/qgpu-workload"
PAST = f"{WORK} --alloc-past 60GiB --length 0.5 --json"
OVER = "of 23.4 GiB on this card. Ask for more with vram"
ADOPT = "account required pam_slurm_adopt.so\n"
OURS = "pam_qgpu.so"


@pytest.fixture(scope="module")
def adopting(site: Site) -> Site:
    """The site as Slurm's page on pam_slurm_adopt wants it: PrologFlags=Contain, which qgpu needs
    too, and the module last in sshd's accounts. alice may go from the login host to the nodes.
    """
    flags = site["ctl"].run("scontrol show config | grep ^PrologFlags").out
    assert "Contain" in flags
    for node in site.nodes:
        before, line, after = node.read("/etc/pam.d/sshd").partition("@include common-account\n")
        node.write("/etc/pam.d/sshd", before + line + ADOPT + after)
    site["login"].run(
        "mkdir -p .ssh && ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519 && "
        "cp .ssh/id_ed25519.pub .ssh/authorized_keys && "
        "printf 'StrictHostKeyChecking accept-new\\nLogLevel ERROR\\n' >.ssh/config && "
        "chmod 600 .ssh/config",
        user="alice",
    )
    return site


def ssh(site: Site, command: str, check: bool = True) -> Result:
    """A command of alice's on n1, by ssh from the login host."""
    return site["login"].run(f"ssh n1 {json.dumps(command)}", user="alice", check=check)


@contextlib.contextmanager
def working(site: Site, words: str, program: str) -> Iterator[int]:
    """A job of alice's on n1 whose program has written a line; it is cancelled in the end."""
    file = site["ctl"].homes / "alice/working.out"
    file.unlink(missing_ok=True)
    number = site.submit(f"-w n1 -o {file.name} {words} --wrap '{program}'")
    try:
        until(lambda: file.exists() and file.read_text(), f"a line of job {number}")
        yield number
    finally:
        site["ctl"].run(f"scancel {number}")
        site.await_job(number, "CANCELLED", "FAILED")
        site.await_idle()


@pytest.fixture
def job(adopting: Site, request: pytest.FixtureRequest) -> Iterator[int]:
    """A job that may use a card, and waits; `param` are its options."""
    words = getattr(request, "param", "--qos=offline --gres=qgpu:30")
    with working(adopting, words, "echo up; exec sleep 600") as number:
        yield number


def job_of_session(site: Site) -> set[str]:
    """The jobs that the cgroups of a session name."""
    return set(re.findall(r"/job_(\d+)/", ssh(site, "cat /proc/self/cgroup").out))


def with_injection(site: Site, way: str) -> None:
    """Let n1 inject in this way."""
    node = site["n1"]
    text = node.read("/etc/qgpu/qgpu.yaml")
    text = re.sub(r"(?m)^injection: .*\n", "", text) + f"injection: {way}\n"
    node.write("/etc/qgpu/qgpu.yaml", text)
    node.run("systemctl restart qgpud")
    site.await_output(node, "systemctl is-active qgpud", "active\n")


def test_nobody_comes_in_without_a_job(adopting: Site) -> None:
    """ssh itself ends with 255; with a job the same command works, as the next tests see."""
    done = ssh(adopting, "id -un", check=False)
    assert done.status == 255 and done.out == "", done.text


def test_without_our_module_a_session_is_audited(adopting: Site, job: int) -> None:
    """It is in the job, has the job's card alone, and no limits: the audit names its program."""
    assert job_of_session(adopting) == {str(job)}
    assert summary(ssh(adopting, PAST).out)["alloc"]["refused"] is False
    ssh(adopting, f"setsid {WORK} --memory 1GiB --length 60 >/dev/null 2>&1 </dev/null &")
    adopting.await_output(
        adopting["n1"], "journalctl -b -u qgpud", f"event=audit-unregistered job={job} "
    )


def test_the_page(adopting: Site, follow: Callable[[str], None]) -> None:
    follow("ssh into jobs")
    for node in adopting.nodes:
        assert OURS in node.read("/etc/pam.d/sshd")
        node.run("qgpu doctor")
    assert adopting["ctl"].run("ssh n1 id -un").out == "root\n"


@pytest.fixture(params=["mount", "preload"])
def way(adopting: Site, request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways of injection on n1, and the site's own afterwards."""
    before = adopting["n1"].read("/etc/qgpu/qgpu.yaml")
    with_injection(adopting, request.param)
    try:
        yield request.param
    finally:
        adopting["n1"].write("/etc/qgpu/qgpu.yaml", before)
        adopting["n1"].run("systemctl restart qgpud")


def test_a_session_has_the_limits_of_its_job(adopting: Site, way: str) -> None:
    """The job holds 10 GiB of its 23.4, so the session has the rest; its program is registered."""
    holds = f"{WORK} --memory 10GiB --length 600 --progress"
    with working(adopting, "--qos=offline --gres=qgpu:30", holds) as number:
        done = ssh(adopting, f"{PAST}; env")
        assert job_of_session(adopting) == {str(number)}
        assert OVER in done.text, done.text
        assert summary(done.out)["alloc"]["bytes"] < 14 << 30
        assert ("LD_PRELOAD=/" in done.out) == (way == "preload"), done.out
        if way == "mount":  # whatever its environment is
            assert OVER in ssh(adopting, f"env -i {PAST}").text
    assert f"unregistered job={number} " not in adopting["n1"].run("journalctl -b -u qgpud").out


@pytest.mark.parametrize("job", ["--gres=gpu:1", "-c 1"], indirect=True)
def test_a_session_in_a_job_without_limits_is_left_alone(adopting: Site, job: int) -> None:
    done = ssh(adopting, "env; grep -c qgpu-task /proc/self/mountinfo; true")
    assert job_of_session(adopting) == {str(job)}
    assert "QGPU" not in done.out and "LD_PRELOAD" not in done.out and done.out.endswith("\n0\n")


def test_no_session_without_the_limits(adopting: Site, job: int) -> None:
    """A grant that cannot be believed: the user reads why, and gets no shell."""
    adopting["n1"].run(f"chmod 666 /run/qgpu/grants/{job}.grant")
    done = ssh(adopting, "echo inside", check=False)
    adopting["n1"].run(f"chmod 644 /run/qgpu/grants/{job}.grant")
    assert done.status != 0 and "inside" not in done.out
    assert f"does not run without the limits of job {job}: " in done.text, done.text
    assert "it can be written by others than root" in done.text
