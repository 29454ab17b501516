"""The memory cap of a job: over all its steps, with one clear sentence, without harm to others."""

from __future__ import annotations

import re

from jobs_support import Live, work


def refusals(text: str) -> list[str]:
    """qgpu's own lines in what a job wrote."""
    return [line for line in text.splitlines() if line.startswith("qgpu: ")]


def test_over_the_cap_only_that_program_fails(live: Live) -> None:
    past = work("--alloc-past", "6G", "--requests", "3")
    hold = work("--memory", "5G", "--requests", "1")
    fits = work("--memory", "3G", "--requests", "3")
    script = f"{past}; echo past=$?; {hold}; echo hold=$?; {fits}; echo fits=$?"
    job = live.submit(script, "--gres=qgpu:30,vram:4G")
    (text,) = live.finish(job)
    assert re.findall(r"^(\w+=\d)$", text, re.MULTILINE) == ["past=0", "hold=4", "fits=0"]
    first, second = refusals(text)
    ask = "Ask for more with vram (for example --gres=qgpu:30,vram:{}) or use less."
    assert re.fullmatch(
        rf"qgpu: allocation of \S+ MiB refused: job {job} holds 4.0 of 4.0 GiB on this card\. "
        + re.escape(ask.format("5G")),
        first,
    )
    # With the 300 MiB of the context, and of the one before until qgpud saw it leave the card.
    assert re.fullmatch(
        rf"qgpu: allocation of 5.0 GiB refused: job {job} holds 0\.[36] of 4.0 GiB on this card\. "
        + re.escape(ask.format("?G")).replace(r"\?", "[67]"),
        second,
    )


CONCURRENT = """
srun -n1 --overlap --gres=qgpu:10 {first} &
until [ -s first.log ]; do sleep 0.05; done
srun -n1 --overlap --gres=qgpu:10 {second}
echo second=$?
kill %1; wait
"""


def test_concurrent_steps_share_the_cap(live: Live) -> None:
    (live.sandbox.layout.home("alice") / "first.log").unlink(missing_ok=True)
    first = work("--memory", "3G", "--log", "first.log", "--length", "600")
    second = work("--memory", "2G", "--requests", "1")
    options = ("-n2", "--gres=qgpu:30,vram:4G")
    job = live.submit(CONCURRENT.format(first=first, second=second), *options)
    (text,) = live.finish(job)
    assert "second=4" in text
    # The 300 MiB of each context count from its beginning.
    assert any(
        re.search(rf"job {job} holds 3\.[36] of 4\.0 GiB", line) for line in refusals(text)
    ), text


def test_the_neighbour_on_the_card_goes_on(live: Live) -> None:
    node = ("-w", live.nodes[0])
    neighbour = live.submit(
        work("--memory", "3G", "--length", "2"), "--gres=qgpu:30,vram:4G", *node
    )
    live.wait_state(neighbour, "RUNNING")
    greedy = live.submit(
        work("--alloc-past", "6G", "--requests", "1"), "--gres=qgpu:30,vram:4G", *node
    )
    text, said = live.finish(neighbour, greedy)
    assert live.job(neighbour)["JobState"] == "COMPLETED"
    assert refusals(text) == []
    assert len(refusals(said)) == 1


def test_who_follows_the_advice_runs(live: Live) -> None:
    """One that held more than a smaller share comes with, and one whose allocation was refused."""
    shares = ("--gres=qgpu:40", "--gres=qgpu:10,vram:4G")
    scripts = (
        work("--memory", "20GiB", "--period", "0.1", "--duty", "5", "--length", "12"),
        work("--memory", "29GiB", "--requests", "3"),
    )
    jobs = [
        live.submit(script, "--qos=online", share)
        for script, share in zip(scripts, shares, strict=True)
    ]
    _, error = live.finish(*jobs)
    for job in jobs:
        live.wait_sacct(job)
    found = live.report(*jobs)
    advised = [" ".join(found[job]["advice"]) for job in jobs]
    asked = [re.findall(r"(--gres=\S+) (?:would do|or more)", text) for text in advised]
    assert all(len(one) == 1 for one in asked), advised
    assert re.fullmatch(r"--gres=qgpu:\d+,vram:23G", asked[0][0]), advised
    # The program itself was told the same.
    assert asked[1] == ["--gres=qgpu:10,vram:33G"] and asked[1][0] in error
    again = [
        live.submit(script, "--qos=online", *one)
        for script, one in zip(scripts, asked, strict=True)
    ]
    live.finish(*again)
    for job in again:
        (grant,) = live.report(job)[job]["grants"]
        assert (grant["denied"], grant["launches"] > 0) == (0, True)
