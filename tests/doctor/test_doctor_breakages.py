"""A healthy installation is all ok; each breakage is found by its check, which names the remedy."""

from __future__ import annotations

import os
import sqlite3
from typing import get_args

import pytest
from breakages import NODES, PLUGIN, REPORTED
from breakages_more import RUNNING, TRUST
from site_support import Site

from cli.doctor.checks import node
from cli.doctor.command import table
from cli.doctor.result import Check
from cli.doctor.roles import ROLES
from gres.config.reports import CheckName

BREAKAGES = {**REPORTED, **PLUGIN, **TRUST, **RUNNING}


def failed(checks: list[Check]) -> dict[str, Check]:
    """The checks that failed, by name."""
    return {check.name: check for check in checks if check.status == "fail"}


def test_a_healthy_installation_is_all_ok(site: Site) -> None:
    checks = site.checks()
    assert [check for check in checks if check.status != "ok"] == [], table(checks)
    assert {check.group for check in checks} == {"host", "controller", "node"}


def test_there_are_many_breakages() -> None:
    assert len(REPORTED) >= 20 and len(BREAKAGES) >= 40
    parts = (REPORTED, PLUGIN, TRUST, RUNNING)
    assert len(BREAKAGES) == sum(map(len, parts)), "a name is used twice"


