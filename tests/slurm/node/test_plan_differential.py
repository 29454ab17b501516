"""`qgpu plan` and sbatch agree: on whether a job is taken, and on what is booked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from jobs_support import Live
from plan_requests import DRIVER, requests
from test_several_cards import several  # noqa: F401  (a fixture)

NEVER = frozenset({"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"})


@pytest.fixture
def full(live: Live) -> Iterator[Live]:
    """No CPU is free, so that what sbatch takes only waits."""
    job = live.submit("exec sleep 3600", "-N2", "-n128", "-t", "50", user="bob", output="/dev/null")
    live.wait_state(job, "RUNNING")
    yield live


def compared(live: Live, seed: int, count: int) -> list[dict[str, Any]]:
    """Each request with what plan and sbatch made of it."""
    home = live.sandbox.layout.home("alice")
    (home / "requests.json").write_text(json.dumps(requests(seed, count, live.nodes[0])))
    start = (live.sandbox.layout.opt / "bin" / "qgpu").read_text()
    shell = start.replace('-m cli.main "$@"', "-")
    done = live.run("sh", "-c", shell, user="alice", input=DRIVER, timeout=900)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def job_fields(text: str) -> dict[str, str]:
    """Of one line of scontrol; values may have blanks."""
    return dict(re.findall(r"(?:^| )([A-Z][\w:/]*)=(.*?)(?= +[A-Z][\w:/]*=| *$)", text))


def difference(live: Live, row: dict[str, Any]) -> str:
    """Where plan and sbatch do not agree; empty if they do."""
    if row["status"] not in (0, 1) or "Traceback" in row["plan"]:
        return f"plan ended with {row['status']}"
    job = job_fields(row["job"])
    takes = row["sbatch"] == 0 and job.get("Reason") not in NEVER
    if takes != (row["status"] == 0):
        return "the verdict"
    if not takes:
        return ""
    plan = json.loads(row["plan"])
    booked = job.get("TresPerNode", "").replace(live.dialect.prefix, "")
    if plan["gres"].replace(live.dialect.prefix, "") != booked:
        return f"gres {plan['gres']} and {booked}"
    if plan["tag"] and plan["tag"] != job[live.dialect.field].split(";")[0]:
        return f"tag {plan['tag']} and {job[live.dialect.field]}"
    if plan["tres_per_task"] and plan["tres_per_task"] not in job.get("TresPerTask", ""):
        return f"per task {plan['tres_per_task']} and {job.get('TresPerTask')}"
    return _tres(plan, job)


def _tres(plan: dict[str, Any], job: dict[str, str]) -> str:
    """The counts of the whole job, as they are booked and billed."""
    if not plan["share_percent"]:
        return ""
    text = job.get("ReqTRES") or job["TRES"]
    tres = dict(entry.split("=") for entry in text.split(","))
    cards = plan["cards_per_node"] * int(tres["node"])
    wanted = {
        "gres/qgpu": plan["share_percent"] * cards,
        f"gres/qgpu:{plan['class']}": plan["share_percent"] * cards,
        "gres/shard": plan["shards"] * cards,
        "gres/vram": plan["mem_bytes"] * cards,
    }
    found = {name: int(tres.get(name, 0)) for name in wanted}
    return "" if found == wanted else f"TRES {wanted} and {found}"


def check(live: Live, seed: int, count: int) -> None:
    rows = compared(live, seed, count)
    assert len(rows) == count
    wrong = [(found, row) for row in rows if (found := difference(live, row))]
    assert not wrong, f"{len(wrong)} of {count}, the first: {json.dumps(wrong[:5], indent=1)}"
    taken = sum(row["status"] == 0 for row in rows)
    assert count // 5 < taken < count * 4 // 5, f"{taken} of {count} are taken: a poor mixture"


def test_what_plan_names_instead_starts_now(live: Live) -> None:
    """And the card, the job in front, and limits of the QOS, at which --test-only does not look.
    A job that waits for its begin does not count, though --test-only counts it.
    """

    ask = ("--gres=qgpu:40", "--qos=online")

    def planned(*words: str) -> tuple[int, dict[str, Any]]:
        done = live.run("qgpu", "plan", "--json", *words, user="alice")
        return done.returncode, json.loads(done.stdout)

    def told(says: str) -> bool:
        return says in json.dumps(planned(*ask)[1])

    begins = live.submit("true", "--begin=now+1hour", "-t", "60")
    empty = planned("--gres=qgpu:30", "--qos=online", "-w", live.nodes[0])[1]
    assert (empty["starts"]["now"], empty["starts"]["card"]) == (True, 0)
    live.ask("scancel", str(begins))
    live.wait_state(begins, "CANCELLED")
    together = planned(*ask, ":", *ask)[1]
    assert (together["starts"]["now"], len(together["parts"])) == (None, 2)
    assert planned(*ask, "--hold")[1]["starts"]["now"] is False
    status, found = planned(*ask, "-t", "100-0")  # the partition allows a day
    assert (status, "PartitionTimeLimit" in found["message"]) == (1, True)
    whole = live.submit("exec sleep 600", "--exclusive", "-t", "30", "-w", live.nodes[0])
    live.wait_state(whole, "RUNNING")
    assert planned(*ask, "-x", live.nodes[1])[1]["starts"]["behind"] == str(whole)
    live.ask("scancel", str(whole))
    live.wait_state(whole, "CANCELLED")
    words = ("--qos=online", "--gres=qgpu:70", "-t", "30", "-w")
    jobs = [live.submit("exec sleep 600", *words, node) for node in live.nodes * 2]
    for job in jobs:
        live.wait_state(job, "RUNNING")
    status, found = planned(*ask)
    assert (status, found["starts"]["now"]) == (0, False)
    assert found["instead"] == ["--gres=qgpu:30"]
    live.wait_state(live.submit("true", *ask, *found["instead"]), "RUNNING", "COMPLETED")
    limit = ("sacctmgr", "-i", "modify", "qos", "online", "set")
    for setting, says, code, least in (
        ("MaxTRESPerJob=gres/qgpu=35", "allows gres/qgpu=35 per job", 1, []),
        (
            "MaxTRESPerUser=gres/qgpu=300",
            "gives you gres/qgpu=300, 280 in use",
            0,
            ["--gres=qgpu:20"],
        ),
    ):
        live.ask(*limit, setting)
        try:
            live.until(partial(told, says), 10, says)
            code_now, found = planned(*ask)
            assert (code_now, found.get("instead", [])) == (code, least)
        finally:
            live.ask(*limit, setting.rpartition("=")[0] + "=-1")


def test_plan_and_sbatch_agree(full: Live) -> None:
    check(full, seed=47, count=300)


def test_they_agree_on_parts_of_several_cards(several: Live, full: Live) -> None:  # noqa: F811
    check(full, seed=48, count=150)
