"""--vram and --qgpu-cards in sbatch, salloc and srun: they end in the native request."""

from __future__ import annotations

import pytest
from jobs_support import Live, sentence_of

ENTRY = ("sbatch", "salloc", "srun")
SAY = "grep -c . /proc/self/status >/dev/null; echo $SLURM_JOB_ID"


def _submit(live: Live, client: str, *options: str, user: str = "alice") -> int:
    """A short job through one of the clients; its number."""
    if client == "sbatch":
        return live.submit("true", *options, user=user)
    command = {
        "salloc": ["salloc", *options, "sh", "-c", SAY],
        "srun": ["srun", *options, "sh", "-c", SAY],
    }[client]
    return int(live.ask(*command, user=user).split()[-1])


def _gres(live: Live, job: int) -> set[str]:
    """Requested TRES of qgpu in the accounts."""
    live.wait_sacct(job)
    (tres,) = live.sacct(job, "alloctres")
    return {item for item in tres.split(",") if "gres/" in item}


@pytest.mark.parametrize("client", ENTRY)
def test_memory_is_the_native_request(live: Live, client: str) -> None:
    option, native = (
        _submit(live, client, *words)
        for words in (("--gres=qgpu:30", "--vram=12G"), ("--gres=qgpu:30,vram:12G",))
    )
    assert _gres(live, option) == _gres(live, native)
    assert any(item.startswith("gres/vram=12") for item in _gres(live, option))


def test_memory_in_an_sbatch_line(live: Live) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=qgpu:30 --vram=8G -o /dev/null\ntrue\n"
    done = live.sandbox.run(["sbatch", "--parsable"], user="alice", input=script)
    assert any(item.startswith("gres/vram=8") for item in _gres(live, int(done.stdout)))


@pytest.mark.parametrize("client", ENTRY)
@pytest.mark.parametrize("value", ["12", "12X", "lots", "1.5G", ""])
def test_a_bad_size_is_refused_by_the_client(live: Live, client: str, value: str) -> None:
    done = live.run(
        client,
        "--gres=qgpu:30",
        f"--vram={value}",
        *(["--wrap"] if client == "sbatch" else []),
        "true",
        user="alice",
    )
    assert done.returncode != 0
    assert f"qgpu: --vram={value} is refused: write a whole number with M, G or T" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--vram=12G",), "vram:12G is refused"),
        (("--gres=qgpu:30,vram:4G", "--vram=12G"), "vram is asked for twice"),
        (("--gres=qgpu:30", "--vram=900G"), "one card has"),
        (("--gres=gpu:1", "--vram=12G"), "vram:12G is refused"),
    ],
)
def test_contradictions_get_the_sentence_of_the_native_request(
    live: Live, words: tuple[str, ...], sentence: str
) -> None:
    done = live.run("sbatch", *words, "--wrap", "true", user="alice")
    assert done.returncode != 0
    assert sentence in sentence_of(done.stderr), done.stderr


@pytest.mark.parametrize("client", ENTRY)
def test_help_names_the_options(live: Live, client: str) -> None:
    text = live.run(client, "--help", user="alice").stdout
    for option in ("--vram=SIZE", "--qgpu-cards=K"):
        (line,) = (line for line in text.splitlines() if option in line)
        assert (
            "[qgpu]"
            in text[text.index(option) :].split("--", 2)[0] + text[text.index(option) :][:120]
        ), line


def test_the_option_ends_with_its_job(live: Live) -> None:
    """A job that is submitted from inside one with --vram has not that memory, and is no question
    of `qgpu plan` where the outer one had its variable.
    """
    home = live.sandbox.layout.home("alice")
    inner = (
        f"sbatch --parsable -o /dev/null --gres=qgpu:10 --wrap true > {home}/inner.id; srun "
        "-n1 true && echo end"
    )
    (text,) = live.finish(
        live.submit(f"{inner}; env | grep -i spank", "--gres=qgpu:30", "--vram=12G")
    )
    assert text.strip() == "end"
    job = ("sbatch", "--wait", "--gres=qgpu:10", "-o", f"{home}/planned", "--wrap", "env")
    live.ask("env", "QGPU_PLAN=1", *job, user="alice")
    assert "SLURM_SPANK" not in (home / "planned").read_text()
    tres = _gres(live, int((home / "inner.id").read_text()))
    assert not any(item.startswith("gres/vram=12") for item in tres), tres


def test_a_whole_card_that_is_asked_for_inside_a_share(live: Live) -> None:
    """The outer job's SLURM_SHARDS_ON_NODE is in the environment that the inner one gets."""
    home = live.sandbox.layout.home("alice")
    inner = (
        f"sbatch --parsable -o {home}/inner.out --gres=gpu:1 --wrap 'echo got "
        f"${{SLURM_SHARDS_ON_NODE-none}}'"
    )
    live.finish(
        live.submit(f"echo $SLURM_SHARDS_ON_NODE; {inner} > {home}/inner.id", "--gres=qgpu:30")
    )
    live.wait_gone(int((home / "inner.id").read_text()))
    assert (home / "inner.out").read_text().startswith("got"), (home / "inner.out").read_text()
