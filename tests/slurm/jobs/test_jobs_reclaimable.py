"""Classes whose memory may be taken back, on live Slurm: what is booked on the card and in host
memory, through submissions and updates of each kind, and what jobs that reserve have beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_support import USABLE, Live, sentence_of
from test_jobs_sites import NAP, running, site, spread

from cli.sandbox.cluster import Sandbox

CAP = 23961  # MiB of 30 % of a card
CPU = 64  # DefMemPerCPU of the sandbox
RECLAIMABLE = "classes: {offline: {memory: reclaimable}}\n"


@pytest.fixture(scope="module", autouse=True)
def reclaimable(sandbox: Sandbox) -> Iterator[None]:
    """The sandbox with offline jobs whose memory may be taken back."""
    with site(Live(sandbox), lambda text: text + RECLAIMABLE):
        yield


def host(live: Live, job: int) -> str:
    """The memory request, such as "28057M per node"."""
    fields = live.job(job)
    per = "node" if "MinMemoryNode" in fields else "CPU"
    text = fields["MinMemoryNode" if per == "node" else "MinMemoryCPU"]
    size = int(re.sub("[MG]$", "", text)) * (1024 if text.endswith("G") else 1)
    return f"{size}M per {per}"


def added(live: Live, job: int) -> str:
    """What the tag says was added."""
    tag = (live.tag(job) or "").partition(";")[0]
    found = re.search(r" host=(\S+)$", tag)
    assert tag.startswith("qgpu/1 class=offline "), tag
    return found[1] if found else ""


def held(live: Live, *options: str, qos: str = "offline", gres: str = "qgpu:30") -> int:
    """A job that waits."""
    return live.submit(NAP, "-H", f"--qos={qos}", f"--gres={gres}", *options)


def update(live: Live, job: int, *changes: str) -> str:
    """What a user's update of his job was told; empty if nothing."""
    done = live.run("scontrol", "update", f"JobId={job}", *changes, user="alice")
    assert done.returncode == 0, done.stderr
    return done.stderr


SHAPES = [
    (("--mem=4G",), f"{4096 + CAP}M per node", f"{CAP}"),
    (("--mem-per-cpu=100M",), f"{100 + CAP}M per CPU", f"{CAP}/1"),
    (("--mem-per-cpu=100M", "-N1", "-n2", "-c2"), "6091M per CPU", f"{CAP}/4"),
    (("--mem-per-cpu=100M", "-N2", "--ntasks-per-node=4"), "6091M per CPU", f"{CAP}/4"),
    (("--mem-per-cpu=100M", "-n8"), f"{100 + CAP}M per CPU", f"{CAP}/1"),
    (("--mem-per-cpu=100M", "-N1", "-n8", "-O"), f"{100 + CAP}M per CPU", f"{CAP}/1"),
    (("-c3",), f"{CPU + 7987}M per CPU", f"{CAP}/3"),
    ((), f"{CPU + CAP}M per CPU", f"{CAP}/1"),
    (("--mem=0",), "0M per node", "0"),
    (("-p", "pernode"), f"{3000 + CAP}M per node", f"{CAP}"),
    (("-p", "percpu", "-c2", "-N1"), f"{500 + 11981}M per CPU", f"{CAP}/2"),
    (("-p", "pernode", "--mem-per-cpu=10M"), f"{10 + CAP}M per CPU", f"{CAP}/1"),
    (("--array=0-2", "--mem=1G"), f"{1024 + CAP}M per node", f"{CAP}"),
]


