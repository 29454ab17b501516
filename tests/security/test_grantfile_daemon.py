"""JOBID.json as an enemy would write it: qgpud never takes a grant from a file that it cannot
believe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.fakes import FakeNode

SHARE = "qgpu/1 class=online share=30 mem=12288"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    service = node.service()
    service.start()
    base = {"SLURM_JOB_UID": "1000", "SLURM_JOB_GID": "100", "SLURMD_NODENAME": "n1"}
    for job in ("8", "9"):
        service.prolog(
            base | {"SLURM_JOB_ID": job, "SLURM_JOB_COMMENT": SHARE, "SLURM_JOB_GPUS": "0"}
        )
    return node


def edit(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def second_name(path: Path) -> None:
    os.link(path, path.with_suffix(".other"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


FAULTS: dict[str, Callable[[Path], None]] = {
    "another owner": lambda p: os.chown(p, 65534, 65534),
    "writable by all": lambda p: p.chmod(0o666),
    "readable by all": lambda p: p.chmod(0o644),
    "symbolic link": link,
    "second name": second_name,
    "fifo": fifo,
    "another job": edit(job_id=8),
    "another version": edit(version=2),
    "unknown key": edit(bonus=1),
    "uid as text": edit(uid="0"),
    "uid as bool": edit(uid=True),
    "unknown state": edit(state="golden"),
    "active without cards": edit(cards=[]),
    "cards as text": edit(cards="all"),
    "path with NUL": edit(shim_path="/a\0b"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_grant_that_cannot_be_believed_is_set_aside(node, fault):
    grants = node.directory / "run/grants"
    FAULTS[fault](grants / "9.json")
    again = node.service()
    again.start()
    assert set(again.grants) == {8}, "the neighbour's grant stands"
    assert set(node.arbiter.grants) == {8}
    assert not (grants / "9.json").exists() and (grants / "9.json.bad").is_symlink() is (
        fault == "symbolic link"
    )
    assert (grants / "9.grant").stat().st_size == 0, "and no further task of the job starts"


def test_untouched_grants_are_taken(node):
    again = node.service()
    again.start()
    assert set(again.grants) == {8, 9}


@pytest.mark.parametrize("name", ["9.ended", "0.ended", "../9.ended", "9.ended.txt", "x.ended"])
def test_only_a_marker_with_a_job_number_ends_a_job(node, name):
    (node.directory / "run/grants" / name).touch()
    again = node.service()
    again.start()
    assert (9 not in again.grants) is (name == "9.ended")
    assert 8 in again.grants
