"""The programs for a card, as far as testable without one: they compile, and their control flow
works.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.place import BUILDS, PROGRAMS, VARIANTS

FAKES = Path(__file__).parent / "fakes"
ROOT = PROGRAMS.parents[2]
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")


@needs_nvcc
@pytest.mark.parametrize(("name", "variant"), BUILDS)
def test_program_compiles_without_a_warning(tmp_path: Path, name: str, variant: str) -> None:
    flags = ["-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", *VARIANTS[variant]]
    source = str(PROGRAMS / f"{name}.cu")
    done = subprocess.run(
        ["nvcc", *flags, source, "-o", str(tmp_path / "p")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("ptxas"), reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_the_workloads_own_kernel_assembles(tmp_path: Path, arch: str) -> None:
    source = (ROOT / "simulator/native/workload/driver.c").read_text()
    text = re.search(r"char ptx\[\] =\s*(.*?);\n\n", source, re.DOTALL)[1]
    ptx = "".join(re.findall(r'"(.*?)"', text)).replace("\\n", "\n")
    (tmp_path / "w.ptx").write_text(ptx)
    command = ["ptxas", f"-arch={arch}", str(tmp_path / "w.ptx"), "-o", str(tmp_path / "w")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def python(script: str, *words: str) -> dict[str, object]:
    """A program with libraries that only pretend to compute; its last line."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(FAKES)}
    command = [sys.executable, str(PROGRAMS / script), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("how", ["eager", "graphs", "compile"])
def test_pytorch_loop_counts_steps_and_writes_their_spans(
    tmp_path: Path, mode: str, how: str
) -> None:
    words = [
        "--mode",
        mode,
        "--how",
        how,
        "--steps",
        "7",
        "--spans",
        str(tmp_path / "s"),
        "--alloc",
        "expandable",
    ]
    told = python("torch_work.py", *words)
    assert told["steps"] == 7 and len(str(told["sum"])) == 16
    spans = json.loads((tmp_path / "s").read_text())
    assert (
        len(spans["spans"]) == 7
        and all(a < b for a, b in spans["spans"])
        and spans["pid"] == told["pid"]
    )


def test_pytorch_loop_by_the_clock_and_in_bursts(tmp_path: Path) -> None:
    endless = python("torch_work.py", "--length", "0.2")
    assert endless["steps"] > 5 and endless["steps_per_s"] > 0
    log = tmp_path / "log"
    python(
        "torch_work.py",
        "--mode",
        "infer",
        "--length",
        "0.3",
        "--busy",
        "0.05",
        "--idle",
        "0.05",
        "--log",
        str(log),
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    bursts = [line for line in lines if "burst" in line]
    assert len(bursts) >= 2 and all(b["end_ns"] > b["start_ns"] for b in bursts)
    assert sum("latency_ns" in line for line in lines) > len(bursts)


def test_pytorch_at_its_cap_frees_and_takes_half_again() -> None:
    told = python("torch_memory.py", "expandable", str(64 << 20), str(6 << 30))
    assert told["error"] == "OutOfMemoryError" and told["bytes"] == 4 << 30
    assert told["again"] == 2 << 30
