"""`qgpu plan` and `qgpu render` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cli.plan import plan
from cli.render import render

EXAMPLE = str(Path(__file__).resolve().parents[2] / "configs" / "examples" / "qgpu.yaml")


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(plan, [*arguments, "--config", EXAMPLE])


def test_a_plan_says_everything() -> None:
    text = _plan("--gres=qgpu:30,qgpu_mem:12G", "--qos=offline").output
    for part in (
        "qgpu:offline:30,shard:16,qgpu_mem:12288M",
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
    assert (whole["gres"], whole["whole_cards"], whole["share_percent"]) == ("shard:100", 1, None)


def test_a_refusal_is_the_sentence_and_a_failure() -> None:
    text = _plan("--gres=qgpu:130")
    assert (text.exit_code, "qgpu:130 is refused: above 100 percent" in text.output) == (1, True)
    found = _plan("--gres=qgpu:130", "--json")
    assert (found.exit_code, json.loads(found.output)["rule"]) == (1, "share_multiple")


def test_render_prints_the_fragment() -> None:
    done = CliRunner().invoke(render, ["slurm.conf", "--config", EXAMPLE, "--etc-dir", "/x"])
    assert (done.exit_code, "Prolog=/x/prolog\n" in done.output) == (0, True)
    missing = CliRunner().invoke(render, ["slurm.conf", "--config", "/nowhere"])
    assert (missing.exit_code, "/nowhere: the configuration cannot be read" in missing.output) == (1, True)
