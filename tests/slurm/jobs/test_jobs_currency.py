"""Shares and whole cards are one currency: gres/qgpu in billing, limits, AllocTRES and reports."""

from __future__ import annotations

import json

from jobs_support import CASES, Live


def test_shares_and_whole_cards_are_one_currency(live: Live) -> None:
    """Billing, AllocTRES and qgpu report agree, for every spelling; nothing stays booked behind."""
    cases = [c for c in CASES["counted"] if not live.dialect.before(c.get("since", ""))]
    live.ask("scontrol", "update", "PartitionName=gpu", "TRESBillingWeights=GRES/qgpu=1")
    try:
        jobs = {}
        for number, case in enumerate(cases):
            words = (f"--qos={('online', 'offline')[number % 2]}", *case["args"].split())
            jobs[live.submit("true", *words)] = case
        live.finish(*jobs)
    finally:
        live.ask("scontrol", "update", "PartitionName=gpu", "TRESBillingWeights=")
    for number, (job, case) in enumerate(jobs.items()):
        live.wait_sacct(job)
        (text,) = live.sacct(job, "alloctres")
        tres = dict(item.split("=") for item in text.split(","))
        found = {name: tres.get(name) for name in ("billing", "gres/qgpu")}
        percent = str(case["percent"])
        assert found == {"billing": percent, "gres/qgpu": percent}, case
        assert tres.get(f"gres/qgpu:{('online', 'offline')[number % 2]}") == percent, case
    whole = json.loads(live.ask("qgpu", "report", *map(str, jobs), "--json"))["jobs"]
    assert {job["raw_id"] for job in whole} == set(jobs)
    for node in live.nodes:
        assert "qgpu" not in live.ask("scontrol", "show", "node", node).partition("AllocTRES=")[2]


def test_limits_hold_for_whole_cards_too(live: Live) -> None:
    rule = ("sacctmgr", "-i", "modify", "qos", "online", "set")
    live.ask(*rule, "MaxTRESPerJob=gres/qgpu=150", "Flags=DenyOnLimit")
    try:
        for words in (("--gres=qgpu:60", "-N2"), ("--gres=gpu:1",), ("--gres=gpu:1", "-N2")):
            done = live.run("sbatch", "-H", "--qos=online", *words, "--wrap=true", user="alice")
            over = "-N2" in words and "gpu:1" in words[0]
            assert (done.returncode != 0) == over, (words, done.stderr)
    finally:
        live.ask(*rule, "MaxTRESPerJob=gres/qgpu=-1", "Flags-=DenyOnLimit")


def test_a_waiting_whole_card_moves_to_another_class(live: Live) -> None:
    job = live.submit("sleep 600", "-H", "--requeue", "--qos=online", "--gres=gpu:1")
    held = live.dialect.tres("gpu:1,qgpu:online:100")
    assert live.job(job)["TresPerNode"] == held
    done = live.run("scontrol", "update", f"JobId={job}", "QOS=offline", user="alice")
    if live.dialect.may_change:
        assert done.returncode == 0, done.stderr
        held = live.dialect.tres("gpu:1,qgpu:offline:100")
    else:
        assert done.returncode != 0
    assert live.job(job)["TresPerNode"] == held
    live.ask("scontrol", "release", str(job))
    live.wait_state(job, "RUNNING")
    live.ask("scontrol", "requeue", str(job))
    live.until(lambda: live.state(job) == "PENDING", 20, "it waits again")
    assert live.job(job)["TresPerNode"] == held
    live.cancel(job)
