"""Long texts in a job of a user's own client: no node is drained, and slurmctld serves others."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from jobs_support import Live

# What slurmd puts into the environment of Prolog and Epilog (22.05 to 26.05), but SPANK's
HANDED_ON = (
    "account", "comment", "extra", "features", "licenses", "partition", "qos", "req_context",
    "reservation", "std_err", "std_in", "std_out", "work_dir",
)  # fmt: skip
TOO_LONG = 200_000  # no string of an environment may have more than 131071 bytes
SPANK = "options of SPANK plugins are refused"


@pytest.fixture
def client(live: Live) -> str:
    """The program, built against this Slurm, where users of the sandbox may run it."""
    place = live.sandbox.layout.opt / "bin/big_client"
    if not place.exists():
        source = Path(__file__).with_name("big_client.c")
        flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
        subprocess.run(["cc", *flags, "-o", str(place), str(source), "-lslurm"], check=True)
    return str(place)


def big(live: Live, client: str, *words: object) -> tuple[str, str]:
    """What the client prints: the job's number or a refusal; and the sentence about it."""
    done = live.run(client, *map(str, words), user="alice", timeout=60)
    return done.stdout.strip(), done.stderr


def answered(live: Live, client: str, *words: object) -> tuple[str, str]:
    """As `big`, once slurmctld answers: Slurm gives up on a message after ten seconds, which 60 MB
    can take where the processors are busy.
    """
    deadline = time.monotonic() + 60
    while "timed out" in (answer := big(live, client, *words))[0] and time.monotonic() < deadline:
        pass
    return answer


def assert_others_work(live: Live) -> None:
    assert not live.drained()
    for node in live.nodes:
        job = live.submit("true", "-w", node, "--gres=qgpu:10", user="bob")
        live.wait_gone(job)
        live.wait_sacct(job, "COMPLETED")
    assert not live.drained()


def test_a_spank_environment_that_no_prolog_can_have_is_refused(live: Live, client: str) -> None:
    for size, count in ((TOO_LONG, 1), (25_000, 100), (1, 300)):
        said, sentence = big(live, client, "spank_job_env", size, "x", count)
        assert said.startswith("refused: ") and SPANK in sentence
    assert_others_work(live)


def test_the_largest_that_is_taken_starts_on_a_node(live: Live, client: str) -> None:
    for size, count in ((65_000, 1), (240, 256)):
        said, _ = big(live, client, "spank_job_env", size, "x", count)
        live.wait_gone(int(said))
        live.wait_sacct(int(said), "COMPLETED")
    assert_others_work(live)


def test_no_other_text_of_the_prolog_is_so_long(live: Live, client: str) -> None:
    held = live.submit("true", "-H")
    for field in HANDED_ON:
        said, _ = big(live, client, field, TOO_LONG, "x")
        if said.isdigit():  # where this Slurm takes it, it does not hand it on
            live.wait_gone(int(said))
        big(live, client, field, TOO_LONG, "x", 1, "", held)
    live.ask("scontrol", "release", str(held), user="alice")
    live.wait_gone(held)
    live.wait_sacct(held, "COMPLETED")
    assert_others_work(live)


def test_a_text_that_slurm_frees_twice_does_not_reach_it(live: Live, client: str) -> None:
    """Slurm 22.05 gives a job `extra` without a copy, and frees it with the request and the job."""
    for more in (("", "ask"), ()):
        said, _ = big(live, client, "extra", 40, "x", 1, *more)
        assert said.isdigit(), said
    live.wait_gone(int(said))
    assert live.sandbox.services()["slurmctld"]
    assert_others_work(live)


@pytest.mark.parametrize("field", ["tres_per_node", "tres_per_task", "qos", "partition"])
def test_a_list_of_millions_of_entries_keeps_nobody_waiting(
    live: Live, client: str, field: str
) -> None:
    """Parsing 60 MB of commas took minutes under slurmctld's locks."""
    held = live.submit("true", "-H")
    for more in ((), (1, "", held)):
        said, sentence = answered(live, client, field, 60_000_000, ",", *more)
        assert said.startswith("refused: ")
        told = not more or live.dialect.user_told
        words = "is refused: it has 60000000 bytes, and Slurm takes at"
        assert not told or words in sentence, (said, sentence)
    job = live.submit("true", "-H", user="bob")
    live.cancel(job, held)
