"""`qgpu setup --init`: the first qgpu.yaml is made of what is seen, and the rest is asked for."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from test_setup_command import STOCK, setup, tree

from cli.setup import initial
from enforcer.nvml.port import CardInfo
from gres.config.site import load_config


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever this shell and this machine have."""
    monkeypatch.delenv("QGPU_SIM_DIR", raising=False)
    monkeypatch.setattr("cli.run.private.SIM_DIR", str(tmp_path / "none"))


def cards(count: int, name: str = "NVIDIA H200 NVL") -> tuple[CardInfo, ...]:
    return tuple(CardInfo(f"GPU-{n}", n, name, 80 << 30) for n in range(count))


@pytest.mark.parametrize(
    ("slurm", "seen", "words", "group"),
    [
        (STOCK, cards(2), ["--node", "n1"], ("n[1-2]", "h200_nvl", 2, "/dev/nvidia[0,1]")),
        (
            STOCK.replace("CPUs=8", "CPUs=8 Gres=gpu:h200:4"),
            (),
            ["--memory", "80G"],
            ("n[1-2]", "h200", 4, "/dev/nvidia[0,1,2,3]"),
        ),
        (
            STOCK.replace("CPUs=8", "CPUs=8 Gres=gpu:2"),
            cards(2),
            [],
            ("n[1-2]", "h200_nvl", 2, "/dev/nvidia[0,1]"),
        ),
        (
            STOCK,
            (),
            ["--nodes", "n2", "--cards", "1", "--model", "l4", "--memory", "24GiB"],
            ("n2", "l4", 1, "/dev/nvidia[0]"),
        ),
    ],
)
def test_a_first_qgpu_yaml_is_made_of_what_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: str,
    seen: Any,
    words: list[str],
    group: tuple[Any, ...],
) -> None:
    monkeypatch.setattr(initial, "seen", lambda: initial.Seen(seen))
    monkeypatch.setattr(
        "cli.setup.host.Host.said", lambda self, *words: placing_said("slurm-wlm 24.11.5")
    )
    root = tree(tmp_path, slurm)
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.unlink()
    dry = setup(root, "--init", "--dry-run", *words)
    assert dry.exit_code == 0 and not yaml.exists(), dry.output
    assert setup(root, "--init", *words).exit_code == 0 and yaml.read_text() == dry.output
    config = load_config(yaml)
    found = config.nodes[0]
    assert (found.names, found.model, found.count, found.files) == group
    assert config.slurm.cli_filter, "srun --gres=qgpu:N has its card"
    assert config.slurm.version == "24.11" and stat.S_IMODE(yaml.stat().st_mode) == 0o644
    again = setup(root, "--init", *words)
    assert again.exit_code == 1 and "is there already" in again.output


def test_configless_hosts_have_no_cli_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initial, "seen", lambda: initial.Seen(cards(2)))
    monkeypatch.setattr("cli.setup.host.Host.said", lambda self, *words: placing_said("22.05.8"))
    root = tree(tmp_path, STOCK + "SlurmctldParameters=enable_configless\n")
    (root / "etc/qgpu/qgpu.yaml").unlink()
    assert setup(root, "--init").exit_code == 0
    assert not load_config(root / "etc/qgpu/qgpu.yaml").slurm.cli_filter


def placing_said(text: str) -> Any:
    from cli.doctor.host import Said

    return Said(0, text)


@pytest.mark.parametrize(
    ("seen", "words", "says"),
    [
        ((), [], "say which, for example"),
        (cards(1) + cards(2, "NVIDIA L4"), [], "cards of 2 models"),
        ((), ["--nodes", "n1", "--cards", "1", "--model", "x"], "say --memory"),
        ((), ["--nodes", "n1", "--cards", "1", "--memory", "1GiB"], "say --model"),
        ((), ["--nodes", "n1", "--model", "x", "--memory", "1GiB"], "say --cards"),
        ((), ["--nodes", "n[1", "--model", "x", "--cards", "1", "--memory", "1GiB"], "brackets"),
        ((), ["--nodes", "n1", "--model", "x", "--cards", "1", "--memory", "1XiB"], "--memory"),
    ],
)
def test_what_cannot_be_known_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Any, words: list[str], says: str
) -> None:
    monkeypatch.setattr(initial, "seen", lambda: initial.Seen(seen))
    monkeypatch.setattr(
        "cli.setup.host.Host.said", lambda self, *words: placing_said("slurm-wlm 24.11.5")
    )
    root = tree(tmp_path)
    (root / "etc/qgpu/qgpu.yaml").unlink()
    done = setup(root, "--init", *words)
    assert (
        done.exit_code == 1 and says in done.output and not (root / "etc/qgpu/qgpu.yaml").exists()
    )


@pytest.mark.parametrize("name", ["yes", "on", "null", "y1", "e3"])
def test_names_that_yaml_would_take_for_something_else_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(initial, "seen", initial.Seen)
    monkeypatch.setattr(
        "cli.setup.host.Host.said", lambda self, *words: placing_said("slurm-wlm 24.11.5")
    )
    root = tree(tmp_path, f"ClusterName={name}\nNodeName=n1\n")
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.unlink()
    words = ["--nodes", "n1", "--model", name, "--cards", "1", "--memory", "80GiB"]
    done = setup(root, "--init", *words)
    assert done.exit_code == 0, done.output
    config = load_config(yaml)
    assert (config.cluster, list(config.models), config.nodes[0].model) == (name, [name], name)


@pytest.mark.parametrize(
    ("gres", "kept"),
    [
        ("AutoDetect=nvml\n", True),
        ("NodeName=n[1-2] AutoDetect=NVML\n", True),
        ("NodeName=n1 Name=gpu AutoDetect=nvml\n", True),
        ("Name=gpu AutoDetect=nvml\n", True),
        ("AutoDetect=nvidia\n", False),
        ("AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("count", [2, 3])
def test_links_are_kept_where_slurm_had_found_them_and_nodes_are_as_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gres: str, kept: bool, count: int
) -> None:
    links = ("-1,4", "4,-1")
    monkeypatch.setattr(initial, "seen", lambda: initial.Seen(cards(2), links))
    monkeypatch.setattr(
        "cli.setup.host.Host.said", lambda self, *words: placing_said("slurm-wlm 24.11.5")
    )
    root = tree(tmp_path, STOCK.replace("CPUs=8", f"CPUs=8 Gres=gpu:h200:{count}"))
    (root / "etc/slurm/gres.conf").write_text(gres)
    yaml = root / "etc/qgpu/qgpu.yaml"
    yaml.unlink()
    assert setup(root, "--init").exit_code == 0
    found = load_config(yaml).nodes[0]
    assert found.links == (list(links) if kept and count == 2 else None)
