"""The cost of qgpu for a training step: how turns become figures, and a machine without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import __main__ as program
from bench.costs import framework
from bench.harness.figures import NotRun


def found(ours: float, control: float) -> framework.Found:
    turns: list[Mapping[str, framework.Step]] = [
        {
            "plain": framework.Step(0.002 * slow, 0.001 * slow),
            "ours": framework.Step(0.002 * slow * ours, 0.001 * slow * ours),
            "control": framework.Step(0.002 * slow * control, 0.001 * slow * control),
        }
        for slow in (1.0, 1.5, 1.0, 1.2)
    ]
    return framework.Found([turns, turns, turns], [80.0, 80.0, 80.0])


def test_a_turn_is_compared_with_the_plain_one_beside_it() -> None:
    told = {f.name: f for f in framework.judged(found(1.005, 1.08), "_window")}
    assert list(told) == [
        "framework_step_ratio_window",
        "framework_step_cpu_ratio_window",
        "control_framework_step_ratio_window",
        "control_framework_step_cpu_ratio_window",
    ]
    wall = told["framework_step_ratio_window"]
    assert wall.value == pytest.approx(1.005)
    assert (wall.verdict, wall.runs) == ("ok", 3)
    assert wall.detail["rate"] == pytest.approx(80 / 0.0022110, rel=1e-3)
    assert told["control_framework_step_ratio_window"].verdict.startswith("short, as")


def test_a_control_that_costs_nothing_means_a_blind_bench() -> None:
    controls = [f for f in framework.judged(found(1.0, 1.0), "") if f.control]
    assert len(controls) == 2 and all(f.verdict.startswith("BLIND") for f in controls)


def test_without_pytorch_it_is_not_run_and_that_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QGPU_FRAMEWORKS", str(tmp_path))
    with pytest.raises(NotRun, match=r"tools/frameworks\.sh torch-cuda13"):
        framework.environment()
    run = program.Run()
    with CliRunner().isolation() as (out, *_):
        run.add("framework", program.SCENARIOS["framework"], True)
    assert b"not run framework: PyTorch is not installed" in out.getvalue()
    assert run.status == 0 and list(run.not_run) == ["framework"]
