"""Classes by QOS: whose default counts, what limits and billing do with them, and a class that
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from jobs_support import Live, work

NAP = "exec sleep 600"


@contextmanager
def setting(live: Live, *words: str, undo: str) -> Iterator[None]:
    """sacctmgr modify ... set WORDS[-1]; `undo` is set afterwards."""
    live.ask("sacctmgr", "-i", "modify", *words[:-1], "set", words[-1])
    try:
        yield
    finally:
        live.ask("sacctmgr", "-i", "modify", *words[:-1], "set", undo)


def class_of(live: Live, *options: str) -> str:
    """Class of a job of alice that asks for a share with these options."""
    job = live.submit("true", "-H", "--gres=qgpu:10", *options)
    tag = live.tag(job) or ""
    return tag.partition("class=")[2].split(" ")[0]


@pytest.mark.parametrize(
    "whose", [("user", "alice"), ("account", "research")], ids=lambda words: words[0]
)
def test_a_default_qos_decides_the_class(live: Live, whose: tuple[str, str]) -> None:
    assert class_of(live) == "offline"
    with setting(live, *whose, "defaultqos=online", undo="defaultqos=-1"):
        live.until(lambda: class_of(live) == "online", 5, "the new default being known")
        assert class_of(live, "--qos=offline") == "offline"
    live.until(lambda: class_of(live) == "offline", 5, "the old default being known")


def qos_of(live: Live, *options: str) -> str:
    """QOS (24.11 shows it as it was typed) and class of a job of alice; Slurm's words where it
    refuses the job.
    """
    done = live.run(
        "sbatch", "-H", "--parsable", "--gres=qgpu:10", *options, "--wrap=true", user="alice"
    )
    if done.returncode != 0:
        return done.stderr.strip().rpartition(": ")[2]
    job = int(done.stdout)
    tag = live.tag(job) or ""
    return f"{live.job(job)['QOS'].lower()} {tag.partition('class=')[2].split(' ')[0]}"


@contextmanager
def accounts(live: Live) -> Iterator[None]:
    """alice in `parts`, where the partition gpu has an association of its own, and in `only`,
    with one QOS.
    """
    live.ask("sacctmgr", "-i", "add", "account", "parts", "only")
    user = ("sacctmgr", "-i", "add", "user", "alice")
    try:
        live.ask(*user, "account=parts", "qos=offline,online", "defaultqos=online")
        live.ask(*user, "account=parts", "partition=gpu", "qos=offline", "defaultqos=offline")
        live.ask(*user, "account=only", "qos=online")
        known = [("-A", "only", "--qos=online"), ("-A", "parts", "--qos=offline")]
        live.until(
            lambda: all("line" in qos_of(live, *words) for words in known),
            10,
            "the accounts being known",
        )
        yield
    finally:
        live.run("scancel", "-u", "alice")
        live.run("sacctmgr", "-i", "delete", "account", "parts", "only")


def test_qos_and_class_agree_however_chosen(live: Live) -> None:
    assert qos_of(live, "--qos=OnLine") == "online online"
    with accounts(live):
        # Lua's default is that of the association without a partition: online, which is not for
        # this partition.
        assert qos_of(live, "-A", "parts") == "offline offline"
        assert qos_of(live, "-A", "parts", "-p", "gpu") == "offline offline"
        assert qos_of(live, "-A", "parts", "--qos=online") == "Invalid qos specification"
        if not live.dialect.before("25.05.3"):
            assert qos_of(live, "-A", "only") == "online online"
    # slurmctld 24.11 dies of a question for the QOS of an association that does not exist.
    assert "Invalid account" in qos_of(live, "-A", "nosuch")
    assert qos_of(live, "--qos=online") == "online online"


def test_a_waiting_share_keeps_its_qos_where_none_is_named(live: Live) -> None:
    job = live.submit("true", "-H", "--qos=online", "--gres=qgpu:10")
    done = live.run("scontrol", "update", f"JobId={job}", "QOS=", user="alice")
    assert done.returncode != 0
    assert live.job(job)["QOS"] == "online"
    assert "class=online" in (live.tag(job) or "")


def test_a_partitions_qos_is_for_its_limits_and_not_the_class(live: Live) -> None:
    live.ask("scontrol", "update", "PartitionName=gpu", "QOS=online")
    try:
        assert class_of(live) == "offline"
    finally:
        live.ask("scontrol", "update", "PartitionName=gpu", "QOS=")


def test_a_limit_per_user_and_class(live: Live) -> None:
    with setting(
        live,
        "qos",
        "offline",
        "MaxTRESPerUser=gres/qgpu:offline=100",
        undo="MaxTRESPerUser=gres/qgpu:offline=-1",
    ):
        gres = ("--qos=offline", "--gres=qgpu:60,vram:1G")
        first = live.submit(NAP, *gres)
        live.wait_state(first, "RUNNING")
        second = live.submit(NAP, *gres)
        live.until(
            lambda: live.reason(second) == "QOSMaxGRESPerUser", 10, "the limit as the reason"
        )
        other = live.submit(NAP, *gres, user="bob", output="/dev/null")
        online = live.submit(NAP, "--qos=online", "--gres=qgpu:60,vram:1G")
        live.wait_state(other, "RUNNING")
        live.wait_state(online, "RUNNING")
        assert live.state(second) == "PENDING"
    live.wait_state(second, "RUNNING")


def test_a_least_share_per_class(live: Live) -> None:
    with setting(
        live, "qos", "offline", "MinTRES=gres/qgpu:offline=20", undo="MinTRES=gres/qgpu:offline=-1"
    ):
        small = live.submit(NAP, "--qos=offline", "--gres=qgpu:10,vram:1G")
        live.until(lambda: live.reason(small) == "QOSMinGRES", 10, "the limit as the reason")
        enough = live.submit(NAP, "--qos=offline", "--gres=qgpu:20,vram:1G")
        online = live.submit(NAP, "--qos=online", "--gres=qgpu:10,vram:1G")
        live.wait_state(enough, "RUNNING")
        live.wait_state(online, "RUNNING")
        assert live.state(small) == "PENDING"


def test_the_overcommit_of_offline_ends_at_its_count(live: Live) -> None:
    """400 per card: eight offline shares of 100 on the two cards of a node, though memory and
    shards are left.
    """
    gres = ("-w", live.nodes[0], "--qos=offline", "--gres=qgpu:100,vram:1G")
    jobs = [live.submit(NAP, *gres) for _ in range(8)]
    for job in jobs:
        live.wait_state(job, "RUNNING")
    ninth = live.submit(NAP, *gres)
    live.until(lambda: live.reason(ninth) == "Resources", 10, "the ninth waiting")
    live.cancel(jobs[0])
    live.wait_state(ninth, "RUNNING")


def test_billing_counts_percent(live: Live) -> None:
    live.ask(
        "scontrol",
        "update",
        "PartitionName=gpu",
        "TRESBillingWeights=GRES/qgpu=1,GRES/qgpu:online=2",
    )
    try:
        online = live.submit("true", "--qos=online", "--gres=qgpu:30")
        offline = live.submit("true", "--qos=offline", "--gres=qgpu:30")
        live.finish(online, offline)
        assert (live.tres(online)["billing"], live.tres(offline)["billing"]) == ("90", "30")
    finally:
        live.ask("scontrol", "update", "PartitionName=gpu", "TRESBillingWeights=CPU=1")


def test_a_running_job_changes_its_class_on_the_node(live: Live) -> None:
    """Slurm does not change the QOS of a running job, so `qgpu job class` says it to the node."""
    node = live.nodes[0]
    first = live.submit(
        work("--length", "600"), "--qos=online", "--gres=qgpu:40,vram:4G", "-w", node
    )
    live.wait_state(first, "RUNNING")
    offline = live.submit(
        work("--length", "1"), "--qos=offline", "--gres=qgpu:40,vram:1G", "-w", node
    )
    live.until(lambda: {first, offline} <= set(live.grants()), 20, "both grants")
    assert live.place(first) == live.place(offline)
    more = live.run("qgpu", "job", "class", str(offline), "online", "--node", node)
    assert more.returncode != 0 and "online needs 40 %" in more.stderr
    assert (
        live.run(
            "qgpu", "job", "class", str(first), "offline", "--node", node, user="alice"
        ).returncode
        != 0
    )
    said = live.ask("qgpu", "job", "class", str(first), "offline", "--node", node)
    assert said == f"job {first} was online, is offline"
    # an online neighbour that never rests would have kept it waiting
    live.finish(offline, seconds=20)
    assert live.state(offline) == "COMPLETED"
    assert live.grant(first).job_class == "offline"
    assert live.tres(first)["gres/qgpu:online"] == "40"
