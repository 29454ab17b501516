"""Links= of gres.conf: `qgpu setup --init` counts them on a node, and Slurm places by them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import yaml
from jobs_support import Live, alone
from test_jobs_sites import site

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions

LINKS = ["-1,1,0", "1,-1,4", "0,4,-1"]
NAP = "exec sleep 600"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """A node with three cards, of which the last two are the nearest."""
    shape = SandboxOptions(f"t{os.getpid()}k", nodes=1, cards=3, nvlinks="0-1:1,1-2:4")
    with Sandbox(shape, progress=print) as sandbox:
        yield sandbox


@pytest.fixture
def live(cluster: Sandbox) -> Iterator[Live]:
    yield from alone(Live(cluster))


def links_by_setup(live: Live, gres_conf: str) -> list[str] | None:
    """What `qgpu setup --init` on the node would write, on a site with that gres.conf."""
    etc = live.sandbox.layout.etc / "before"
    etc.mkdir(exist_ok=True)
    (etc / "slurm.conf").write_text(live.sandbox.layout.slurm_conf.read_text())
    (etc / "gres.conf").write_text(gres_conf)
    words = ["qgpu", "setup", "--init", "--dry-run", "--slurm-conf", f"{etc}/slurm.conf"]
    done = live.sandbox.run([*words, "--node", live.nodes[0]])
    group = yaml.safe_load(done.stdout)["nodes"][0]
    assert group["files"] == f"{live.sandbox.node(live.nodes[0]).sim_dir}/dev/qgpusim[0,1,2]"
    found: list[str] | None = group.get("links")
    return found


def without_links(text: str) -> str:
    changed, count = re.subn(r", links: \[[^]]*\]", "", text)
    assert count, text
    return changed


def cards_of_slurmd(live: Live) -> list[str]:
    """What slurmd makes of its gpu lines: `slurmd -G`."""
    words = ["slurmd", "-G", "-N", live.nodes[0], "-f", str(live.sandbox.layout.slurm_conf)]
    done = live.sandbox.run(words)
    said = done.stdout + done.stderr
    assert not re.search(r"error.*(gres|links?\b)", said, re.IGNORECASE), said
    return [line for line in said.splitlines() if "Gres Name=gpu" in line]


def pair(live: Live) -> set[int]:
    """The two whole cards of a job, by their places in the node."""
    job = live.submit(NAP, "--gpus=2", "-w", live.nodes[0])
    live.wait_state(job, "RUNNING")
    found = re.search(
        r"GRES=gpu:h200:2\(IDX:([0-9,-]+)\)", live.ask("scontrol", "-d", "show", "job", str(job))
    )
    live.cancel(job)
    live.empty()
    assert found
    low, _, high = found[1].replace(",", "-").partition("-")
    return {int(low), int(high)}


def test_links_that_setup_saw_are_slurms(live: Live) -> None:
    assert links_by_setup(live, "AutoDetect=nvml\n") == LINKS
    assert links_by_setup(live, "Name=gpu File=/dev/nvidia[0-2]\n") is None
    whole = not live.dialect.before("23.11.5")  # before, a job has one whole card
    cards = cards_of_slurmd(live)  # the sandbox's own, by --nvlinks
    assert [re.findall(r"Links=(\S+)", line) for line in cards] == [[text] for text in LINKS]
    assert not whole or pair(live) == {1, 2}
    # Shares are placed as without them: one fills a card, the next begins another.
    jobs = [live.submit(NAP, "--gres=qgpu:60", "--qos=online") for _ in range(3)]
    for job in jobs:
        live.wait_state(job, "RUNNING")
    assert [live.place(job)[1] for job in jobs] == [0, 1, 2]
    live.cancel(*jobs)
    live.empty()
    with site(live, without_links):
        assert not whole or pair(live) == {0, 1}  # by their order
