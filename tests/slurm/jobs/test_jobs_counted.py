"""What the tools that sites run make of Slurm's words for shares: the numbers of docs/tools.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpu_counts import BY_TRES, by_entry, ondemand, ood_core
from jobs_support import Live


class Words(NamedTuple):
    """What clients print: of a share and of a whole card, and of their node of two cards."""

    share: str
    share_tres: str
    whole: str
    whole_tres: str
    total: str
    used: str


def words(live: Live) -> Words:
    node = live.nodes[0]
    jobs = [
        live.submit("exec sleep 600", "--qos=online", f"--gres={gres}", "-w", node)
        for gres in ("qgpu:30", "gpu:1")
    ]
    found = []
    for job in jobs:
        live.wait_state(job, "RUNNING")
        live.wait_sacct(job, "RUNNING")
        found += [live.ask("squeue", "-h", "-j", str(job), "-O", "tres-per-node:200")]
        found += live.sacct(job, "alloctres")
    return Words(*found, *live.ask("sinfo", "-hNn", node, "-O", "gres:200,gresused:300").split())


def test_a_share_is_no_gpu_to_tools_that_count_gpus(live: Live) -> None:
    found, whole = words(live), 0 if live.dialect.lone_whole else 1
    for name, count in BY_TRES.items():
        assert (name, count(found.share_tres), count(found.whole_tres)) == (name, 0, whole)
    counts = [by_entry(text) for text in (found.share, found.whole, found.total, found.used)]
    assert counts == [0, whole, 2, whole]


def test_open_ondemand_counts_cards_with_the_initializer(live: Live, tmp_path: Path) -> None:
    found = words(live)
    assert (ood_core(found.share), ood_core(found.total)) == (30, 1002)  # without it
    assert ondemand(list(found), tmp_path) == [1, 1, 1, 1, 2, 2]
