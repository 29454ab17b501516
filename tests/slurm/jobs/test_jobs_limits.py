"""Slurm's own limits per class, and Slurm's programs reading what qgpu renders and plans."""

from __future__ import annotations

import pytest
from jobs_support import Live

from slurm_plugin.render import NAMES


def test_a_limit_of_a_class_holds_jobs_back(live: Live) -> None:
    def limit(value: str) -> None:
        live.ask(
            "sacctmgr", "-i", "modify", "qos", "online", "set", f"GrpTRES=gres/qgpu:online={value}"
        )

    limit("100")
    try:
        first = live.submit("exec sleep 600", "--qos=online", "--gres=qgpu:60")
        live.wait_state(first, "RUNNING")
        second = live.submit("exec sleep 600", "--qos=online", "--gres=qgpu:60")
        live.until(
            lambda: live.reason(second) == "QOSGrpGRES", 10, "the limit of the QOS as the reason"
        )
        assert live.state(second) == "PENDING"
        fits = live.submit("exec sleep 600", "--qos=online", "--gres=qgpu:40", "-t5")
        other = live.submit("exec sleep 600", "--qos=offline", "--gres=qgpu:60")
        live.wait_state(other, "RUNNING")
        live.wait_state(fits, "RUNNING")
        assert live.state(second) == "PENDING"
    finally:
        limit("-1")
    live.wait_state(second, "RUNNING")


@pytest.mark.parametrize("name", NAMES)
def test_render_writes_what_the_sandbox_runs_with(live: Live, name: str) -> None:
    text = live.ask("qgpu", "render", name, "--etc-dir", str(live.sandbox.layout.etc))
    assert "{{" not in text
    if name == "qgpu_tables.lua":
        live.sandbox.run(
            ["lua5.4", "-"], input=f"local t = (function() {text}\nend)() assert(t.schema == 1)"
        )
    elif name in ("prolog", "epilog"):
        live.sandbox.run(["sh", "-n"], input=text)


def test_rendered_gres_conf_is_what_slurmd_finds(live: Live) -> None:
    node = live.nodes[0]
    (live.sandbox.layout.etc / "gres.conf").write_text(
        live.ask("qgpu", "render", "gres.conf") + "\n"
    )
    found = live.run("slurmd", "-N", node, "-G")
    said = found.stdout + found.stderr
    assert found.returncode == 0, said
    assert said.count("Gres Name=shard") == live.sandbox.plan.cards
    assert "Gres Name=qgpu Type=online" in said
    live.ask("scontrol", "reconfigure")
    live.until(lambda: not live.drained(), 10, "all nodes being up after the reconfiguration")
    job = live.submit("true", "--gres=qgpu:30")
    live.finish(job)
    assert live.state(job) == "COMPLETED"


@pytest.mark.parametrize(
    ("gres", "nodes"), [("qgpu:30", 2), ("qgpu:100", 2), ("gpu:1", 2), ("qgpu:100,vram:78G", 2)]
)
def test_where_plan_says_it_could_run_it_does(live: Live, gres: str, nodes: int) -> None:
    text = live.ask("qgpu", "plan", f"--gres={gres}", "--qos=offline")
    assert f"({nodes} nodes)" in text
    for node in live.nodes:
        done = live.run(
            "sbatch", "--test-only", f"--gres={gres}", "-w", node, "--wrap=true", user="alice"
        )
        assert f"on nodes {node} " in done.stderr
