"""Two ranks of PyTorch on two simulated cards, through NCCL."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_support import CAP_MIB, OFFLINE, Program, answering

from bench.harness.node import Rig, wait_for

Start = Callable[..., Program]
# Four layers of 1024 x 1024 float32: parameters, gradients and two states of AdamW.
MODEL_MIB = 4 * 4 * 4
# Workspaces of cuBLAS and buckets of NCCL.
CACHE_MIB = 96


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A node with two cards and a job that has both; an option of the cards by parameter."""
    answering()
    options = [request.param] if getattr(request, "param", None) else []
    with Rig(tmp_path, cards=2, sim_options=options) as running:
        running.grant(OFFLINE, "offline", mem_mib=CAP_MIB, card=(0, 1))
        yield running


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.mark.parametrize("rig", ["", "--peers"], indirect=True, ids=["host", "peers"])
@pytest.mark.parametrize("torch", ["torch-cuda13", "torch-cuda12"])
@pytest.mark.parametrize("job", [None, OFFLINE], ids=["alone", "shim"])
def test_two_ranks_train(program: Start, rig: Rig, torch: str, job: int | None) -> None:
    """Each rank is a task of the job. Their data goes through the host's memory, or, with peers,
    through memory that each exports and the other maps.
    """
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [program(torch, "ranks", job, RANK=str(rank), **group) for rank in range(2)]
    for rank in ranks:
        rank.send("train 5")
    first, second = (rank.answer() for rank in ranks)
    assert first["card"] == 0 and second["card"] == 1
    assert first["model"] == second["model"] == MODEL_MIB
    assert all(MODEL_MIB <= rank["held"] < 2 * MODEL_MIB + CACHE_MIB for rank in (first, second))
    tenants = [one for one in rig.link.stats() if one.job_id == job]
    assert len(tenants) == (2 if job else 0) and all(one.launches > 20 for one in tenants)
    for rank in ranks:
        rank.end()
    wait_for("all of it is free", lambda: not any(t.mem_used for t in rig.link.stats()))
