"""`qgpu doctor` and its probe against real daemons: a fit cluster, and some breakages of it."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import Live

Checks = dict[str, dict[str, str]]
# What a sandbox has otherwise than an installation, and what its Slurm is known for.
UNUSUAL = {"memory caps", "slurm", "cgroups", "arbiter"}


def doctor(live: Live, *words: str, user: str | None = None) -> Checks:
    """Its checks by name, as on the first node, which has a driver."""
    words = words or ("--node", live.nodes[0])
    done = live.run("qgpu", "doctor", "--json", *words, user=user)
    assert done.stdout, done
    checks = json.loads(done.stdout)
    assert done.returncode == int(any(check["status"] == "fail" for check in checks)), done
    return {check["name"]: check for check in checks}


def probe(live: Live, *words: str, user: str | None = "alice") -> Checks:
    """The probe's checks."""
    return doctor(live, "--probe", *words, user=user)


def faults(checks: Checks) -> Checks:
    return {name: check for name, check in checks.items() if check["status"] == "fail"}


@contextlib.contextmanager
def changed(path: Path, old: str, new: str) -> Iterator[None]:
    """A file that is otherwise for a while; it keeps its time of change, as a file that was put
    back.
    """
    text = path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new))
    try:
        yield
    finally:
        path.write_text(text)


def test_a_fit_cluster_has_no_fault(live: Live) -> None:
    checks = doctor(live)
    assert faults(checks) == {}
    groups = {check["group"] for check in checks.values()}
    assert groups == {"host", "controller", "node"}
    assert {name for name, check in checks.items() if check["status"] == "warn"} <= UNUSUAL


def test_an_ordinary_user_sees_the_same(live: Live) -> None:
    assert faults(doctor(live, user="alice")) == {}


def test_a_login_host_is_recognised(live: Live) -> None:
    checks = doctor(live, "--role", "login")
    assert faults(checks) == {} and "login" in {check["group"] for check in checks.values()}
    assert "this host is a login" in checks["config"]["text"] and "qgpud" not in checks


@pytest.mark.parametrize(
    ("name", "old", "new", "check"),
    [
        ("plugstack.conf", "qgpu_spank.so", "other.so", "spank"),
        ("prolog", "--run-dir ", "--run-dir /elsewhere", "hooks"),
        ("cgroup.conf", "ConstrainDevices=yes", "ConstrainDevices=no", "devices"),
        # From 24.11 on slurmd fills up a count that is below slurm.conf's: only the file shows it.
        ("gres.conf", "Count=100", "Count=90", "gres.conf"),
        ("slurm.conf", "qgpu:online:200", "qgpu:online:150", "gres counts"),
        ("job_submit.lua", "qgpu_job_submit.lua", "another.lua", "job_submit"),
        ("qgpu.yaml", "max_share: 100", "max_share: 99", "tables"),
        ("qgpu.yaml", "max_share: 100", "max_share: 99", "qgpud"),
        ("qgpu.yaml", "offline: offline}", "offline: offline, night: offline}", "qos"),
        ("qgpu.yaml", 'managed_partitions: ["*"]', "managed_partitions: [cards]", "partitions"),
    ],
)
def test_files_that_were_changed(live: Live, name: str, old: str, new: str, check: str) -> None:
    with changed(live.sandbox.layout.etc / name, old, new):
        found = faults(doctor(live))
    assert check in found and found[check]["todo"], found


def test_daemons_that_are_gone(live: Live) -> None:
    node = live.nodes[0]
    for service, check in (("arbiter", "arbiter"), ("qgpud", "qgpud"), ("slurmd", "slurmd")):
        live.sandbox.kill(node, service, signal.SIGKILL)
        try:
            live.until(
                lambda check=check: check in faults(doctor(live)), 20, f"doctor seeing no {service}"
            )
        finally:
            live.sandbox.start(node, service)
    live.until(lambda: faults(doctor(live)) == {}, 40, "a fit cluster again")


def test_a_controller_with_another_configuration(live: Live) -> None:
    conf = live.sandbox.layout.etc / "slurm-qgpu.conf"
    try:
        with changed(conf, "JobSubmitPlugins=lua", "JobSubmitPlugins=logging"):
            live.sandbox.restart_controller()
            found = faults(doctor(live))
        assert "JobSubmitPlugins is logging" in found["job_submit"]["text"], found
    finally:
        live.sandbox.restart_controller()
    assert faults(doctor(live)) == {}


# ---- the probe


@pytest.mark.parametrize("user", ["alice", None])
def test_the_probe_finds_a_governed_job_and_leaves_nothing(live: Live, user: str | None) -> None:
    checks = probe(live, "--qos=online", "--partition=gpu", "--node", live.nodes[1], user=user)
    assert faults(checks) == {}, checks
    names = [
        "submit",
        "grant",
        "driver",
        "cap",
        "registered",
        "devices",
        "ledger",
        "config",
        "sacct",
    ]
    assert list(checks) == names
    assert "gres/qgpu:online=1" in checks["sacct"]["text"]
    home = live.sandbox.layout.home("alice")
    assert list(home.glob(".qgpu-doctor-*")) == [] and live.run("squeue", "-h").stdout == ""


def test_the_probe_sees_that_the_plugin_is_not_loaded(live: Live) -> None:
    node = live.nodes[0]
    with changed(live.sandbox.layout.etc / "plugstack.conf", "optional ", "# optional "):
        found = faults(probe(live, "--node", node))
    live.ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert list(found) == ["job"] and found["job"]["todo"], found
    assert "did not run qgpu's SPANK plugin" in found["job"]["text"], found


def test_the_probe_says_why_it_was_refused(live: Live) -> None:
    found = probe(live, "--partition=nowhere")
    assert list(found) == ["submit"] and "invalid partition" in found["submit"]["text"].lower(), (
        found
    )


def test_a_probe_that_cannot_start_is_cancelled(live: Live) -> None:
    node = live.nodes[0]
    live.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        found = probe(live, "--node", node, "--timeout", "5")
    finally:
        live.ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert "PENDING" in found["job"]["text"] and found["job"]["todo"], found
    live.until(lambda: live.run("squeue", "-h").stdout == "", 10, "an empty queue")
