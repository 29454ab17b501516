"""The whole product with a real program: PyTorch in a Slurm job that asks for a part of a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jobs_support import Live

pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(os.environ.get("QGPU_FRAMEWORKS", "/var/cache/qgpu/frameworks"))
PYTHON = PLACE / "torch-cuda13/bin/python"
CONTEXT_MIB = 512  # at most, of each process
STEPS = ROOT / "tests/frameworks/programs/torch_steps.py"


def script(*steps: str) -> str:
    """A batch script that runs these steps in one process."""
    words = "\\n".join(steps)
    return f"printf '{words}\\n' | {PYTHON} {STEPS}"


def told(text: str) -> list[dict[str, Any]]:
    """The lines of JSON of a job's output, which has the messages of its stderr, too."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(autouse=True)
def installed() -> None:
    """The environment is there."""
    if not (PLACE / "torch-cuda13/.complete").exists():
        pytest.skip("torch-cuda13 is not installed: tools/frameworks.sh torch-cuda13")


def test_two_trainings_on_one_card_within_their_caps(live: Live) -> None:
    node = live.nodes[0]
    share = ("--gres=qgpu:30,vram:4G", "--qos=offline", "-w", node)
    jobs = [live.submit(script("train 20", "memory", "fill"), *share) for _ in "ab"]
    for text in live.finish(*jobs, seconds=180):
        train, memory, fill = told(text)
        assert train["ms"] > 0 and memory["total"] == 4096
        assert fill["held"] <= 4096 and "out of memory" in fill["words"]
        assert "qgpu: allocation of" in text, "the sentence that says how to ask for more"
    for job in jobs:
        assert live.state(job) == "COMPLETED"
        live.wait_sacct(job)
        (grant,) = live.report(job)[job]["grants"]
        assert grant["busy_s"] > 0 and grant["denied"] >= 1
        assert 2 << 30 <= grant["mem_peak"] <= 4 << 30


def test_training_stands_still_while_an_online_job_infers(live: Live) -> None:
    node = live.nodes[0]
    gres = ("--gres=qgpu:50,vram:4G", "-w", node)
    offline = live.submit(script("train 5", "train 100000"), "--qos=offline", *gres)
    live.until(lambda: bool(told(live.output(offline))), 60, "offline has trained")
    online = live.submit(script("infer", "train 200"), "--qos=online", *gres)
    (text,) = live.finish(online, seconds=180)
    assert told(text)[1]["ms"] > 0
    live.cancel(offline)
    live.wait_gone(offline, 60)
    for job in (offline, online):
        live.wait_sacct(job)
    found = live.report(offline, online)
    (below,), (above,) = found[offline]["grants"], found[online]["grants"]
    assert below["card"] == above["card"] and below["suspended_s"] > 0
    assert above["suspended_s"] == 0


def test_memory_of_another_process_is_paid_once(live: Live) -> None:
    """torch.multiprocessing: a tensor of 1 GiB that a second process maps."""
    job = live.submit(script("share 1024"), "--gres=qgpu:30,vram:4G", "-w", live.nodes[0])
    (text,) = live.finish(job, seconds=180)
    (share,) = told(text)
    assert (share["there"], share["status"]) == (1024, 0), text
    assert share["free"] >= 4096 - 1024 - 2 * CONTEXT_MIB