@pytest.mark.parametrize("name", BREAKAGES)
def test_each_breakage_is_found_with_the_line_to_write(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    break_it, check, words = BREAKAGES[name]
    break_it(site)
    if site.statvfs is not None:
        monkeypatch.setattr(node.os, "statvfs", lambda path: site.statvfs)
    checks = site.checks()
    found = failed(checks)
    assert check in found, f"{name}: doctor does not see it\n{table(checks)}"
    text = f"{found[check].text} -> {found[check].todo}"
    assert words in text, text
    assert found[check].todo, f"{check} does not say what to do"


def test_what_works_in_spite_of_it_is_a_warning(site: Site) -> None:
    site.says("State=IDLE", "State=IDLE+DRAIN", *NODES)
    site.answer("sinfo", out="qgpu: qgpud on this node does not answer\n")
    site.daemon |= {"injection": "preload", "injection_why": "the kernel refuses it"}
    stack = site.etc / "qgpu/plugstack.conf"
    site.write("etc/qgpu/plugstack.conf", stack.read_text() * 2)
    found = {check.name: check for check in site.checks() if check.status == "warn"}
    assert "qgpud on this node does not answer" in found["nodes"].text
    assert "Not mount, because the kernel refuses it" in found["injection"].text
    assert "the plugin once" in found["spank"].text


def test_a_warning_that_the_site_accepted_is_ok_and_a_failure_is_not(site: Site) -> None:
    site.says("Count=800", "Count=400", "slurmd", "-G")
    site.daemon |= {"injection": "preload", "injection_why": "the kernel refuses it"}
    accept = "doctor: {accept: [injection, ssh]}\n"
    site.write("etc/qgpu.yaml", site.yaml.read_text() + accept)
    site.reread()
    found = {check.name: check for check in site.checks()}
    assert found["injection"].status == "ok" and not found["injection"].todo
    assert found["injection"].text.startswith("accepted in qgpu.yaml: preload")
    assert failed(site.checks()).keys() == {"gres counts"}
    site.write("etc/qgpu.yaml", site.yaml.read_text().replace("ssh", "gres counts"))
    assert "'slurm.conf'" in failed(site.checks())["config"].text, "a name that cannot be accepted"


def test_names_that_can_be_accepted_are_those_of_checks(site: Site) -> None:
    names = {check.name for check in site.checks(ROLES)}
    assert set(get_args(CheckName)) <= names


def test_a_node_that_has_not_registered_yet_is_no_fault(site: Site) -> None:
    """slurmctld was started just now: it counts no gres of a node before that registers."""
    site.says("shard:h200:200", "shard:h200:0", *NODES)
    assert "slurm.conf has it: stop every slurmd" in failed(site.checks())["nodes"].todo
    site.says("SlurmdStartTime=2026-11-26T07:08:09", "SlurmdStartTime=None", *NODES)
    found = {check.name: check for check in site.checks()}["nodes"]
    assert found.status == "warn" and "n1 has not registered since" in found.text


def test_nodes_that_have_this_qgpu_yaml_are_counted_and_silent_ones_named(site: Site) -> None:
    site.collects(n1="")
    found = {check.name: check for check in site.checks()}["same config"]
    assert found.status == "warn" and "n2 did not tell" in found.text


def test_what_was_collected_before_qgpu_yaml_changed_is_no_fault(site: Site) -> None:
    site.collects(n1="", n2="a" * 64)
    with sqlite3.connect(site.root / "lib/all.sqlite") as database:
        database.execute("UPDATE node_config SET at = at - 600")
    found = {check.name: check for check in site.checks()}["same config"]
    assert found.status == "warn" and "before this one was written" in found.text


def test_a_node_that_cannot_mount_is_a_warning_with_the_reason(site: Site) -> None:
    site.daemon.update(injection="preload", injection_why="/etc/ld.so.preload cannot be made")
    found = {check.name: check for check in site.checks() if check.status == "warn"}
    assert "Not mount, because /etc/ld.so.preload cannot be made" in found["injection"].text
    assert "injection: preload" in found["injection"].todo
    site.daemon.update(injection="mount")
    assert "injection" not in {check.name for check in site.checks() if check.status != "ok"}


def test_ledgers_that_do_not_tell_are_no_fault(site: Site) -> None:
    site.collects()
    found = {check.name: check for check in site.checks()}["same config"]
    assert found.status == "ok" and "not compared" in found.text


def test_a_module_that_slurmctld_has_not_read_is_a_warning(site: Site) -> None:
    site.effective("BOOT_TIME", "2026-01-01T00:00:00")
    os.utime(site.etc / "qgpu/job_submit.lua", (0, 0))
    found = {check.name: check for check in site.checks() if check.status == "warn"}
    assert "was installed after slurmctld read it" in found["tables"].text
    (site.etc / "qgpu/job_submit.lua").touch()
    assert all(check.status == "ok" for check in site.checks())


def test_files_of_a_configless_node_are_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = site.root / "run/slurm/conf"
    cache.mkdir(parents=True)
    for name in ("slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"):
        (site.etc / name).rename(cache / name)
    site.host.environ = {}
    monkeypatch.setattr("cli.doctor.known.USUAL", ())
    monkeypatch.setattr("cli.doctor.known.CACHES", (str(cache / "slurm.conf"),))
    checks = {check.name: check for check in site.checks(("node",))}
    assert (
        failed(list(checks.values())).keys() <= {"cli_filter"}
        and "configless" in checks["slurmd"].text
    )
    (cache / "plugstack.conf").unlink()
    assert "lacks the include" in failed(site.checks(("node",)))["spank"].text


@pytest.mark.parametrize(("uid", "status"), [(0, "fail"), (1000, "ok")])
def test_a_slurmd_that_needs_root_for_its_cgroup_is_no_fault(
    site: Site, uid: int, status: str
) -> None:
    """With cgroups version 2 `slurmd -G` of an ordinary user ends so, whatever gres.conf says."""
    site.host.uid = uid
    site.answer("slurmd", "-G", code=1, err="slurmd: error: slurmd initialization failed\n")
    (check,) = (check for check in site.checks() if check.name == "gres counts")
    assert check.status == status
    site.answer("slurmd", "-G", code=1, err="slurmd: fatal: gres.conf: bad")
    (check,) = (check for check in site.checks() if check.name == "gres counts")
    assert check.status == "fail"


@pytest.mark.parametrize(
    ("code", "state", "status"), [(0, "R", "ok"), (0, "CG", "ok"), (1, "CD", "warn")]
)
def test_grant_without_a_step_is_no_fault_unless_slurmctld_says_so(site, code, state, status):
    site.write("run/grants/7.json", "{}", 0o600)
    out = f"JOBID  ST  END_TIME\n7  {state}  N/A\n"
    site.answer("squeue", code=code, out=out, err="no controller")
    (found,) = [check for check in site.checks() if check.name == "grants"]
    assert found.status == status and ("no controller" in found.text) is bool(code)


def test_a_slurm_conf_that_slurm_cannot_read_is_no_reason_for_a_restart(site: Site) -> None:
    said = (
        "slurmd: error: _parse_next_key: Parsing error at unrecognized key: Bogus\n"
        "slurmd: fatal: Unable to process configuration file\n"
    )
    site.answer("slurmd", "-G", code=1, err=said)
    site.answer("scontrol", "ping", code=1, err=said.replace("slurmd", "scontrol"))
    checks = failed(site.checks())
    assert checks["slurmctld"].todo == f"correct {site.etc}/slurm.conf"
    found = checks["gres counts"]
    assert f"cannot read {site.etc}/slurm.conf: " in found.text and "key: Bogus" in found.text
    assert "restart" not in found.todo and f"slurmd -G -f {site.etc}/slurm.conf" in found.todo
