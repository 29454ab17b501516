"""Other sites than the sandbox's own: what online reserves, models that differ, partitions that
are not managed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs_support import Live, sentence_of

from cli.sandbox import files, services
from gres.config.site import ConfigError, parse_config

NAP = "exec sleep 600"
# how such an entry of a node begins with mps in its place
MPS = {"Name=": "Name=mps", "shard": "mps:"}


def _as_rendered(_: Path) -> None:
    return


@contextmanager
def site(
    live: Live, edit: Callable[[str], str], after: Callable[[Path], None] = _as_rendered
) -> Iterator[None]:
    """The sandbox with another qgpu.yaml, all daemons that read it started anew; `after` may
    change the rendered files of that directory first.
    """
    sandbox = live.sandbox
    path = sandbox.layout.qgpu_yaml
    before = path.read_text()

    def use(text: str, further: Callable[[Path], None] = _as_rendered) -> None:
        path.write_text(text)
        files.write_slurm(sandbox.layout, sandbox.plan)
        further(sandbox.layout.etc)
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
        use(changed, after)
        yield
    finally:
        live.empty()
        use(before)


def running(live: Live, qos: str, gres: str, *options: str) -> int:
    """A job that sleeps, once it has its grant."""
    job = live.submit(NAP, f"--qos={qos}", f"--gres={gres}", *options)
    live.until(
        lambda: live.state(job) == "RUNNING" and job in live.grants(), 20, f"the start of job {job}"
    )
    return job


# Jobs in the order of their submission to one node of two cards, and the card of each (None: it
# waits).
TABLE = [
    ("online", "qgpu:60,vram:8G"),
    ("online", "qgpu:60,vram:8G"),
    ("offline", "qgpu:60,vram:8G"),
    ("online", "qgpu:100,vram:20G"),
    ("online", "qgpu:10,vram:60G"),
]
BOTH = [0, 1, 0, None, None]  # online reserves compute and memory
MEMORY = [0, 0, 0, 0, 1]  # memory only


def placed(live: Live) -> list[int | None]:
    """The cards that the jobs of TABLE get."""
    found: list[int | None] = []
    for qos, gres in TABLE:
        job = live.submit(NAP, f"--qos={qos}", f"--gres={gres}", "-w", live.nodes[0])
        live.until(
            lambda job=job: job in live.grants() or live.reason(job) == "Resources",
            20,
            f"job {job}",
        )
        found.append(live.place(job)[1] if job in live.grants() else None)
        if found[-1] is None:
            live.cancel(job)
            live.wait_gone(job)
    return found


def test_what_online_reserves_decides_which_jobs_share_a_card(live: Live) -> None:
    assert placed(live) == BOTH
    live.empty()
    with site(
        live, lambda text: text + "classes: {online: {reserves: [memory], overcommit: 400}}\n"
    ):
        assert placed(live) == MEMORY


def spread(text: str) -> str:
    return text.replace("placement: binpack", "placement: spread")


def test_shares_are_packed_or_spread_as_qgpu_yaml_says(live: Live) -> None:
    def cards(memory: str) -> list[int]:
        jobs = [
            running(live, "offline", f"qgpu:10,vram:{memory}", "-w", live.nodes[0])
            for _ in range(4)
        ]
        return [live.place(job)[1] for job in jobs]

    assert cards("30G") == [0, 0, 1, 1]  # two fit on a card
    live.empty()
    if live.dialect.before("23.11"):
        with pytest.raises(ConfigError, match=r"placement spread needs Slurm 23\.11"):
            parse_config(spread(live.sandbox.layout.qgpu_yaml.read_text()))
        return
    with site(live, spread):
        assert "LL_SHARED_GRES" in live.ask("scontrol", "show", "config")
        assert cards("30G") == [0, 1, 0, 1]
        live.empty()
        held = running(live, "offline", "qgpu:10,vram:40G", "-w", live.nodes[0])
        free = 1 - live.place(held)[1]
        assert cards("8G") == [free] * 4, "the card with the most left"


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
        assert live.grant(untyped).cards[0].mem_cap == 11673 << 20  # 30 % of the smallest card
        large = running(live, "offline", "qgpu:h200:10,vram:50G")
        assert live.place(large)[0] == big
        done = live.run("sbatch", "--gres=qgpu:10,vram:50G", "--wrap=true", user="alice")
        assert "--gres=qgpu:h200:10,vram:50G" in sentence_of(done.stderr)
        done = live.run("sbatch", "--gres=qgpu:half:10,vram:50G", "--wrap=true", user="alice")
        assert "one card has 38912M to share" in sentence_of(done.stderr)


def one_partition(text: str) -> str:
    """Other partitions than gpu are not managed."""
    return text.replace('managed_partitions: ["*"]', "managed_partitions: [gpu]")


def test_a_part_of_a_card_without_a_valid_tag_is_refused_on_the_node_and_nothing_drains(
    live: Live,
) -> None:
    with site(live, one_partition):
        live.ask(
            "scontrol",
            "create",
            "PartitionName=free",
            f"Nodes={','.join(live.nodes)}",
            "MaxTime=10",
        )
        tag = "qgpu/1 class=online share=100 mem=79872"
        jobs = [
            live.submit("echo PAYLOAD", "-p", "free", *words)
            for words in (
                ["--gres=shard:30"],
                ["--gres=shard:30", f"--comment={tag}"],
                ["--gres=shard:30", f"{live.dialect.option}=  {tag}"],
            )
        ]
        for text in live.finish(*jobs):
            assert "PAYLOAD" not in text and "without a grant" in text
        # Whole cards are Slurm's own: with nobody else's share on them they need no tag
        # (docs/adr/0024).
        whole = live.submit("echo PAYLOAD", "-p", "free", "--gres=gpu:1")
        assert live.finish(whole) == ["PAYLOAD\n"]
        assert live.drained() == ""
        assert not set(jobs) & {
            job for job, grant in live.grants().items() if grant.state != "refused"
        }
        live.ask("scontrol", "delete", "PartitionName=free")


def test_mps_on_a_node_makes_no_ungoverned_tenant(live: Live) -> None:
    """The second node has Slurm's mps where the first has shards. What asks for it is refused,
    by job_submit in managed partitions and by the node in others.
    """
    first, second = live.nodes

    def with_mps(etc: Path) -> None:
        for name in ("slurm.conf", "slurm-qgpu.conf", "gres.conf"):
            lines = (etc / name).read_text().splitlines()
            changed = [
                re.sub(r"Name=shard Type=\S+|shard:\w+:", lambda found: MPS[found[0][:5]], line)
                if line.startswith(f"NodeName={second} ")
                else line.replace("GresTypes=gpu,", "GresTypes=gpu,mps,")
                for line in lines
            ]
            (etc / name).write_text("\n".join(changed) + "\n")

    with site(live, one_partition, with_mps):
        for client in (["sbatch", "--wrap=true"], ["srun", "true"], ["salloc", "true"]):
            done = live.run(client[0], "--gres=mps:30", *client[1:], user="alice")
            assert done.returncode != 0
            assert sentence_of(done.stderr).startswith("mps:30 is refused: "), done.stderr
        live.ask("scontrol", "create", "PartitionName=free", f"Nodes={second}", "MaxTime=10")
        jobs = [
            live.submit("echo PAYLOAD", "-p", "free", "--gres=mps:30", *words)
            for words in ([], ["--comment=qgpu/1 whole"], [f"{live.dialect.option}=qgpu/1 whole"])
        ]
        for text in live.finish(*jobs):
            assert "PAYLOAD" not in text and "without a grant" in text
        assert live.drained() == ""
        assert live.place(running(live, "online", "qgpu:30"))[0] == first
        live.ask("scontrol", "delete", "PartitionName=free")
