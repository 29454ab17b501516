"""The experiments on sharing: their judge, and on the simulator that they find what it models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_gpu_sim import call, rows

from bench.gpu.experiments import sharing
from bench.gpu.place import Place
from bench.gpu.truth import Piece

US = 1000
SWITCH_US = 50  # of the simulated card


def pieces(*spans: tuple[int, int]) -> list[Piece]:
    return [Piece(start * US, end * US) for start, end in spans]


def test_a_turn_is_all_that_one_does_before_the_other_comes() -> None:
    found = sharing.turns(
        pieces((0, 400), (403, 1000), (2100, 3000)), pieces((1050, 2050), (3060, 4000))
    )
    assert found.switches_us == [50, 50, 60] and found.lengths_us == [1000, 1000, 900]
    assert found.both == 0


def test_blocks_of_one_program_are_not_two_that_progress_side_by_side() -> None:
    assert sharing.turns(pieces((0, 100), (20, 120)), pieces((200, 300))).both == 0
    side = sharing.turns(pieces((0, 100)), pieces((50, 100)))
    assert side.both == 0.5 and side.switches_us == [-50]


def test_each_is_under_a_minute_and_all_take_a_few(tmp_path: Path) -> None:
    items = list(sharing.items(Place(False, tmp_path)))
    assert all(item.seconds < 60 for item in items)
    assert sum(item.seconds for item in items) <= 300
    assert all("sharing" in item.name for item in items)
    assert len({item.name for item in items}) == len(items) == 7


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and grants")
@pytest.mark.timeout(600)
def test_the_simulated_card_has_the_costs_that_it_models(tmp_path: Path) -> None:
    """How much is gained is a matter of the machine; `make bench` judges it."""
    done = call(tmp_path, "--part", "experiments", "--only", "sharing", "--budget", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(tmp_path)
    assert {row["state"] for row in found.values()} == {"done", "skipped"}
    values = {f["name"]: f["value"] for row in found.values() for f in row["figures"]}
    assert values["switch_us"] == pytest.approx(SWITCH_US, abs=1) and values["both_progress"] == 0
    assert values["gain_2"] < sharing.TOGETHER
    assert values["offline_launches_auto"] > values["offline_launches_100ms"]
