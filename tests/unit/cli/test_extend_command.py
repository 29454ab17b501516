"""`qgpu extend`: a job lost the time in which it was suspended, and that in which its memory was
away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from records_support import answer

from cli.jobs.extend import EARLIER_S, one_pass, suspended
from cli.report.ledgers import Row
from enforcer.ledger import reclaims
from enforcer.ledger.schema import FILE_NAME
from enforcer.ledger.store import Ledger, read_usage
from gres.config.site import Config, parse_config
from gres.grant.extension import RunningJob
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
START = 1_700_000_000
CARDS = tuple(
    GrantCard(f"GPU-00000000-0000-0000-0000-00000000000{n}", n, n, 30, 1000, 4000) for n in (1, 2)
)
JOB = RunningJob(9, "offline", START, 600)
CONFIG = """version: 1
cluster: one
state_dir: {place}
qos: {{online: online, offline: offline}}
suspended: {{offline: {{extend_time: true}}}}
models: {{h200: {{memory: 80GiB}}}}
nodes: [{{names: n1, model: h200, count: 2, files: "/dev/nvidia[0-1]"}}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return parse_config(CONFIG.format(place=tmp_path))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Job 9 runs on two cards of which its memory was away for 70 s."""
    made = Ledger(tmp_path / FILE_NAME)
    at = START * SECOND
    grant = Grant(9, 1000, 100, "n1", "active", "offline", at, "", CARDS, "/r", "/d", "/s")
    made.open_grant(grant)
    reclaims.left(made, grant, at + SECOND, "job 7", {CARDS[0].uuid: 800})
    reclaims.back(made, 9, at + 71 * SECOND, "returned")
    return made


def rows(ledger: Ledger, *preempted_s: int | None) -> list[Row]:
    """Those of the ledger with so many seconds suspended on each card."""
    found = sorted(read_usage(ledger.path, [9]), key=lambda usage: usage.uuid)
    return [
        Row(usage._replace(closed_preempted_ns=None if lost is None else lost * SECOND))
        for usage, lost in zip(found, preempted_s, strict=True)
    ]


def test_time_away_is_added_to_time_suspended_on_the_card_that_lost_most(ledger: Ledger) -> None:
    assert suspended([JOB], rows(ledger, 0, 0)) == {9: 70}
    assert suspended([JOB], rows(ledger, None, None)) == {9: 70}
    assert suspended([JOB], rows(ledger, 5, 50)) == {9: 120}
    assert suspended([JOB], rows(ledger, 50, 5)) == {9: 120}


def test_a_run_before_the_present_one_does_not_count(ledger: Ledger) -> None:
    later = RunningJob(9, "offline", START + EARLIER_S + 1, 600)
    assert suspended([later], rows(ledger, 0, 0)) == {}


def test_the_limit_grows_by_the_time_away(config: Config, ledger: Ledger) -> None:
    asked = list[Sequence[str]]()

    def slurm(command: Sequence[str]) -> str:
        if command[0] == "sinfo":
            rows = [{"%R": "gpu", "%l": "1-00:00:00"}]
        elif command[0] == "squeue":
            rows = [{"%A": "9", "%q": "offline", "%l": "10:00", "%S": str(START), "%P": "gpu"}]
        else:
            asked.append(command)
            return ""
        return answer(command, rows)

    known, done, problems = one_pass(config, {}, 0, slurm)
    assert done == ["job 9: its time limit is now 00:12:00"] and problems == []
    assert asked == [["scontrol", "update", "JobId=9", "TimeLimit=12"]]
    assert (known[9].given_s, known[9].suspended_s) == (120, 70)
