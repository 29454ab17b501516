"""Which version of cgroups a sandbox gets, and that nothing of its trees stays."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cli.sandbox import cgroups
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.files import build_dir
from cli.sandbox.options import CGROUP_VARIABLE, SandboxOptions
from enforcer.daemon.devices import bpf

ROW = "36 30 0:{minor} / {place} rw,relatime shared:9 - {kind} none rw\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with both versions, in which a cgroup is an ordinary directory."""
    for name in ("devices", "freezer", "unified"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    write_mounts(tmp_path, {"devices": "cgroup", "freezer": "cgroup", "unified": "cgroup2"})
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(bpf, "constrain", lambda directory: None)
    return tmp_path


def write_mounts(machine: Path, mounted: dict[str, str]) -> None:
    rows = [
        ROW.format(minor=20 + number, place=machine / name, kind=kind)
        for number, (name, kind) in enumerate(mounted.items())
    ]
    (machine / "mountinfo").write_text("".join(["22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", *rows]))


def test_version_1_is_taken_where_it_is_mounted_and_2_on_demand(machine: Path) -> None:
    assert cgroups.choose("n1", "auto")[0] == "v1"
    assert cgroups.choose("n1", "v2") == (
        "v2",
        "cgroup v2 (asked for by --cgroup v2; devices by BPF programs)",
    )
    assert sorted(path.name for path in (machine / "unified").iterdir()) == ["cgroup.procs"]


def test_version_2_is_taken_where_there_is_no_other(machine: Path) -> None:
    write_mounts(machine, {"": "cgroup2"})
    kind, why = cgroups.choose("n1", "auto")
    assert (kind, "the only version here" in why) == ("v2", True)
    with pytest.raises(SandboxError, match="--cgroup v1 cannot be had"):
        (machine / "devices/cgroup.procs").unlink()
        cgroups.choose("n1", "v1")


def test_a_demand_is_met_or_refused(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(bpf, "constrain", refuse)
    with pytest.raises(SandboxError, match="a BPF program for devices cannot be attached"):
        cgroups.choose("n1", "v2")
    write_mounts(machine, {"devices": "cgroup", "freezer": "cgroup"})
    with pytest.raises(SandboxError, match="no cgroup2 file system is mounted"):
        cgroups.choose("n1", "v2")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can attach a program to a cgroup")
def test_a_program_for_devices_needs_a_cgroup_of_version_2(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument|not permitted"):
        bpf.constrain(tmp_path)


@pytest.mark.parametrize("cgroup_slice", ["system.slice", "gpu.slice"])
def test_nothing_of_a_node_stays_and_all_of_others_does(machine: Path, cgroup_slice: str) -> None:
    tree = machine / "unified"
    cgroups.make_scopes(["n1", "n2"], cgroup_slice)
    (tree / cgroup_slice / "n1_slurmstepd.scope/s8Y9M8G2HRS800/step_0/user/task_0").mkdir(
        parents=True
    )
    (machine / "freezer/slurm_n1/uid_0").mkdir(parents=True)
    (tree / cgroup_slice / "n10_slurmstepd.scope").mkdir()
    assert len(cgroups.left_behind(["n1", "n2"])) == 3
    cgroups.remove(["n1", "n2"])
    assert cgroups.left_behind(["n1", "n2"]) == []
    assert [path.name for path in (tree / cgroup_slice).iterdir()] == ["n10_slurmstepd.scope"]
    cgroups.remove(["n10"])
    assert not (tree / cgroup_slice).exists(), "an empty slice goes with its last node"


def test_a_process_in_a_nodes_cgroup_is_seen(machine: Path) -> None:
    step = machine / "unified/gpu.slice/n1_slurmstepd.scope/job_1/step_0"
    step.mkdir(parents=True)
    (step / "cgroup.procs").touch()
    assert not cgroups.in_use(["n1"])
    (step / "cgroup.procs").write_text("4711\n")
    assert cgroups.in_use(["n1"]) and not cgroups.in_use(["n10"])


def test_the_variable_is_the_default_and_no_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CGROUP_VARIABLE, raising=False)
    assert SandboxOptions().cgroup == "auto"
    monkeypatch.setenv(CGROUP_VARIABLE, "v2")
    assert SandboxOptions().cgroup == "v2"
    monkeypatch.setenv(CGROUP_VARIABLE, "v3")
    with pytest.raises(SandboxError, match="'v3' is no version of cgroups"):
        SandboxOptions()


@pytest.mark.parametrize("name", ["system", "a/b.slice", "..slice", "A.slice", "a b.slice"])
def test_a_slice_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(SandboxError, match="is not the name of a slice"):
        Sandbox(SandboxOptions(cgroup_slice=name))


READ = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None)
print(json.dumps([os.read(libc.open(path.encode(), 0), 65536).decode() for path in sys.argv[1:]]))
"""


def test_slurmd_reads_the_line_of_version_2_alone() -> None:
    """Through open(2) of the C library, as Slurm reads it; other files are what they are."""
    library = build_dir() / "sim/libunified.so"
    assert library.exists(), "run: make native"
    words = ["python3", "-c", READ, "/proc/self/cgroup", "/proc/1/cgroup", "/proc/self/comm"]
    preloaded = {**os.environ, "LD_PRELOAD": str(library)}
    own, first, comm = json.loads(subprocess.check_output(words, env=preloaded, text=True))
    here = Path("/proc/self/cgroup").read_text().splitlines(keepends=True)
    assert own == ("".join(line for line in here if line.startswith("0::")) or "".join(here))
    assert first.count("\n") == 1 or own.count("\n") > 1
    assert comm == "python3\n"
