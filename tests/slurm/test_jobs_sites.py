"""Other sites than the sandbox's own: what online reserves, models that differ, partitions that are not managed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobs_support import Live, sentence_of

from cli.sandbox import files, services

NAP = "exec sleep 100"


@contextmanager
def site(live: Live, edit: Callable[[str], str]) -> Iterator[None]:
    """The sandbox with another qgpu.yaml, all daemons that read it started anew."""
    sandbox = live.sandbox
    path = sandbox.layout.qgpu_yaml
    before = path.read_text()

    def use(text: str) -> None:
        path.write_text(text)
        files.write_slurm(sandbox.layout, sandbox.plan)
        for node in live.nodes:
            for service in ("slurmd", "qgpud"):
                sandbox.kill(node, service)
        sandbox.restart_controller()
        for node in live.nodes:
            for service in ("qgpud", "slurmd"):
                sandbox.start(node, service)
        services.await_nodes(sandbox._cluster())

    changed = edit(before)
    assert changed != before
    try:
        use(changed)
        yield
    finally:
        live.empty()
        use(before)


def running(live: Live, qos: str, gres: str, *options: str) -> int:
    """A job that sleeps, once it has its grant."""
    job = live.submit(NAP, f"--qos={qos}", f"--gres={gres}", *options)
    live.until(lambda: live.state(job) == "RUNNING" and job in live.grants(), 20, f"the start of job {job}")
    return job


# Jobs in the order of their submission to one node of two cards, and the card of each (None: it waits).
TABLE = [("online", "qgpu:60,qgpu_mem:8G"), ("online", "qgpu:60,qgpu_mem:8G"), ("offline", "qgpu:60,qgpu_mem:8G"),
         ("online", "qgpu:100,qgpu_mem:20G"), ("online", "qgpu:10,qgpu_mem:60G")]  # fmt: skip
BOTH = [0, 1, 0, None, None]  # online reserves compute and memory
MEMORY = [0, 0, 0, 0, 1]  # memory only


def placed(live: Live) -> list[int | None]:
    """The cards that the jobs of TABLE get."""
    found: list[int | None] = []
    for qos, gres in TABLE:
        job = live.submit(NAP, f"--qos={qos}", f"--gres={gres}", "-w", live.nodes[0])
        live.until(lambda job=job: job in live.grants() or live.reason(job) == "Resources", 20, f"job {job}")
        found.append(live.place(job)[1] if job in live.grants() else None)
        if found[-1] is None:
            live.cancel(job)
            live.wait_gone(job)
    return found


def test_what_online_reserves_decides_who_shares_a_card(live: Live) -> None:
    assert placed(live) == BOTH
    live.empty()
    with site(live, lambda text: text + "classes: {online: {reserves: [memory], overcommit: 400}}\n"):
        assert placed(live) == MEMORY


@contextmanager
def select_parameter(live: Live, word: str) -> Iterator[None]:
    """One more word in SelectTypeParameters of slurm.conf."""
    path = live.sandbox.layout.slurm_conf
    before = path.read_text()
    changed = re.sub(r"^(SelectTypeParameters=\S+)", rf"\1,{word}", before, flags=re.MULTILINE)
    assert changed != before
    try:
        path.write_text(changed)
        live.sandbox.restart_controller()
        services.await_nodes(live.sandbox._cluster())
        yield
    finally:
        live.empty()
        path.write_text(before)
        live.sandbox.restart_controller()
        services.await_nodes(live.sandbox._cluster())


def test_shares_are_packed_and_spread_where_slurm_is_told_so(live: Live) -> None:
    def cards() -> set[int]:
        jobs = [running(live, "offline", "qgpu:10,qgpu_mem:1G", "-w", live.nodes[0]) for _ in range(2)]
        return {live.place(job)[1] for job in jobs}

    assert cards() == {0}
    live.empty()
    if live.dialect.before("23.11"):
        return  # there is no such word
    with select_parameter(live, "LL_SHARED_GRES"):
        assert cards() == {0, 1}


def mixed(text: str) -> str:
    """The second node's cards are of another model, of half the size."""
    text = re.sub(r"(  h200: .*\n)", r"\1  half: {memory: 40GiB, reserve: 2GiB}\n", text)
    return re.sub(
        r'  - \{names: "([^,"]*),([^"]*)", model: h200, (.*)\n',
        r'  - {names: "\1", model: h200, \3\n  - {names: "\2", model: half, \3\n',
        text,
    )


def test_models_of_two_sizes_in_one_partition(live: Live) -> None:
    with site(live, mixed):
        big, half = live.nodes
        assert live.place(running(live, "online", "qgpu:h200:30"))[0] == big
        assert live.place(running(live, "online", "qgpu:half:30"))[0] == half
        untyped = running(live, "online", "qgpu:30")
        assert live.grants()[untyped].cards[0].mem_cap == 11673 << 20  # 30 % of the smallest card
        large = running(live, "offline", "qgpu:h200:10,qgpu_mem:50G")
        assert live.place(large)[0] == big
        done = live.run("sbatch", "--gres=qgpu:10,qgpu_mem:50G", "--wrap=true", user="alice")
        assert "--gres=qgpu:h200:10,qgpu_mem:50G" in sentence_of(done.stderr)
        done = live.run("sbatch", "--gres=qgpu:half:10,qgpu_mem:50G", "--wrap=true", user="alice")
        assert "one card has 38912M to share" in sentence_of(done.stderr)


def test_a_card_without_a_valid_tag_is_refused_on_the_node_and_nothing_drains(live: Live) -> None:
    def one_partition(text: str) -> str:
        return text.replace('managed_partitions: ["*"]', "managed_partitions: [gpu]")

    with site(live, one_partition):
        live.ask("scontrol", "create", "PartitionName=free", f"Nodes={','.join(live.nodes)}", "MaxTime=10")
        tag = "qgpu/1 class=online share=100 mem=79872"
        jobs = [
            live.submit("echo PAYLOAD", "-p", "free", *words)
            for words in (
                ["--gres=shard:30"],
                ["--gres=gpu:1"],
                ["--gres=shard:30", f"--comment={tag}"],
                ["--gres=shard:30", f"{live.dialect.option}=  {tag}"],
            )
        ]
        for text in live.finish(*jobs):
            assert "PAYLOAD" not in text and "without a grant" in text
        assert live.drained() == ""
        assert not set(jobs) & {job for job, grant in live.grants().items() if grant.state != "refused"}
        live.ask("scontrol", "delete", "PartitionName=free")
