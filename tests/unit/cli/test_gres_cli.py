"""`qgpu plan` and `qgpu render` as they are typed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.site.plan import plan
from cli.site.render import render
from slurm_plugin.submission import JobSubmit

EXAMPLE = str(Path(__file__).resolve().parents[3] / "configs" / "examples" / "qgpu.yaml")


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(plan, [*arguments, "--config", EXAMPLE])


def test_a_plan_says_everything() -> None:
    text = _plan("--gres=qgpu:30,vram:12G", "--qos=offline").output
    for part in (
        "qgpu:offline:30,shard:16,vram:12288M",
        "12288 MiB (12884901888 bytes)",
        "16 of the card's 100 shards",
        "qgpu/1 class=offline share=30 mem=12288 (in comment)",
        "n[1-2] (2 nodes)",
    ):
        assert part in " ".join(text.split())


def test_json() -> None:
    found = json.loads(_plan("--gres=qgpu:h200:30", "--qos=online", "--json").output)
    assert (found["accepted"], found["class"], found["mem_bytes"]) == (True, "online", 23961 << 20)
    assert (found["model"], found["nodes"], found["node_count"]) == ("h200", ["n[1-2]"], 2)
    whole = json.loads(_plan("--gres=qgpu:100", "--json").output)  # the example is of Slurm 22.05
    assert whole["gres"] == "shard:100,qgpu:offline:100"
    assert (whole["whole_cards"], whole["share_percent"]) == (1, None)


def test_a_plan_says_when_offline_comes_and_when_it_would(tmp_path: Path) -> None:
    text = " ".join(_plan("--gres=qgpu:30").output.split())
    assert "idle_release 100ms: offline comes so long after online's work; with auto it" in text
    auto = tmp_path / "qgpu.yaml"
    cards = 'cards: [{nodes: "n[1-2]", idle_release: auto}]'
    auto.write_text(Path(EXAMPLE).read_text().replace("cards: []", cards))
    found = CliRunner().invoke(plan, ["--gres=qgpu:30", "--config", str(auto)])
    assert "comes at once if it leaves the card within 1ms, else after 100ms" in " ".join(
        found.output.split()
    )
    for path, value in ((EXAMPLE, ["100ms"]), (str(auto), ["auto"])):
        found = CliRunner().invoke(plan, ["--gres=qgpu:30", "--json", "--config", path])
        assert json.loads(found.output)["idle_release"] == value
    assert json.loads(_plan("--gres=qgpu:100", "--json").output)["idle_release"] is None


def test_a_refusal_is_the_sentence_and_a_failure() -> None:
    text = _plan("--gres=qgpu:130")
    assert (text.exit_code, "qgpu:130 is refused: the share of a card" in text.output) == (1, True)
    found = _plan("--gres=qgpu:130", "--json")
    assert (found.exit_code, json.loads(found.output)["rule"]) == (1, "share_high")


@pytest.mark.parametrize("option", ["--vram", "--qgpu-cards"])
def test_an_option_that_slurmctld_would_not_read_is_refused(option: str) -> None:
    longest, more = "0" * 31 + "1", "0" * 32 + "1"
    assert "has more than 32 bytes" not in _plan("--gres=qgpu:30", f"{option}={longest}").output
    found = _plan("--gres=qgpu:30", f"{option}={more}")
    assert (found.exit_code, f"{option}={more} has more than 32 bytes" in found.output) == (2, True)


def test_without_a_qos_the_class_is_that_of_normal_where_it_is_mapped(tmp_path: Path) -> None:
    """As slurmctld takes it, which writes this QOS into the job."""
    text = Path(EXAMPLE).read_text()
    mapped = tmp_path / "qgpu.yaml"
    mapped.write_text(
        text.replace("qos: {online: online,", "qos: {online: online, normal: online,")
    )
    assert mapped.read_text() != text
    for path, job_class in ((EXAMPLE, "offline"), (str(mapped), "online")):
        found = CliRunner().invoke(plan, ["--gres=qgpu:30", "--json", "--config", path])
        assert json.loads(found.output)["class"] == job_class


def test_without_the_lua_modules_a_plan_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.site.planned.JobSubmit", partial(JobSubmit, directory=tmp_path))
    found = _plan("--gres=qgpu:30")
    assert found.exit_code == 2
    said = (
        f"Error: cannot open {tmp_path}/qgpu_job_submit.lua: No such file or directory: "
        "install the package again"
    )
    assert found.output == said + "\n"


def test_render_prints_the_fragment() -> None:
    done = CliRunner().invoke(render, ["slurm.conf", "--config", EXAMPLE, "--etc-dir", "/x"])
    assert (done.exit_code, "Prolog=/x/prolog\n" in done.output) == (0, True)
    missing = CliRunner().invoke(render, ["slurm.conf", "--config", "/nowhere"])
    assert (missing.exit_code, "/nowhere: the configuration cannot be read" in missing.output) == (
        1,
        True,
    )