def test_each_way_to_ask_for_host_memory_grows_by_the_cap(live: Live) -> None:
    for name, default in (("pernode", "DefMemPerNode=3000"), ("percpu", "DefMemPerCPU=500")):
        nodes = ",".join(live.nodes)
        live.ask("scontrol", "create", f"PartitionName={name}", f"Nodes={nodes}", default)
    try:
        for options, request, record in SHAPES:
            job = held(live, *options)
            assert (host(live, job), added(live, job)) == (request, record), options
            assert re.sub(":h200", "", live.gres(job)) == f"qgpu:offline:30,shard:1,vram:{CAP}M"
        # what reserves keeps its memory
        job = held(live, "--mem=4G", qos="online")
        assert host(live, job) == "4096M per node"
        assert f"shard:30,vram:{CAP}M" in live.gres(job)
        assert " host=" not in (live.tag(job) or "")
        job = held(live, "--mem=4G", gres="gpu:1")
        assert host(live, job) == "4096M per node"
    finally:
        live.empty()
        for name in ("pernode", "percpu"):
            live.ask("scontrol", "delete", f"PartitionName={name}")


def test_the_user_is_told_by_each_command(live: Live) -> None:
    words = ("--gres=qgpu:30", "--qos=offline", "--mem=4G")
    sentence = (
        "memory of this job on its card may be taken back to its host memory, so its request per"
        f" node grew from 4096M to {4096 + CAP}M."
    )
    for command in (
        ("sbatch", *words, "--wrap=true"),
        ("salloc", *words, "srun", "true"),
        ("srun", *words, "true"),
    ):
        done = live.run(*command, user="alice")
        assert done.returncode == 0, done.stderr
        assert sentence_of(done.stderr) == sentence, done.stderr
    quiet = live.run("sbatch", "--gres=qgpu:30", "--qos=online", "--wrap=true", user="alice")
    assert sentence_of(quiet.stderr) == ""


def test_steps_of_a_job_have_all_its_memory(live: Live) -> None:
    """slurmctld writes the request that grew into the job's environment, where srun reads it."""
    script = "env | grep ^SLURM_MEM; srun bash -c 'scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID'"
    job = live.submit(script, "--gres=qgpu:30", "--qos=offline", "--mem=4G")
    (text,) = live.finish(job)
    assert f"SLURM_MEM_PER_NODE={4096 + CAP}\n" in text
    assert f"mem={4096 + CAP}M" in text, text


LIMIT = (
    "p=/sys/fs/cgroup/memory$(grep :memory: /proc/self/cgroup | cut -d: -f3);"
    " cat ${p%%/task_*}/memory.limit_in_bytes"
)


def test_a_step_with_memory_of_its_own_has_the_limit_of_its_job(live: Live) -> None:
    """Slurm would kill it when its GPU memory is moved to its host memory."""
    if live.sandbox.plan.cgroup != "v1":
        pytest.skip("the memory controller of this machine is in cgroups version 1")

    def constrain(etc: Path) -> None:
        path = etc / "cgroup.conf"
        text = path.read_text()
        path.write_text(text.replace("ConstrainRAMSpace=no", "ConstrainRAMSpace=yes"))

    with site(live, lambda text: text + "# with limits\n", constrain):
        words = ("srun", "--mem=100M", "bash", "-c", LIMIT)
        for qos, cap in (("offline", 2048), ("online", 0)):
            own = ("--gres=qgpu:10,vram:2G", f"--qos={qos}")
            inside = live.ask("salloc", "-Q", *own, "--mem=1G", *words, user="alice")
            alone = live.ask(words[0], *own, *words[1:], user="alice")
            found = [int(text.split()[-1]) >> 20 for text in (inside, alone)]
            assert found == [1024 + cap if cap else 100, 100 + cap], qos


def test_a_running_job_has_one_shard_and_a_reclaimable_grant(live: Live) -> None:
    job = running(live, "offline", "qgpu:30", "--mem=1G")
    grant = live.grant(job)
    assert (grant.reclaimable, grant.cards[0].mem_cap) == (True, CAP << 20)
    found = live.tres(job)
    assert (found["gres/shard"], found["gres/qgpu"]) == ("1", "30")
    assert found["mem"] == f"{1024 + CAP}M"
    other = running(live, "online", "qgpu:30", "--mem=1G")
    assert not live.grant(other).reclaimable
    assert live.tres(other)["gres/shard"] == "30"


