"""slurm.placement and slurm.multi_card: slurm.conf, `qgpu plan`, and the sandbox's switches for
them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.sandbox import bringup, files, services
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.options import SandboxOptions
from cli.sandbox.plan import Plan
from cli.site.plan import plan
from gres.config.site import Config, ConfigError, load_config, parse_config
from slurm_plugin.render import render

YAML = """version: 1
cluster: one
slurm: {{version: "{version}", multi_card: {multi}, placement: {placement}}}
qos: {{online: online}}
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}}}
nodes: [{{names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}}]
"""


def config(version: str = "24.11", multi: bool = False, placement: str = "binpack") -> Config:
    return parse_config(YAML.format(version=version, multi=str(multi).lower(), placement=placement))


@pytest.mark.parametrize(
    ("multi", "placement", "words"),
    [
        (False, "binpack", None),
        (True, "binpack", "CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ"),
        (False, "spread", "CR_Core_Memory,LL_SHARED_GRES"),
        (True, "spread", "CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ,LL_SHARED_GRES"),
    ],
)
def test_slurm_conf_says_it_in_slurms_words(multi: bool, placement: str, words: str | None) -> None:
    lines = render("slurm.conf", config(multi=multi, placement=placement)).splitlines()
    found = [line for line in lines if line.startswith("SelectTypeParameters")]
    assert found == ([f"SelectTypeParameters={words}"] if words else [])
    assert "SelectType=select/cons_tres" in lines


@pytest.mark.parametrize("version", ["22.05", "22.05.8", "23.02"])
def test_spread_is_refused_where_slurm_has_no_word_for_it(version: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"placement spread needs Slurm 23.11 or later, this is .*; write placement: bin",
    ):
        config(version, placement="spread")
    assert config("23.11", placement="spread").slurm.placement == "spread"


# ---- qgpu plan


def planned(tmp_path: Path, multi: bool, *words: str) -> tuple[int, str]:
    path = tmp_path / "qgpu.yaml"
    path.write_text(YAML.format(version="24.11", multi=str(multi).lower(), placement="binpack"))
    result = CliRunner().invoke(plan, [*words, "--qos=online", "--config", str(path)])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--gres=qgpu:30,vram:4G", "--qgpu-cards=2"),
        ("--gres=qgpu:30", "--vram=4G", "--qgpu-cards=2", "-N1", "-n2"),
        ("--tres-per-task=gres/qgpu:30,gres/vram:4G", "-N1", "-n2"),
        ("--tres-per-task=gres/qgpu:30", "--vram=4G", "--ntasks-per-node=2"),
    ],
)
def test_plan_knows_several_cards(tmp_path: Path, words: tuple[str, ...]) -> None:
    status, out = planned(tmp_path, True, *words, "--json")
    found = json.loads(out)
    assert status == 0
    assert (
        found["gres"] == "qgpu:online:60,vram:8192M" and found["tres_per_task"] == "gres/shard:30"
    )
    assert (found["cards_per_node"], found["tasks_per_node"], found["shards"]) == (2, 2, 30)
    assert found["tag"] == "qgpu/1 class=online share=30 mem=4096 cards=2"
    text = planned(tmp_path, True, *words)[1]
    assert "30 % of each of 2 cards' compute" in text and "one task for each card" in text


@pytest.mark.parametrize(
    ("multi", "words", "says"),
    [
        (
            False,
            ("--gres=qgpu:30", "--qgpu-cards=2"),
            "on this cluster a job has a part of one card of each node",
        ),
        (True, ("--gres=qgpu:30", "--qgpu-cards=3"), "no node has more than 2 such card(s)"),
        (True, ("--gres=qgpu:30", "-n4"), "a share goes with one task for each card"),
        (True, ("--gres=gpu:2", "--qgpu-cards=2"), "it goes with a share of a card"),
        (False, ("--tres-per-task=gres/qgpu:30", "-n2"), "is refused in --tres-per-task"),
        (True, (), "say what the job asks for"),
    ],
)
def test_plan_says_the_sentence_of_a_refusal(
    tmp_path: Path, multi: bool, words: tuple[str, ...], says: str
) -> None:
    status, out = planned(tmp_path, multi, *words)
    assert status != 0 and says in out


# ---- the sandbox


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (SandboxOptions(multi_card=True), "multi_card needs Slurm 24.05 or later"),
        (SandboxOptions(placement="spread"), "placement spread needs Slurm 23.11 or later"),
    ],
)
def test_a_sandbox_says_what_its_slurm_cannot_do(
    monkeypatch: pytest.MonkeyPatch, options: SandboxOptions, says: str
) -> None:
    monkeypatch.setattr(services, "slurm_version", lambda: "22.05.8")
    with pytest.raises(SandboxError, match=f"{says}.*sandbox up --slurm 24.11"):
        bringup._check_slurm(options)
    bringup._check_slurm(SandboxOptions())


def test_the_switches_are_in_the_sandboxs_qgpu_yaml(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.etc.mkdir()
    chosen = Plan(
        "x",
        ["x-n1"],
        2,
        81920,
        "h200",
        "H200",
        0,
        "v1",
        "",
        injection="mount",
        multi_card=True,
        placement="spread",
    )
    files.write_qgpu_yaml(layout, chosen, "24.11.5")
    found = load_config(layout.qgpu_yaml)
    assert (found.injection, found.slurm.multi_card, found.slurm.placement) == (
        "mount",
        True,
        "spread",
    )
