"""What the ledger keeps for advice, and what becomes of it in ledgers of other releases."""

from __future__ import annotations

import itertools
import json
import sqlite3
from pathlib import Path

import pytest

from enforcer.ledger.merge import Record, records
from enforcer.ledger.schema import COLUMNS, migrations
from enforcer.ledger.store import Ledger, Sample, read_usage
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
START = 1_700_000_100
CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)


def grant(job: int = 9) -> Grant:
    at = START * SECOND
    return Grant(job, 1000, 100, "n1", "active", "online", at, "", (CARD,), "/r", "/d", "/s")


def sample(job: int = 9, **more: object) -> Sample:
    return Sample(job, CARD.uuid, 1, 5)._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("busy", "most"),
    [
        ([0, 0, 0, 0, 0, 0], 0),
        ([1, 1, 1, 1, 1, 1, 1], 5),  # a second of each two
        ([0, 2, 2, 2, 0, 0, 0, 0, 2, 2], 6),  # the second time it is less
        ([30], 10),  # nobody looked for half a minute
    ],
)
def test_busiest_ten_seconds_are_kept(ledger, path, busy, most):
    ledger.open_grant(grant())
    for at, sum_ns in enumerate(itertools.accumulate(busy), 1):
        ledger.record([sample(busy_ns=sum_ns * SECOND)], (START + 2 * at) * SECOND)
    assert read_usage(path, [9])[0].busy_most_ns == most * SECOND


def old_ledger(path: Path, schema: int, columns: str, values: tuple[object, ...]) -> None:
    """A file of that schema with one row that stands."""
    database = sqlite3.connect(path)
    for _, script in migrations()[:schema]:
        database.executescript(script)
    database.execute(f"PRAGMA user_version = {schema}")
    marks = ", ".join("?" * len(values))
    database.execute(f"INSERT INTO usage ({columns}) VALUES ({marks})", values)
    database.commit()
    database.close()


def test_what_a_job_needs_is_not_known_of_rows_that_an_older_qgpud_began(path):
    needs = ("mem_refused", "busy_most_ns")
    columns = [name for name in COLUMNS if name not in needs]
    values = [n + 3 for n in range(len(columns))]
    values[columns.index("job_id")], values[columns.index("ended_at")] = 9, None
    values[columns.index("uuid")] = CARD.uuid
    old_ledger(path, 6, ", ".join(columns), tuple(values))
    before = read_usage(path, [9])
    assert list(before[0][:-2]) == [str(v) if isinstance(b, str) else v
                                    for b, v in zip(before[0], values, strict=False)]  # fmt: skip
    assert (before[0].mem_refused, before[0].busy_most_ns) == (None, None)
    ledger = Ledger(path)
    assert read_usage(path, [9]) == before, "each value of each row is still there"
    ledger.open_grant(grant(10))
    new = sample(10, busy_ns=2 * SECOND, denied=1, mem_refused=77)
    ledger.record([sample(9, busy_ns=5, mem_refused=1), new], START * SECOND)
    found = [(row.mem_refused, row.busy_most_ns) for row in read_usage(path, [9, 10])]
    assert sorted(found, key=str) == [(77, 2 * SECOND), (None, None)]
    ledger.end(10, "epilog", (START + 9) * SECOND)
    # collected as well, and from a node that does not know them
    kept = next(one for one in records(path) if one.usage.job_id == 10)
    line = json.loads(kept.to_line())
    assert Record.from_line(json.dumps(line)).usage == kept.usage
    for name in needs:
        del line["usage"][name]
    assert Record.from_line(json.dumps(line)).usage[-2:] == (None, None)


def test_an_older_report_reads_what_it_knows_of_a_newer_ledger(ledger, path):
    ledger.open_grant(grant())
    ledger.db.execute("ALTER TABLE usage ADD COLUMN of_the_future INTEGER DEFAULT 7")
    ledger.record([sample(busy_ns=5)], START * SECOND)
    assert read_usage(path, [9])[0].busy_ns == 5
