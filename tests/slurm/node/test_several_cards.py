"""Equal parts of several cards in one job, and that a job with a part of one card is never
split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from jobs_support import Live, sentence_of, work

from cli.sandbox import files, plan, services
from cli.sandbox.services import slurm_version

NEW = (
    tuple(int(part) for part in slurm_version().split(".")[:2]) >= (24, 5)
    if slurm_version()
    else False
)


def _set(live: Live, text: str) -> None:
    """Another qgpu.yaml, rendered and read by all daemons of Slurm."""
    layout = live.sandbox.layout
    layout.qgpu_yaml.write_text(text)
    found = plan.load(layout)
    assert found is not None
    files.write_slurm(layout, found)
    for node in live.nodes:
        live.sandbox.kill(node, "slurmd")
    live.sandbox.restart_controller()
    for node in live.nodes:
        live.sandbox.start(node, "slurmd")
    services.await_registration(live.sandbox._cluster())
    wanted = "multi_card: true" in text
    live.until(
        lambda: ("MULTIPLE_SHARING_GRES_PJ" in live.ask("scontrol", "show", "config")) == wanted,
        20,
        "the new configuration",
    )
    live.until(lambda: live.ask("sinfo", "-h", "-o", "%t") == "idle", 20, "idle nodes")


@pytest.fixture
def several(live: Live) -> Iterator[Live]:
    """A cluster with slurm.multi_card."""
    if not NEW:
        pytest.skip("needs Slurm 24.05 or later")
    text = live.sandbox.layout.qgpu_yaml.read_text()
    assert "multi_card: false" in text
    _set(live, text.replace("multi_card: false", "multi_card: true"))
    yield live
    live.empty()
    _set(live, text)


def _on(live: Live, job: int) -> dict[int, int]:
    """Card -> share, of a job's grant."""
    return {card.index: card.share for card in live.grant(job).cards}


def test_two_cards_in_equal_parts(several: Live) -> None:
    script = 'echo cards $CUDA_VISIBLE_DEVICES; srun -n2 sh -c "echo task $SLURM_NTASKS"; sleep 600'
    bound = ("--qgpu-cards=2", "--gres-flags=enforce-binding")
    job = several.submit(script, "--qos=online", "--gres=qgpu:30,vram:4G", *bound)
    several.wait_state(job, "RUNNING")
    assert " NumCPUs=2 " in several.ask("scontrol", "show", "job", str(job)), "one for each task"
    several.until(lambda: several.output(job).count("task") == 2, 20, "its step")
    assert _on(several, job) == {0: 30, 1: 30}
    assert {card.mem_cap for card in several.grant(job).cards} == {4 << 30}
    assert several.output(job).splitlines()[0] == "cards 0,1"
    several.cancel(job)
    several.wait_sacct(job)
    (tres,) = several.sacct(job, "alloctres")
    assert {"gres/qgpu=60", "gres/shard=60"} <= set(tres.split(","))


def test_a_text_of_its_owner_brings_no_card_more(several: Live) -> None:
    """The tag is written anew behind each text: with what one card of the job has, not with the
    sum.
    """
    job = several.submit(
        "sleep 600", "-H", "--qos=online", "--gres=qgpu:30,vram:4G", "--qgpu-cards=2"
    )
    field, tag = several.dialect.field, several.tag(job)
    assert tag == "qgpu/1 class=online share=30 mem=4096 cards=2"
    several.ask("scontrol", "update", f"JobId={job}", f"{field}=mine", user="alice")
    assert several.tag(job) == f"{tag}; mine"
    done = several.run("scontrol", "update", f"JobId={job}", "QOS=offline", user="alice")
    assert "neither gres, class nor partition of a share can be changed" in sentence_of(done.stderr)
    several.ask("scontrol", "release", str(job))
    several.wait_state(job, "RUNNING")
    assert _on(several, job) == {0: 30, 1: 30}


WHICH = (
    "import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); d = ctypes.c_int();"
    " c.cuDeviceGet(ctypes.byref(d), 0); u = (ctypes.c_char * 16)();"
    " c.cuDeviceGetUuid(u, d); print('card', bytes(u).hex())"
)


def _cards(output: str) -> list[str]:
    """What WHICH printed in each task."""
    return [line for line in output.splitlines() if line.startswith("card ")]


def test_the_native_spelling_is_the_same_and_each_task_has_a_card_of_its_own(several: Live) -> None:
    script = f'echo "env $SLURM_TRES_PER_TASK"; srun -Q python3 -c "{WHICH}"; sleep 600'
    words = ("-N1", "-n2", "--qos=online", "--tres-per-task=gres/qgpu:30,gres/vram:4G")
    job = several.submit(script, *words)
    several.until(lambda: several.output(job).count("card") == 2, 20, "its step")
    assert _on(several, job) == {0: 30, 1: 30}
    first, *cards = several.output(job).splitlines()
    assert first == "env gres/shard:30" and len(set(cards)) == 2, cards
    assert several.tag(job) == "qgpu/1 class=online share=30 mem=4096 cards=2"
    several.cancel(job)
    given = several.run("salloc", *words, "srun", "python3", "-c", WHICH, user="alice")
    assert len(set(_cards(given.stdout))) == 2, given.stderr
    few = several.run("sbatch", "--gres=qgpu:30", "--qgpu-cards=3", "--wrap=true", user="alice")
    assert "no node has more than 2 such card(s)" in sentence_of(few.stderr)


