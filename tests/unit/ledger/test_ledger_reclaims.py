"""Intervals in which memory was away: sums, restarts, merging, and what goes with its grant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.ledger import reclaims
from enforcer.ledger.merge import Record, merge, records
from enforcer.ledger.prune import Limits, prune
from enforcer.ledger.read import reading
from enforcer.ledger.reclaims import Reclaim, reclaims_of
from enforcer.ledger.schema import LedgerError, Usage
from enforcer.ledger.store import Ledger, read_usage
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
OTHER = replace(CARD, uuid="GPU-00000000-0000-0000-0000-000000000002", minor=1, index=1)
GRANT = Grant(9, 1000, 100, "n1", "active", "offline", 100, "", (CARD, OTHER), "/r", "/d", "/s")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.open_grant(GRANT)
    return made


def away(ledger: Ledger, job: int = 9) -> list[int | None]:
    return [usage.reclaimed_ns for usage in read_usage(ledger.path, [job])]


def test_intervals_add_up_also_those_that_are_open(ledger: Ledger) -> None:
    assert away(ledger) == [None, None], "nothing was ever moved"
    reclaims.left(ledger, GRANT, SECOND, "job 7", {CARD.uuid: 800})
    reclaims.moved(ledger, 9, 30)
    reclaims.tally(ledger, 4 * SECOND)
    assert away(ledger) == [3 * SECOND] * 2
    reclaims.back(ledger, 9, 6 * SECOND, "returned", 40)
    reclaims.left(ledger, GRANT, 8 * SECOND, "job 8", {})
    reclaims.tally(ledger, 9 * SECOND)
    assert away(ledger) == [6 * SECOND] * 2
    with reading(ledger.path) as database:
        first, second = reclaims_of(database, (9, CARD.uuid, 100))
    key = (9, CARD.uuid, 100)
    assert first == Reclaim(*key, SECOND, 6 * SECOND, 800, 30, 40, "job 7", "returned")
    assert second == Reclaim(*key, 8 * SECOND, None, 0, None, None, "job 8", None)
    assert {row.uuid for row in reclaims.open_rows(ledger)[9]} == {CARD.uuid, OTHER.uuid}


def test_a_clock_that_was_set_back_takes_no_time_away(ledger: Ledger) -> None:
    reclaims.left(ledger, GRANT, 5 * SECOND, "job 7", {})
    reclaims.tally(ledger, SECOND)
    reclaims.back(ledger, 9, 2 * SECOND, "returned")
    assert away(ledger) == [0, 0]


def test_a_copy_has_the_intervals_and_replaces_an_older_one(ledger: Ledger, tmp_path: Path) -> None:
    central = Ledger(tmp_path / "central.sqlite")
    reclaims.left(ledger, GRANT, SECOND, "job 7", {CARD.uuid: 800})
    for result in (None, "returned"):
        if result:
            reclaims.back(ledger, 9, 3 * SECOND, result, 40)
        lines = [record.to_line() for record in records(ledger.path)]
        list(merge(central, map(Record.from_line, lines)))
        with reading(central.path) as database:
            (row,) = reclaims_of(database, (9, CARD.uuid, 100))
        assert (row.bytes, row.result) == (800, result)
    assert away(central) == [2 * SECOND] * 2


def test_a_hostile_interval_is_refused(ledger: Ledger) -> None:
    usage = next(iter(records(ledger.path))).usage
    line = Record(usage, reclaims=(Reclaim(*usage.key, 5, why="job \x1b[2J"),)).to_line()
    with pytest.raises(LedgerError, match="why is"):
        Record.from_line(line)


def test_intervals_go_with_their_grant(ledger: Ledger) -> None:
    reclaims.left(ledger, GRANT, SECOND, "job 7", {})
    reclaims.back(ledger, 9, 2 * SECOND, "returned")
    ledger.end(9, "epilog", 3 * SECOND)
    prune(ledger, Limits(retention_s=10, max_bytes=1 << 30), 100 * SECOND)
    assert ledger.db.execute("SELECT count(*) FROM reclaims").fetchone() == (0,)


def test_usage_of_an_older_ledger_says_not_measured() -> None:
    assert Usage._field_defaults["reclaimed_ns"] is None
