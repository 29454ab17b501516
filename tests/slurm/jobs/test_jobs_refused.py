"""Requests that cannot be: refused by sbatch, srun and salloc with one sentence that names a way
out.
"""

from __future__ import annotations

import re
import shlex

import pytest
from jobs_support import CASES, Live, sentence_of, together

CLIENTS = {
    "sbatch": lambda args: ["sbatch", *args, "--wrap", "true"],
    "srun": lambda args: ["srun", *args, "true"],
    "salloc": lambda args: ["salloc", *args, "true"],
}
# Options that a sentence recommends, up to the punctuation behind them.
OPTION = re.compile(r"--[a-z-]+(?:=[^\s;]*[^\s;,.])?")


def recommended(sentence: str) -> list[list[str]]:
    """Each request that a sentence recommends: `--gres=...` and the options right behind it."""
    _, _, advice = sentence.partition("write ")
    advice = (
        advice or sentence.partition("leave it out, ")[2] or sentence.partition("for example ")[2]
    )
    starts = [match.start() for match in re.finditer("--gres=", advice)]
    requests = []
    for start, end in zip(starts, [*starts[1:], len(advice)], strict=True):
        found = re.match(rf"{OPTION.pattern}(?: {OPTION.pattern})*", advice[start:end])
        assert found, advice
        requests.append(found[0].split())
    return requests


def refusals(live: Live, args: str) -> dict[str, tuple[int, str]]:
    """Exit status and stderr of each client."""
    words = shlex.split(args)
    calls = [
        lambda c=command: live.run(*c(words), user="alice", timeout=60)
        for command in CLIENTS.values()
    ]
    done = together(calls)
    return {
        name: (result.returncode, result.stderr) for name, result in zip(CLIENTS, done, strict=True)
    }


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["args"])
def test_it_is_refused_with_a_sentence_and_the_advice_is_good(
    live: Live, case: dict[str, str]
) -> None:
    if live.dialect.before(case.get("from", "")) or not live.dialect.before(
        case.get("before", "99")
    ):
        pytest.skip("not for this version")
    said = refusals(live, case["args"])
    assert all(code != 0 for code, _ in said.values()), said
    if "slurm_says" in case and not live.dialect.before(case["since"]):
        assert all(case["slurm_says"] in stderr for _, stderr in said.values()), said
        return
    sentences = {name: sentence_of(stderr) for name, (_, stderr) in said.items()}
    assert len(set(sentences.values())) == 1, sentences
    sentence = sentences["sbatch"]
    assert sentence.startswith(case["token"] + " "), sentence
    assert case["says"] in sentence
    advice = recommended(sentence)
    assert advice, sentence
    tried = together(
        [
            lambda w=w: live.run("sbatch", "--test-only", *w, "--wrap=true", user="alice")
            for w in advice
        ]
    )
    for words, result in zip(advice, tried, strict=True):
        assert result.returncode == 0, f"{words}: {result.stderr}"
        assert " to start at " in result.stderr


@pytest.mark.parametrize("args", CASES["refused_by_slurm"])
def test_slurm_itself_refuses(live: Live, args: str) -> None:
    for name, (code, stderr) in refusals(live, args).items():
        assert code != 0, name
        assert f"{name}: error: " in stderr


def test_nothing_of_a_refused_job_remains(live: Live) -> None:
    before = live.ask("sbatch", "-H", "--parsable", "--wrap=true", user="alice")
    assert live.run("sbatch", "--gres=qgpu:130", "--wrap=true", user="alice").returncode == 1
    after = live.ask("sbatch", "-H", "--parsable", "--wrap=true", user="alice")
    assert int(after) == int(before) + 1
    assert live.ask("squeue", "-h", "-o", "%i").split() == [after, before]


@pytest.mark.parametrize("way", ["#SBATCH", "SBATCH_GRES", "SLURM_GRES", "SALLOC_GRES", "--array"])
def test_other_ways_to_say_it_are_refused_too(live: Live, way: str) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=qgpu:130\ntrue\n"
    calls = {
        "#SBATCH": lambda: live.run("sbatch", user="alice", input=script),
        "SBATCH_GRES": lambda: live.run(
            "env", "SBATCH_GRES=qgpu:130", "sbatch", "--wrap=true", user="alice"
        ),
        "SLURM_GRES": lambda: live.run("env", "SLURM_GRES=qgpu:130", "srun", "true", user="alice"),
        "SALLOC_GRES": lambda: live.run(
            "env", "SALLOC_GRES=qgpu:130", "salloc", "true", user="alice"
        ),
        "--array": lambda: live.run(
            "sbatch", "--array=1-3", "--gres=qgpu:130", "--wrap=true", user="alice"
        ),
    }
    done = calls[way]()
    assert done.returncode != 0
    assert sentence_of(done.stderr).startswith("qgpu:130 is refused: ")


def test_bytes_of_a_user_do_not_reach_the_terminal(live: Live) -> None:
    done = live.run("sbatch", "--gres=qgpu:\x1b[31m%s%n", "--wrap=true", user="alice")
    assert done.returncode != 0
    assert "\x1b" not in done.stderr
    assert sentence_of(done.stderr).startswith("qgpu:?[31m%s%n is refused: ")


def test_a_text_that_leaves_no_room_is_refused(live: Live) -> None:
    option, text = live.dialect.option, "x" * 1000
    done = live.run("sbatch", "--gres=qgpu:30", f"{option}={text}", "--wrap=true", user="alice")
    assert done.returncode != 0
    assert "1000 bytes" in sentence_of(done.stderr)
    assert f"{option}=test" in sentence_of(done.stderr)


def test_an_admin_cannot_give_a_waiting_share_the_node(live: Live) -> None:
    job = live.submit("true", "-H", "--gres=qgpu:1", "--qos=offline")
    done = live.run("scontrol", "update", f"JobId={job}", "OverSubscribe=NO")
    assert done.returncode != 0, done.stdout
    said = "--exclusive is refused together with qgpu:1"
    assert not live.dialect.user_told or said in done.stderr
    live.ask("scontrol", "release", str(job))
    live.wait_gone(job)
    live.wait_sacct(job)
    assert "gres/shard=1" in ",".join(live.sacct(job, "alloctres"))
