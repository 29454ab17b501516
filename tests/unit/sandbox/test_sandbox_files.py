"""The configuration files of a sandbox agree with its plan."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cli.sandbox import cgroups, files
from cli.sandbox.accounting import commands
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.plan import Plan
from gres.config.site import load_config


def written(tmp_path: Path, cgroup: str, nodes: int = 2, cards: int = 2) -> Layout:
    layout = Layout(tmp_path)
    layout.etc.mkdir()
    names = [f"t-n{i + 1}" for i in range(nodes)]
    plan = Plan("t", names, cards, 40960, "a100", "NVIDIA A100-SXM4-80GB", 7, cgroup, "the reason")
    files.write_qgpu_yaml(layout, plan, "22.05.8")
    files.write_slurm(layout, plan)
    return layout


@pytest.mark.parametrize(("nodes", "cards"), [(1, 1), (2, 2), (16, 16)])
def test_qgpu_yaml_is_a_valid_configuration(tmp_path: Path, nodes: int, cards: int) -> None:
    layout = written(tmp_path, "v1", nodes, cards)
    config = load_config(layout.qgpu_yaml, f"t-n{nodes}")
    node = config.node(f"t-n{nodes}")
    assert len(config.node_names()) == nodes
    assert [card.path for card in node.cards] == [
        f"{tmp_path}/sim/t-n{nodes}/dev/qgpusim{i}" for i in range(cards)
    ]
    assert {card.memory for card in node.cards} == {40960}
    assert node.run_dir == str(layout.node(f"t-n{nodes}").run_dir)


def test_slurmdbd_conf_is_secret_and_scripts_are_executable(tmp_path: Path) -> None:
    layout = written(tmp_path, "v1")
    modes = {
        name: (layout.etc / name).stat().st_mode & 0o777 for name in ("slurmdbd.conf", "slurm.conf")
    }
    assert modes == {"slurmdbd.conf": 0o600, "slurm.conf": 0o644}
    for script in ("prolog", "epilog", "task_prolog"):
        assert (layout.etc / script).stat().st_mode & 0o777 == 0o755


def test_nothing_points_outside_the_state_directory(tmp_path: Path) -> None:
    layout = written(tmp_path, "v1")
    for name in (
        "slurm.conf",
        "slurmdbd.conf",
        "cgroup.conf",
        "gres.conf",
        "plugstack.conf",
        "prolog",
    ):
        for line in (layout.etc / name).read_text().splitlines():
            values = re.findall(r"[ =]((?:/[\w.%\[\]-]+)+)", line.split("#")[0])
            outside = [v for v in values if not v.startswith(str(tmp_path))]
            assert set(outside) <= {"/bin/true", "/usr/bin/scontrol"}, f"{name}: {line}"
    assert f"AuthInfo=socket={tmp_path}/munge/munge.socket" in layout.slurm_conf.read_text()


def test_without_cgroups_nothing_is_constrained_and_the_reason_is_there(tmp_path: Path) -> None:
    layout = written(tmp_path, "none")
    text = layout.slurm_conf.read_text()
    assert "ProctrackType=proctrack/linuxproc" in text
    assert "the reason" in text
    assert "ConstrainDevices=no" in (layout.etc / "cgroup.conf").read_text()


def test_with_cgroups_devices_are_constrained(tmp_path: Path) -> None:
    layout = written(tmp_path, "v2")
    assert "TaskPlugin=task/cgroup" in layout.slurm_conf.read_text()
    conf = (layout.etc / "cgroup.conf").read_text()
    assert "CgroupPlugin=cgroup/v2" in conf and "ConstrainDevices=yes" in conf


def test_both_users_get_both_classes() -> None:
    words = [" ".join(c) for c in commands("qgpu-t")]
    assert "modify cluster qgpu-t set qos=normal,online,offline" in words
    assert any("add user alice,bob" in w for w in words)


def test_only_the_nodes_own_cgroups_are_recognised() -> None:
    assert cgroups._belongs("slurm_n1", {"n1"})
    assert cgroups._belongs("n1_slurmstepd.scope", {"n1"})
    assert not cgroups._belongs("n10_slurmstepd.scope", {"n1"})
    assert not cgroups._belongs("slurmstepd.scope", {"n1"})
    assert not cgroups._belongs("slurm_n10", {"n1"})
    assert not cgroups._belongs("slurm", {"n1"})
    assert not cgroups._belongs("n1", {"n1"})


def test_missing_native_parts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QGPU_BUILD", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "qgpu-hook").touch()
    with pytest.raises(SandboxError) as refused:
        files.check_products()
    assert "bin/qgpu-arbiter" in str(refused.value) and "run: make native" in str(refused.value)
    assert "qgpu-hook" not in str(refused.value)


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_a_node_without_qgpu_is_only_drained_by_jobs_with_a_card(tmp_path: Path, name: str) -> None:
    """Prolog= is the whole cluster's; here the client is missing, as on a node without qgpu."""
    script = written(tmp_path, "v1").etc / name
    statuses = [
        subprocess.run([script], env=env, stderr=subprocess.DEVNULL).returncode
        for env in ({}, {"SLURM_JOB_GPUS": "0"})
    ]
    assert statuses == [0, 127]
