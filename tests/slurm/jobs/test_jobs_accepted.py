"""What slurmctld holds of an accepted request: the rewrite and the tag, also after a change of
the job.
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from jobs_support import CASES, Live, sentence_of

ONLINE_30 = "qgpu:online:30,shard:30,vram:23961M"
TAG_30 = "qgpu/1 class=online share=30 mem=23961"


def held(live: Live, *options: str) -> int:
    """A job that waits to be released."""
    return live.submit("true", "-H", *options)


@pytest.mark.parametrize(
    "case", CASES["accepted"], ids=lambda case: f"{case['qos']} {case['args']}"
)
def test_rewrite_and_tag(live: Live, case: dict[str, Any]) -> None:
    if live.dialect.before(case.get("since", "")):
        pytest.skip("refused by this version")
    words, field = shlex.split(case["args"]), live.dialect.field
    job = live.job(held(live, f"--qos={case['qos']}", *words))
    assert job.get("TresPerNode") == live.dialect.tres(case["tres"])
    behind = "; ".join(part for part in (case["tag"], case.get("text")) if part) or None
    if field == "Comment":
        assert job.get("Comment") == behind
        return
    assert (job.get("Extra"), job.get("Comment")) == (case["tag"], case.get("text"))
    # What a user writes into the tag's own field is treated as it would be in the comment.
    extra = [word.replace("--comment=", f"{live.dialect.option}=") for word in words]
    job = live.job(held(live, f"--qos={case['qos']}", *extra))
    assert (job.get("Extra"), job.get("Comment")) == (behind, None)


def test_sbatch_lines_environment_and_arrays(live: Live) -> None:
    script = "#!/bin/bash\n#SBATCH -H --gres=qgpu:30 --qos=online\ntrue\n"
    by_line = live.run("sbatch", "--parsable", user="alice", input=script).stdout.strip()
    words = [
        "env",
        "SBATCH_GRES=qgpu:30",
        "sbatch",
        "-H",
        "--parsable",
        "--qos=online",
        "--wrap=true",
    ]
    by_env = live.ask(*words, user="alice")
    array = held(live, "--gres=qgpu:30", "--qos=online", "--array=1-3")
    for job in (int(by_line), int(by_env), array):
        assert (live.gres(job), live.tag(job)) == (ONLINE_30, TAG_30)
    assert live.job(array)["ArrayTaskId"] == "1-3"


def update(live: Live, job: int, *changes: str, user: str | None = "alice") -> str:
    """scontrol update; what it complained about, empty if it did not."""
    done = live.run("scontrol", "update", f"JobId={job}", *changes, user=user)
    return "" if done.returncode == 0 else done.stderr or done.stdout


def refused(live: Live, job: int, change: str, says: str) -> None:
    """The change is refused: in Slurm's words, and in ours where this Slurm passes them on, else
    in its log.
    """
    told = update(live, job, change)
    assert "Invalid generic resource" in told
    assert says in (
        told if live.dialect.user_told else live.sandbox.layout.log("slurmctld").read_text()
    )


def test_a_waiting_job_is_judged_again(live: Live) -> None:
    job = held(live, "--gres=qgpu:30", "--qos=online", f"{live.dialect.option}=mine")
    assert update(live, job, "Gres=qgpu:40,vram:1G") == ""
    now = ("qgpu:online:40,shard:40,vram:1024M", "qgpu/1 class=online share=40 mem=1024; mine")
    assert (live.gres(job), live.tag(job)) == now
    refused(live, job, "Gres=qgpu:130", "qgpu:130 is refused")
    refused(live, job, "Gres=shard:30", "qgpu itself books")
    assert (live.gres(job), live.tag(job)) == now
    if live.dialect.may_change:
        assert update(live, job, "QOS=offline") == ""
        now = (
            "qgpu:offline:40,shard:2,vram:1024M",
            "qgpu/1 class=offline share=40 mem=1024; mine",
        )
    else:
        refused(live, job, "QOS=offline", f"job {job} cannot change from online to offline")
    assert (live.gres(job), live.tag(job)) == now
    counts = {
        key: value
        for key, value in live.tres(job, "ReqTRES").items()
        if key.startswith("gres/qgpu:")
    }
    assert counts == {f"gres/{now[0].split(',')[0].rpartition(':')[0]}": "40"}


@pytest.mark.parametrize("user", ["alice", None], ids=["owner", "root"])
@pytest.mark.parametrize("field", ["Comment", "Extra"])
def test_a_changed_text_keeps_the_tag(live: Live, field: str, user: str | None) -> None:
    if field == "Extra" and live.dialect.field != "Extra":
        pytest.skip(f"Slurm {live.dialect.version} has no extra")
    job = held(live, "--gres=qgpu:30", "--qos=online")
    forged = f"{field}=qgpu/1 class=online share=100 mem=79872; new"
    assert update(live, job, forged, user=user) == ""
    assert live.tag(job) == TAG_30 + ("; new" if field == live.dialect.field else "")
    assert field == live.dialect.field or live.job(job)[field] == "new"
    assert update(live, job, f"{field}=", user=user) == ""
    assert live.tag(job) == TAG_30


def test_a_started_job_keeps_its_card_and_class(live: Live) -> None:
    job = live.submit("exec sleep 600", "--gres=qgpu:30", "--qos=online")
    live.wait_state(job, "RUNNING")
    before = live.gres(job), live.tag(job)
    for change in ("Gres=qgpu:10", "QOS=offline"):
        refused(live, job, change, f"job {job} has started")
    assert update(live, job, f"{live.dialect.field}=qgpu/1 whole; note") == ""
    assert (live.gres(job), live.tag(job)) == (before[0], f"{before[1]}; note")
    assert live.grant(job).job_class == "online"


def test_what_plan_says_is_what_slurm_holds(live: Live) -> None:
    for case in CASES["accepted"]:
        words = shlex.split(case["args"])
        options = dict(word.lstrip("-").split("=", 1) for word in words)
        if "gres" not in options or live.dialect.before(case.get("since", "")):
            continue
        ask = ["qgpu", "plan", f"--gres={options['gres']}", f"--qos={case['qos']}"]
        text = live.ask(*ask)
        assert f"Slurm is asked for  {live.dialect.whole(case['tres'])}" in text
        assert case["tag"] in text


def test_what_plan_refuses_is_what_slurm_refuses(live: Live) -> None:
    for case in CASES["refused"]:
        words = case["args"].split()
        if live.dialect.before(case.get("from", "")) or not live.dialect.before(
            case.get("before", "99")
        ):
            continue
        if len(words) > 1 or not words[0].startswith("--gres="):
            continue
        refused = live.run("sbatch", *words, "--wrap=true", user="alice")
        planned = live.run("qgpu", "plan", *words)
        assert planned.returncode == 1
        assert planned.stderr.strip() == f"Error: {sentence_of(refused.stderr)}"