def test_parts_of_a_heterogeneous_job_are_judged_each(live: Live) -> None:
    part = ("--qos=offline", "--gres=qgpu:30")
    job = live.submit(NAP, "-H", *part, "--mem=1G", ":", *part, "--mem=2G")
    text = live.ask("scontrol", "show", "job", str(job))
    assert sorted(re.findall(r"MinMemoryNode=(\d+)M", text)) == [str(1024 + CAP), str(2048 + CAP)]


def test_updates_add_the_difference_once(live: Live) -> None:
    job = held(live, "--mem=4G")
    for changes, request, record in (
        (("Gres=qgpu:30",), 4096 + CAP, CAP),
        ((f"{live.dialect.field}=mine",), 4096 + CAP, CAP),
        (("Gres=qgpu:50",), 4096 + 39936, 39936),
        (("MinMemoryNode=8192",), 8192 + 39936, 39936),
        ((f"MinMemoryNode={8192 + 39936}",), 8192 + 39936, 39936),
        (("Gres=qgpu:10,vram:1G", "MinMemoryNode=1024"), 2048, 1024),
        (("Priority=0",), 2048, 1024),
    ):
        update(live, job, *changes)
        assert (host(live, job), added(live, job)) == (f"{request}M per node", f"{record}"), changes
    assert (live.tag(job) or "").endswith("; mine")
    if live.dialect.may_change:
        update(live, job, "QOS=online")
        assert host(live, job) == "1024M per node"
        update(live, job, "QOS=offline")
        assert host(live, job) == "2048M per node"
    each = held(live, "--mem-per-cpu=100M", "-N1", "-n4")
    assert (host(live, each), added(live, each)) == ("6091M per CPU", f"{CAP}/4")
    update(live, each, "NumCPUs=2")
    assert (host(live, each), added(live, each)) == (f"{100 + 11981}M per CPU", f"{CAP}/2")


def test_a_requeued_job_keeps_its_request(live: Live) -> None:
    job = running(live, "offline", "qgpu:30", "--mem=1G", "--requeue")
    live.launched()
    live.ask("scontrol", "requeue", str(job))
    live.until(lambda: live.state(job) == "PENDING", 20, "the requeue")
    assert (host(live, job), added(live, job)) == (f"{1024 + CAP}M per node", f"{CAP}")


def test_jobs_that_reserve_have_the_card_beside_many_reclaimable_ones(live: Live) -> None:
    """Four offline jobs of 30 GiB and then 95 % for online, all on one card of 78 GiB."""
    node = live.nodes[0]
    offline = [
        running(live, "offline", "qgpu:20,vram:30G", "--mem=100M", "-w", node) for _ in range(4)
    ]
    online = [
        running(live, "online", gres, "--mem=100M", "-w", node)
        for gres in ("qgpu:95", "qgpu:60,vram:40G", "qgpu:40,vram:31G")
    ]
    grants = live.grants()
    cards = [live.place(job)[1] for job in offline + online]
    assert cards == [0, 0, 0, 0, 0, 1, 1]
    assert {grants[job].state for job in offline + online} == {"active"}
    for card in (0, 1):
        held_by = [
            each.cards[0].mem_cap
            for each in grants.values()
            if each.cards[0].index == card and not each.reclaimable
        ]
        assert sum(held_by) <= USABLE
    waits = live.submit(NAP, "--qos=online", "--gres=qgpu:10", "--mem=100M", "-w", node)
    live.until(lambda: live.reason(waits) == "Resources", 20, "the job that does not fit")


def test_host_memory_bounds_reclaimable_jobs(live: Live) -> None:
    """Nodes of the sandbox say 128 GiB: two such jobs fit. A third waits, though its shard fits."""
    node = live.nodes[0]
    for _ in range(2):
        running(live, "offline", "qgpu:10,vram:50G", "--mem=1G", "-w", node)
    third = live.submit(NAP, "--qos=offline", "--gres=qgpu:10,vram:50G", "--mem=1G", "-w", node)
    live.until(lambda: live.reason(third) == "Resources", 20, "the third job waiting")


