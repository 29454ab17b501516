"""The ledger over time: series, cards, memory's mean, latencies, retention, the bound on its
size, old schemas.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st

from enforcer.ledger.gains import baseline_of, closings
from enforcer.ledger.prune import Limits, prune, used_bytes
from enforcer.ledger.read import (
    card_series,
    latency_of,
    read_usage,
    reading,
    series_of,
    usage_between,
    usage_of_jobs,
)
from enforcer.ledger.schema import COARSE_S, FINE_S, Point, Usage, migrations
from enforcer.ledger.store import SERIES_MOST, CardSample, Ledger, Sample
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
DAY = 86400
START = 1_700_000_100  # a multiple of 300
CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
KEEP_ALL = Limits(365 * DAY, 1 << 40)


def grant(job: int = 9, created: int = START) -> Grant:
    return Grant(
        job, 1000, 100, "n1", "active", "online", created * SECOND, "", (CARD,), "/r", "/d", "/s"
    )


def sample(job: int = 9, **more: object) -> Sample:
    return Sample(job, CARD.uuid, 1, 5)._replace(**more)  # type: ignore[arg-type]


def points(path: Path, job: int = 9) -> list[Point]:
    with reading(path) as database:
        ((row, _),) = usage_of_jobs(database, [job])
        return series_of(database, row)


def settle(ledger: Ledger, limits: Limits, now_s: int) -> int:
    """Prune until nothing is left to do."""
    steps = 1
    while prune(ledger, limits, now_s * SECOND):
        steps += 1
        assert steps < 10_000
    return steps


def test_samples_fall_into_buckets_of_ten_seconds(ledger, path):
    ledger.open_grant(grant())
    for second, busy, used in ((2, 1, 50), (4, 3, 90), (12, 10, 70)):
        ledger.record(
            [sample(busy_ns=busy, launches=second, mem_used=used)], (START + second) * SECOND
        )
    assert points(path) == [
        Point(START, FINE_S, 3, 0, 0, 4, 90),
        Point(START + 10, FINE_S, 7, 0, 0, 8, 70),
    ]


def test_bucket_that_was_not_sampled_is_absent_and_idle_one_is_zero(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(mem_used=0)], START * SECOND)
    ledger.record([sample()], (START + 40) * SECOND)
    assert points(path) == [
        Point(START, FINE_S, 0, 0, 0, 0, 0),
        Point(START + 40, FINE_S, 0, 0, 0, 0, None),
    ]


def test_mean_of_memory_is_weighted_by_time_and_gaps_count_nothing(ledger, path):
    ledger.open_grant(grant())
    mib = 1 << 20
    assert read_usage(path, [9])[0].mem_mean is None
    for second, used in ((0, 900), (1, 100), (4, 300), (100, 500), (101, 100)):
        ledger.record([sample(mem_used=used * mib)], (START + second) * SECOND)
    assert read_usage(path, [9])[0].mem_mean == (100 * 1 + 300 * 3 + 100 * 1) * mib // 5


def test_look_that_changed_nothing_is_not_written_twice_in_a_bucket(ledger, path):
    ledger.open_grant(grant())
    mib = 1 << 20
    written = []
    for second in range(0, 20):
        ledger.record(
            [sample(mem_used=100 * mib, busy_ns=0 if second < 17 else 5)], (START + second) * SECOND
        )
        written.append(ledger.db.total_changes)
    steps = [at for at in range(1, 20) if written[at] != written[at - 1]]
    assert steps == [10, 17], "a new bucket, and a change"
    row = read_usage(path, [9])[0]
    assert (row.mem_mean, row.mem_seen_ms, row.busy_ns) == (100 * mib, 17_000, 5)


def test_change_of_memory_counts_from_when_it_was_seen(ledger, path):
    ledger.open_grant(grant())
    for second, used in ((0, 10), (1, 10), (2, 10), (3, 40)):
        ledger.record([sample(mem_used=used << 20)], (START + second) * SECOND)
    assert read_usage(path, [9])[0].mem_mean == ((10 * 2 + 40) << 20) // 3


def test_latencies_are_summed_over_a_restart_of_the_arbiter(ledger, path):
    ledger.open_grant(grant())
    with reading(path) as database:
        assert latency_of(database, 1) is None
    ledger.record([sample(close_hist=(0, 2, 1))], START * SECOND)
    ledger.record([sample(close_hist=(0, 5, 1))], START * SECOND)
    ledger.record([sample(boot_id=2, close_hist=(1, 0, 1))], START * SECOND)
    with reading(path) as database:
        assert latency_of(database, 1) == {0: 1, 1: 5, 2: 2}


def test_latencies_go_on_where_a_ledger_is_opened_again(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(close_hist=(0, 2, 1))], START * SECOND)
    ledger.close()
    again = Ledger(path)
    for hist in ((0, 2, 1), (0, 2, 1), (3, 2, 4)):
        again.record([sample(busy_ns=sum(hist), close_hist=hist)], START * SECOND)
    with reading(path) as database:
        assert latency_of(database, 1) == {0: 3, 1: 2, 2: 4}


HISTS = st.lists(st.integers(0, 2**64), max_size=5).map(tuple)


@given(HISTS, HISTS)
def test_histogram_is_kept_as_json_and_only_what_grew_is_added(
    old: tuple[int, ...], new: tuple[int, ...]
):
    before = baseline_of(sample(close_hist=old), None, 1)
    now = baseline_of(sample(close_hist=new), before, 2)
    assert now.close_hist is not None and before.close_hist is not None
    assert now.hist_text == json.dumps([min(count, 2**63 - 1) for count in new])
    was = [*before.close_hist, *(0 for _ in new)]
    grown = [
        (7, k, n - o if n >= o else n)
        for k, (n, o) in enumerate(zip(now.close_hist, was, strict=False))
    ]
    assert closings(7, now.close_hist, before.close_hist) == [row for row in grown if row[2]]


def test_what_is_not_reported_leaves_the_sum_as_it_is(ledger, path):
    ledger.open_grant(grant())
    for second, held, total in ((1, None, None), (2, 5, 5), (3, None, 5), (4, 3, 8), (5, 4, 9)):
        ledger.record([sample(busy_ns=second, held_ns=held)], (START + second) * SECOND)
        row = read_usage(path, [9])[0]
        assert (row.held_ns, row.mem_seen_ms, row.busy_ns) == (total, None, second)


def test_a_bucket_takes_no_more_than_can_be_summed(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(busy_ns=2**60, launches=7)], START * SECOND)
    (bucket,) = points(path)
    assert (bucket.busy_ns, bucket.launches, read_usage(path, [9])[0].busy_ns) == (
        SERIES_MOST,
        7,
        2**60,
    )


@pytest.mark.parametrize("name", ["closed_suspended_ns", "closed_idle_ns"])
def test_parts_of_time_are_null_until_an_arbiter_tells_them(ledger, path, name):
    ledger.open_grant(grant())
    ledger.record([sample()], START * SECOND)
    assert getattr(read_usage(path, [9])[0], name) is None
    for value in (5, 9):
        ledger.record([sample(**{name: value})], START * SECOND)
    assert getattr(read_usage(path, [9])[0], name) == 9


def test_harvest_is_offlines_time_beside_a_standing_online_grant(ledger, path):
    off = replace(grant(1), job_class="offline")
    ledger.open_grant(off)
    ledger.record([sample(1, busy_ns=5)], START * SECOND)
    assert read_usage(path, [1])[0].harvest_ns == 0
    ledger.open_grant(grant(2))
    ledger.record([sample(1, busy_ns=12), sample(2, busy_ns=3, held_ns=4)], START * SECOND)
    ledger.end(2, "epilog", START * SECOND)
    ledger.record([sample(1, busy_ns=100)], START * SECOND)
    (below,), (above,) = read_usage(path, [1]), read_usage(path, [2])
    assert (below.busy_ns, below.harvest_ns, below.held_ns) == (100, 7, None)
    assert (above.harvest_ns, above.held_ns) == (None, 4)


def test_whole_cards_have_the_mean_of_what_was_said(ledger, path):
    for second, util, used in ((0, 50, 10), (1, None, 30), (2, 100, None), (11, None, 5)):
        ledger.record_cards("n1", [CardSample(CARD.uuid, 0, util, used)], (START + second) * SECOND)
    ledger.record_cards("n1", [CardSample("GPU-x", None, None, None)], START * SECOND)
    with reading(path) as database:
        found = card_series(database, START, START + 60)
    assert [(p.at, p.util, p.mem_used) for p in found] == [(START, 75.0, 30), (START + 10, None, 5)]
    assert card_is_not_zero_where_memory_is_unknown(ledger, path)


def card_is_not_zero_where_memory_is_unknown(ledger: Ledger, path: Path) -> bool:
    for _ in range(2):
        ledger.record_cards("n1", [CardSample("GPU-y", None, 1, None)], START * SECOND)
    with reading(path) as database:
        return [
            p.mem_used for p in card_series(database, START, START + 1) if p.uuid == "GPU-y"
        ] == [None]


def card_row(path: Path, at: int) -> tuple[int, int] | None:
    with reading(path) as database:
        query = "SELECT samples, util_percent FROM card_series WHERE at = ? AND uuid = ?"
        found: tuple[int, int] | None = database.execute(query, (at, CARD.uuid)).fetchone()
        return found


def test_what_a_card_repeats_is_written_at_a_change_and_at_the_end_of_its_bucket(ledger, path):
    said = [(0, 50), (1, 50), (2, 50), (3, 80), (4, 80), (11, 80), (12, 80)]
    rows = []
    for second, util in said:
        ledger.record_cards("n1", [CardSample(CARD.uuid, 0, util, 7)], (START + second) * SECOND)
        rows.append(card_row(path, START))
    assert rows == [(1, 50), (1, 50), (1, 50), (4, 230), (4, 230), (5, 310), (5, 310)]
    assert card_row(path, START + 10) == (1, 80)
    ledger.close()
    assert card_row(path, START + 10) == (2, 160), "nothing that was seen is lost by a stop"


def test_after_a_day_buckets_are_of_five_minutes_and_nothing_is_lost(ledger, path):
    ledger.open_grant(grant())
    for second in range(0, 700, 5):
        ledger.record(
            [sample(busy_ns=second, launches=second, mem_used=second)], (START + second) * SECOND
        )
        ledger.record_cards("n1", [CardSample(CARD.uuid, 0, 40, second)], (START + second) * SECOND)
    settle(ledger, KEEP_ALL, START + DAY + 299)
    assert {p.step for p in points(path)} == {FINE_S}
    settle(ledger, KEEP_ALL, START + DAY + 650)
    found = points(path)
    assert [p.at for p in found if p.step == COARSE_S] == [START, START + 300]
    assert sum(p.busy_ns for p in found) == 695 and max(p.mem_used or 0 for p in found) == 695
    with reading(path) as database:
        cards = card_series(database, START, START + 600)
    assert [(p.step, p.util, p.mem_used) for p in cards] == [
        (COARSE_S, 40.0, 295),
        (COARSE_S, 40.0, 595),
    ]


def test_retention_forgets_ended_grants_with_all_that_hangs_on_them(ledger, path):
    for job in (1, 2, 3):
        ledger.open_grant(grant(job))
        ledger.record([sample(job, close_hist=(1,))], (START + job) * SECOND)
    ledger.end(1, "epilog", (START + 10) * SECOND)
    ledger.end(2, "epilog", (START + DAY) * SECOND)
    settle(ledger, Limits(10 * DAY, 1 << 40), START + 10 * DAY + 100)
    assert [row.job_id for row in read_usage(path, [1, 2, 3])] == [2, 3]
    counts = {
        t: ledger.db.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
        for t in ("latency", "baseline")
    }
    assert counts == {"latency": 2, "baseline": 1}
    assert (
        ledger.db.execute(
            "SELECT count(*) FROM series WHERE usage_id NOT IN (SELECT id FROM usage)"
        ).fetchone()[0]
        == 0
    )


def test_grant_that_stands_longer_than_the_retention_keeps_its_sums(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(busy_ns=7)], START * SECOND)
    settle(ledger, Limits(2 * DAY, 1 << 40), START + 5 * DAY)
    assert read_usage(path, [9])[0].busy_ns == 7 and points(path) == []


def test_size_is_bounded_and_the_oldest_go_first(ledger, path):
    for job in range(1, 1501):
        ledger.open_grant(grant(job, START + job))
        ledger.record([sample(job, busy_ns=job)], (START + job) * SECOND)
        ledger.end(job, "epilog", (START + job) * SECOND)
    limit = used_bytes(ledger) // 2
    settle(ledger, Limits(365 * DAY, limit), START + DAY // 2)
    assert used_bytes(ledger) <= limit
    left = [row.job_id for row in read_usage(path, range(1, 1501))]
    assert left == list(range(left[0], 1501)) and len(left) > 100


def test_file_does_not_grow_past_the_bound_when_pages_are_used_again(ledger, path):
    limit = 512 * 1024
    for job in range(1, 4001):
        ledger.open_grant(grant(job, START + job))
        ledger.end(job, "epilog", (START + job) * SECOND)
        if job % 50 == 0:
            prune(ledger, Limits(365 * DAY, limit), (START + job) * SECOND)
    ledger.close()
    assert path.stat().st_size < limit * 1.5


def test_pruning_an_empty_or_full_ledger_of_standing_grants_ends(ledger):
    assert prune(ledger, Limits(0, 0), START * SECOND) is False
    ledger.open_grant(grant())
    assert settle(ledger, Limits(0, 0), START + DAY) < 5
    assert ledger.db.execute("SELECT count(*) FROM usage").fetchone()[0] == 1


def test_window_takes_what_stood_in_it(ledger, path):
    for job, begin, end in ((1, 0, 10), (2, 5, 30), (3, 30, 40), (4, 10, None)):
        ledger.open_grant(grant(job, START + begin))
        if end is not None:
            ledger.end(job, "epilog", (START + end) * SECOND)
    with reading(path) as database:
        found = [
            row.job_id
            for _, row in usage_between(database, (START + 10) * SECOND, (START + 30) * SECOND)
        ]
        nobody = list(usage_between(database, 0, 2**62, uid=4))
    assert sorted(found) == [2, 4] and nobody == []


def test_ledger_of_the_first_release_is_read_and_brought_up_to_date(path):
    database = sqlite3.connect(path)
    database.executescript(migrations()[0][1] + "PRAGMA user_version = 1;")
    database.execute(
        "INSERT INTO usage (job_id, node, uuid, card_index, uid, state, share, mem_cap, "
        "mem_total, granted_at,"
        " busy_ns) VALUES (9, 'n1', ?, 0, 1000, 'active', 30, 1, 2, 5, 77)",
        (CARD.uuid,),
    )
    database.execute("INSERT INTO baseline VALUES (1, '1', 5, 77, 0, 0, 0, 0, 0)")
    database.commit()
    database.close()
    (old,) = read_usage(path, [9])
    assert isinstance(old, Usage) and (old.busy_ns, old.mem_mean, old.closed_idle_ns) == (
        77,
        None,
        None,
    )
    with reading(path) as raw:
        assert (
            series_of(raw, 1) == [] and latency_of(raw, 1) is None and card_series(raw, 0, 9) == []
        )
    new = Ledger(path)
    new.record([sample(busy_ns=80)], START * SECOND)
    assert read_usage(path, [9])[0].busy_ns == 80


def test_file_and_its_helpers_are_for_root_and_its_group(path):
    path.touch(mode=0o644)
    path.with_name(path.name + "-wal").touch(mode=0o644)
    ledger = Ledger(path)
    ledger.open_grant(grant())
    modes = {p.name: p.stat().st_mode & 0o777 for p in path.parent.iterdir()}
    assert modes == {"ledger.sqlite": 0o640, "ledger.sqlite-wal": 0o640, "ledger.sqlite-shm": 0o640}


STEPS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 10**9), st.booleans()), min_size=1, max_size=25
)


@examples(30)
@given(STEPS)
def test_series_add_up_to_the_row_whatever_happens(
    tmp_path_factory, steps: list[tuple[int, int, bool]]
):
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.open_grant(grant())
    now, busy, boot = START, 0, 1
    for pause, work, restart in steps:
        now, boot = now + pause, boot + restart
        busy = work if restart else busy + work
        ledger.record([sample(boot_id=boot, busy_ns=busy)], now * SECOND)
        prune(ledger, KEEP_ALL, (now + DAY) * SECOND)
    row = read_usage(path, [9])[0]
    assert sum(p.busy_ns for p in points(path)) == row.busy_ns == sum(work for _, work, _ in steps)
    ledger.close()
