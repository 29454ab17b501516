"""What slurmctld holds of an accepted request: the rewrite and the tag, also after a change of the job."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from jobs_support import CASES, Live, sentence_of

ONLINE_30 = "gres:qgpu:online:30,gres:shard:30,gres:qgpu_mem:23961M"


def held(live: Live, *options: str) -> int:
    """A job that waits to be released."""
    return live.submit("true", "-H", *options)


@pytest.mark.parametrize("case", CASES["accepted"], ids=lambda case: f"{case['qos']} {case['args']}")
def test_rewrite_and_tag(live: Live, case: dict[str, Any]) -> None:
    job = live.job(held(live, f"--qos={case['qos']}", *shlex.split(case["args"])))
    assert (job.get("TresPerNode"), job.get("Comment")) == (case["tres"], case["comment"])


def test_sbatch_lines_environment_and_arrays(live: Live) -> None:
    script = "#!/bin/bash\n#SBATCH -H --gres=qgpu:30 --qos=online\ntrue\n"
    by_line = live.run("sbatch", "--parsable", user="alice", input=script).stdout.strip()
    words = ["env", "SBATCH_GRES=qgpu:30", "sbatch", "-H", "--parsable", "--qos=online", "--wrap=true"]
    by_env = live.ask(*words, user="alice")
    array = held(live, "--gres=qgpu:30", "--qos=online", "--array=1-3")
    for job in (int(by_line), int(by_env), array):
        assert live.job(job)["TresPerNode"] == ONLINE_30
        assert live.job(job)["Comment"] == "qgpu/1 class=online share=30 mem=23961"
    assert live.job(array)["ArrayTaskId"] == "1-3"


def update(live: Live, job: int, *changes: str, user: str | None = "alice") -> str:
    """scontrol update; what it complained about, empty if it did not."""
    done = live.run("scontrol", "update", f"JobId={job}", *changes, user=user)
    return "" if done.returncode == 0 else done.stderr or done.stdout


def test_a_waiting_job_is_judged_again(live: Live) -> None:
    job = held(live, "--gres=qgpu:30", "--qos=online", "--comment=mine")
    assert update(live, job, "Gres=qgpu:40,qgpu_mem:1G") == ""
    assert live.job(job)["TresPerNode"] == "gres:qgpu:online:40,gres:shard:40,gres:qgpu_mem:1024M"
    assert live.job(job)["Comment"] == "qgpu/1 class=online share=40 mem=1024; mine"
    assert "Invalid generic resource" in update(live, job, "Gres=qgpu:130")
    assert "Invalid generic resource" in update(live, job, "QOS=offline")
    # 22.05 keeps a sentence about a change from the user; admins find it.
    log = live.sandbox.layout.log("slurmctld").read_text()
    assert "qgpu:130 is refused" in log
    assert f"job {job} cannot change from online to offline" in log
    assert live.job(job)["TresPerNode"] == "gres:qgpu:online:40,gres:shard:40,gres:qgpu_mem:1024M"
    assert live.job(job)["Comment"] == "qgpu/1 class=online share=40 mem=1024; mine"


@pytest.mark.parametrize("user", ["alice", None], ids=["owner", "root"])
def test_a_changed_comment_keeps_the_tag(live: Live, user: str | None) -> None:
    job = held(live, "--gres=qgpu:30", "--qos=online")
    assert update(live, job, "Comment=qgpu/1 class=online share=100 mem=79872; new", user=user) == ""
    assert live.job(job)["Comment"] == "qgpu/1 class=online share=30 mem=23961; new"
    assert update(live, job, "Comment=", user=user) == ""
    assert live.job(job)["Comment"] == "qgpu/1 class=online share=30 mem=23961"


def test_a_started_job_keeps_its_card_and_class(live: Live) -> None:
    job = live.submit("exec sleep 60", "--gres=qgpu:30", "--qos=online")
    live.wait_state(job, "RUNNING")
    before = live.job(job)
    for change in ("Gres=qgpu:10", "QOS=offline"):
        assert "Invalid generic resource" in update(live, job, change)
    assert f"job {job} has started" in live.sandbox.layout.log("slurmctld").read_text()
    assert update(live, job, "Comment=qgpu/1 whole; note") == ""
    after = live.job(job)
    assert after["TresPerNode"] == before["TresPerNode"]
    assert after["Comment"] == before["Comment"] + "; note"
    assert live.grants()[job].job_class == "online"


def test_what_plan_says_is_what_slurm_holds(live: Live) -> None:
    for case in CASES["accepted"]:
        words = shlex.split(case["args"])
        options = dict(word.lstrip("-").split("=", 1) for word in words)
        if "gres" not in options:
            continue
        ask = ["qgpu", "plan", f"--gres={options['gres']}", f"--qos={case['qos']}"]
        text = live.ask(*ask)
        assert f"Slurm is asked for  {case['tres'].replace('gres:', '')}" in text
        assert case["comment"].partition(";")[0] in text


def test_what_plan_refuses_is_what_slurm_refuses(live: Live) -> None:
    for case in CASES["refused"]:
        words = case["args"].split()
        if len(words) > 1 or not words[0].startswith("--gres="):
            continue
        refused = live.run("sbatch", *words, "--wrap=true", user="alice")
        planned = live.run("qgpu", "plan", *words)
        assert planned.returncode == 1
        assert planned.stderr.strip() == f"Error: {sentence_of(refused.stderr)}"