def test_a_request_that_no_node_could_hold_is_refused(live: Live) -> None:
    def small(text: str) -> str:
        return re.sub(r"count: (\d+),", r"count: \1, host_memory: 32GiB,", text)

    with site(live, small):
        done = live.run(
            "sbatch", "--gres=qgpu:30", "--qos=offline", "--mem=16G", "--wrap=true", user="alice"
        )
        assert done.returncode != 0
        assert sentence_of(done.stderr) == (
            "qgpu:30 is refused: its memory may be taken back to host memory, so 23961M are added"
            " to the job's own 16384M, and a node gives at most 32768M to a job; write at most"
            " --mem=8807M, or less of the card, for example --gres=qgpu:30,vram:300M."
        )
        live.submit("true", "--gres=qgpu:30", "--qos=offline", "--mem=8807M")


def test_a_partition_bounds_the_memory_of_a_job(live: Live) -> None:
    nodes = ",".join(live.nodes)
    live.ask("scontrol", "create", "PartitionName=small", f"Nodes={nodes}", "MaxMemPerNode=25000")
    try:
        words = ("sbatch", "-H", "-p", "small", "--gres=qgpu:30", "--qos=offline", "--wrap=true")
        done = live.run(*words, "--mem=4G", user="alice")
        assert "a node gives at most 25000M to a job; write at most --mem=1039M" in done.stderr
        assert live.run(*words, "--mem=1039M", user="alice").returncode == 0
        job = held(live, "-p", "small", "--mem=1G")
        refused = live.run("scontrol", "update", f"JobId={job}", "MinMemoryNode=4096", user="alice")
        assert refused.returncode != 0
        assert host(live, job) == f"{1024 + CAP}M per node"
    finally:
        live.empty()
        live.ask("scontrol", "delete", "PartitionName=small")


def test_qgpu_plan_and_doctor_know_it(live: Live) -> None:
    said = live.ask("qgpu", "plan", "--gres=qgpu:30", "--qos=offline", "--json")
    found = json.loads(said)
    assert found["reclaimable"] and found["shards"] == 1
    assert found["host_memory"] == {"per": "cpu", "own": CPU, "mib": CPU + CAP}
    checks = json.loads(live.run("qgpu", "doctor", "--json").stdout)
    states = {row["name"]: (row["status"], row["text"]) for row in checks}
    assert states["tables"][0] == "ok", states["tables"]
    if live.dialect.before("23.11"):
        assert states["host memory"] == ("ok", f"counted by Slurm; without --mem {CPU} MiB per CPU")
    else:
        assert "on the first card" in states["host memory"][1]


def test_spread_gives_reclaimable_jobs_a_card_each(live: Live) -> None:
    """By binpack all are on the first card, as each takes one shard."""
    node = live.nodes[0]

    def cards() -> list[int]:
        jobs = [running(live, "offline", "qgpu:20", "--mem=100M", "-w", node) for _ in range(4)]
        found = [live.place(job)[1] for job in jobs]
        live.empty()
        return found

    assert cards() == [0, 0, 0, 0]
    if not live.dialect.before("23.11"):
        with site(live, spread):
            assert cards() == [0, 1, 0, 1]


def test_a_job_on_several_cards_gets_host_memory_for_each(live: Live) -> None:
    if live.dialect.before("24.05"):
        pytest.skip("needs Slurm 24.05 or later")
    with site(live, lambda text: text.replace("multi_card: false", "multi_card: true")):
        job = running(live, "offline", "qgpu:30", "--qgpu-cards=2", "--mem=1G")
        assert (host(live, job), added(live, job)) == (f"{1024 + 2 * CAP}M per node", f"{2 * CAP}")
        grant = live.grant(job)
        assert (grant.reclaimable, len(grant.cards)) == (True, 2)
        assert live.tres(job)["gres/shard"] == "2"
