"""What doctor and lint print behind the arrow is typed, and the finding is gone."""

from __future__ import annotations

import pytest
from admin import Admin
from breakages import PLUGIN, REPORTED
from breakages_more import RUNNING, TRUST
from site_support import Site
from test_doctor_breakages import failed
from test_lint import IN_FILES, lint

from cli.doctor.checks import node

BREAKAGES = {**REPORTED, **PLUGIN, **TRUST, **RUNNING}
PACKAGE = "needs the package's files"
JOB = "lasts until the job ends"
HARDWARE = "needs hands at the machine"
OTHER_HOST = "is done on another host"
ADMIN = "only the admin knows what the line, key or file was to say"
# Remedies that no test can type, and why. All others are typed.
UNTYPED = {
    "hook client is missing": PACKAGE,
    "NVML shim is missing": PACKAGE,
    "the shim is missing": PACKAGE,
    "the shim does not load": PACKAGE,
    "a Lua module is missing": PACKAGE,
    "spank.so is missing": PACKAGE,
    "spank.so is empty": PACKAGE,
    "spank.so is truncated": PACKAGE,
    "spank.so is another plugin": PACKAGE,
    "spank.so is no plugin": PACKAGE,
    "spank.so is of another Slurm": PACKAGE,
    "native plugins are missing": PACKAGE,
    "the driver is missing": PACKAGE,
    "a release before 22.05": PACKAGE,
    "a release that doubles gres": PACKAGE,
    "a node has another Slurm": OTHER_HOST,
    "a node is down": OTHER_HOST,
    "a node has another qgpu.yaml": OTHER_HOST,
    "clocks are apart": OTHER_HOST,
    "slurmctld does not answer": "it runs, and its log alone knows why it is silent",
    "state_dir is read-only": HARDWARE,
    "state_dir is full": HARDWARE,
    "state_dir has no inodes": HARDWARE,
    "a card fell off the bus": HARDWARE,
    "a card's file is gone": HARDWARE,
    "jobs have no cgroup": JOB,
    "another record than the job's": JOB,
    "slurmstepd has an older plugin": JOB,
    "a grant outlived its job": "qgpud ends it (tests/slurm)",
    "a partition does not exist": ADMIN,
    "qgpu.yaml cannot be read": ADMIN,
    "qgpu.yaml has a tab": ADMIN,
    "cards are smaller than qgpu.yaml says": ADMIN,
    "a node is not in qgpu.yaml": ADMIN,
    "slurm.conf has a line that Slurm refuses": ADMIN,
    "job_submit.lua does not call us": ADMIN,
    "job_submit.lua of the site is no Lua": ADMIN,
}


@pytest.mark.parametrize("name", sorted(BREAKAGES.keys() - UNTYPED.keys()))
def test_what_doctor_says_cures_it_when_typed(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    break_it, check, _ = BREAKAGES[name]
    admin = Admin(site)
    break_it(site)
    if site.statvfs is not None:
        monkeypatch.setattr(node.os, "statvfs", lambda path: site.statvfs)
    said = []
    for _ in range(4):  # one line after the other, as an admin does
        found = failed(site.checks())
        if check not in found:
            return
        said.append(f"{found[check].text} -> {found[check].todo}")
        admin.follow(found[check].todo)
    pytest.fail("\n".join([f"{name} is not cured by:", *said]))


@pytest.mark.parametrize("name", sorted(IN_FILES.keys() - UNTYPED.keys()))
def test_what_lint_says_cures_it_when_typed(site: Site, name: str) -> None:
    admin = Admin(site)
    BREAKAGES[name][0](site)
    said = []
    for _ in range(6):
        lines = lint(site.etc).output.splitlines()
        if not lines:
            return
        said.append(lines[0])
        admin.follow(lines[0].rpartition(" -> ")[2])
    pytest.fail("\n".join([f"{name} is not cured by:", *said]))


def test_those_that_are_not_typed_exist() -> None:
    assert UNTYPED.keys() <= BREAKAGES.keys()