def test_a_part_of_one_card_is_never_split(several: Live) -> None:
    """Both cards have 40 % left, together 80: what needs 60 waits."""
    jobs = [
        several.submit("sleep 600", "--qos=online", "-w", several.nodes[0], "--gres=qgpu:60")
        for _ in "ab"
    ]
    for job in jobs:
        several.wait_state(job, "RUNNING")
    small = several.submit("sleep 600", "--qos=online", "-w", several.nodes[0], "--gres=qgpu:40")
    several.wait_state(small, "RUNNING")
    several.cancel(small)
    late = several.submit("sleep 600", "--qos=online", "-w", several.nodes[0], "--gres=qgpu:60")
    both = several.submit(
        "sleep 600", "--qos=online", "-w", several.nodes[0], "--gres=qgpu:41", "--qgpu-cards=2"
    )
    several.until(
        lambda: several.reason(late) not in ("None", ""), 20, "slurmctld's look at the job"
    )
    assert several.state(late) == several.state(both) == "PENDING"
    assert [len(_on(several, job)) for job in jobs] == [1, 1]
    several.cancel(jobs[0])
    several.wait_state(late, "RUNNING")
    assert len(_on(several, late)) == 1
    assert several.state(both) == "PENDING"
    several.cancel(jobs[1], late)
    several.wait_state(both, "RUNNING")
    assert _on(several, both) == {0: 41, 1: 41}


@pytest.mark.parametrize(
    "words",
    [
        "-n2 --gres=qgpu:20,vram:4G --qgpu-cards=2",
        "--gres=qgpu:20 --qgpu-cards=2",
        "-N1 --ntasks-per-node=2 --gres=qgpu:20 --qgpu-cards=2",
        "-N2 -n4 --gres=qgpu:20 --qgpu-cards=2",
        "-N1 -n2 --tres-per-task=gres/qgpu:20,gres/vram:4G",
    ],
)
def test_srun_alone_on_several_cards_is_refused_with_what_works(several: Live, words: str) -> None:
    alone = several.run("srun", *words.split(), "true", user="alice")
    assert alone.returncode != 0
    found = re.search(r"write sbatch (-N\d -n(\d) \S+) with srun", sentence_of(alone.stderr))
    assert found, alone.stderr
    assert ("vram:4G" in words) == ("vram:4G" in found[1]) and "qgpu:20" in found[1]
    job = several.submit(f'srun -Q python3 -c "{WHICH}"', "--qos=online", *found[1].split())
    several.finish(job)
    cards = _cards(several.output(job))
    assert len(cards) == len(set(cards)) == int(found[2]), cards


@pytest.mark.parametrize(
    "step", ["--gres=qgpu:20", "--gres=qgpu:5", "--tres-per-task=gres/qgpu:20 -n2"]
)
@pytest.mark.parametrize("qos", ["online", "offline"])
def test_each_task_of_a_step_has_a_card_of_its_own(several: Live, step: str, qos: str) -> None:
    script = f'srun -Q {step} python3 -c "{WHICH}"'
    job = several.submit(script, "-n2", f"--qos={qos}", "--gres=qgpu:20,vram:4G", "--qgpu-cards=2")
    several.finish(job)
    cards = _cards(several.output(job))
    assert len(cards) == len(set(cards)) == 2, several.output(job)


def test_more_tasks_than_cards_of_srun_alone_get_a_sentence(several: Live) -> None:
    words = ("-N1", "--ntasks-per-node=2", "--gres=qgpu:40")
    said = sentence_of(several.run("srun", *words, "true", user="alice").stderr)
    assert "qgpu:40 with 2 tasks per node" in said and "write --gres=qgpu:40 " in said


@pytest.mark.parametrize("client", [["srun"], ["salloc", "srun"]], ids=" ".join)
@pytest.mark.parametrize("words", [(), ("-n1",), ("-N2",), ("-N2", "-n2")], ids=" ".join)
def test_the_other_clients_have_a_card_and_use_it(
    several: Live, client: list[str], words: tuple[str, ...]
) -> None:
    """srun alone is job and step in one; each task asks the driver for its card."""
    first, *rest = client
    done = several.run(first, *words, "--gres=qgpu:20", *rest, "python3", "-c", WHICH, user="alice")
    assert done.returncode == 0, done.stderr
    cards = _cards(done.stdout)
    assert len(cards) == len(set(cards)) == (2 if "-N2" in words else 1), done.stdout
    assert not any(set(card[5:]) == {"0"} for card in cards), done.stdout


def test_srun_alone_on_a_model(several: Live) -> None:
    done = several.run(
        "srun", "--gres=qgpu:h200:20,vram:4G", *work("--requests", "2").split(), user="alice"
    )
    assert done.returncode == 0, done.stderr
    assert "2 requests" in done.stdout


def test_more_tasks_than_cards_get_a_sentence(several: Live) -> None:
    done = several.run("sbatch", "-n4", "--gres=qgpu:30", "--wrap", "true", user="alice")
    assert done.returncode != 0
    assert "on this cluster a share goes with one task for each card" in sentence_of(done.stderr)


def test_without_the_setting_several_cards_get_a_sentence(live: Live) -> None:
    done = live.run("sbatch", "--gres=qgpu:30", "--qgpu-cards=2", "--wrap", "true", user="alice")
    assert done.returncode != 0
    assert (
        "qgpu:30 on 2 cards is refused: on this cluster a job has a part of one card"
        in sentence_of(done.stderr)
    )
