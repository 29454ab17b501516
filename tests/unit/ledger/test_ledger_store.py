"""The ledger: sums over restarts of either daemon, not measured against zero, migrations,
readers.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.ledger import store as module
from enforcer.ledger.store import (
    COUNTERS,
    Ledger,
    LedgerError,
    Sample,
    Usage,
    counter_deltas,
    migrations,
    read_usage,
)
from gres.grant.store import Grant, GrantCard

CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
OTHER = replace(CARD, uuid="GPU-00000000-0000-0000-0000-000000000002", minor=1, index=1)


def grant(job: int = 9, created: int = 100, cards: tuple[GrantCard, ...] = (CARD,)) -> Grant:
    return Grant(job, 1000, 100, "n1", "active", "online", created, "", cards, "/r", "/d", "/s")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def sample(boot: int = 1, since: int = 5, **counters: int) -> Sample:
    return Sample(9, CARD.uuid, boot, since, **counters)


def only(path: Path, job: int = 9) -> Usage:
    (row,) = read_usage(path, [job])
    return row


def test_new_row_has_measured_nothing(ledger, path):
    ledger.open_grant(grant())
    row = only(path)
    assert (row.job_id, row.node, row.uid, row.job_class, row.share) == (
        9,
        "n1",
        1000,
        "online",
        30,
    )
    assert (row.mem_cap, row.mem_total, row.granted_at, row.ended_at) == (1000, 4000, 100, None)
    assert [
        getattr(row, name) for name in (*COUNTERS, "mem_peak", "nvml_mem_peak", "sampled_at")
    ] == [None] * 9


def test_measured_zero_is_zero(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample()], 200)
    row = only(path)
    assert [getattr(row, name) for name in COUNTERS] == [0] * len(COUNTERS)
    assert row.mem_peak == 0 and row.nvml_mem_peak is None and row.sampled_at == 200


def test_each_counter_goes_to_its_column(ledger, path):
    ledger.open_grant(grant())
    values = {name: 10 + at for at, name in enumerate((*COUNTERS, "mem_peak", "gate_close_max_ns"))}
    ledger.record([sample(**values)], 200)
    row = only(path)
    assert {name: getattr(row, name) for name in values} == values


def test_same_arbiter_adds_the_difference(ledger, path):
    ledger.open_grant(grant())
    for busy in (10, 10, 25):
        ledger.record([sample(busy_ns=busy)], 200)
    assert only(path).busy_ns == 25


def test_restarted_arbiter_counts_from_zero_and_is_added(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(boot=1, busy_ns=100, launches=5)], 200)
    ledger.record([sample(boot=2, busy_ns=120, launches=2)], 300)
    assert (only(path).busy_ns, only(path).launches) == (220, 7)


def test_tenant_that_came_again_is_added(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(since=5, busy_ns=100)], 200)
    ledger.record([sample(since=6, busy_ns=130)], 300)
    assert only(path).busy_ns == 230


def test_restarted_daemon_goes_on_where_it_was(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(busy_ns=100)], 200)
    ledger.close()
    again = Ledger(path)
    again.open_grant(grant())
    again.record([sample(busy_ns=130)], 300)
    assert only(path).busy_ns == 130


def test_peaks_are_the_largest_and_not_sums(ledger, path):
    ledger.open_grant(grant())
    for peak in (5, 9, 7):
        ledger.record([sample(mem_peak=peak, gate_close_max_ns=peak)], 200)
        ledger.record_memory(9, CARD.uuid, peak * 2)
    row = only(path)
    assert (row.mem_peak, row.gate_close_max_ns, row.nvml_mem_peak) == (9, 9, 18)


def test_ended_row_takes_nothing_more(ledger, path):
    ledger.open_grant(grant())
    assert ledger.end(9, "epilog", 400) == 1
    assert ledger.end(9, "epilog", 500) == 0
    ledger.record([sample(busy_ns=1)], 450)
    ledger.record_memory(9, CARD.uuid, 1)
    row = only(path)
    assert (row.ended_at, row.end_reason, row.busy_ns, row.nvml_mem_peak) == (
        400,
        "epilog",
        None,
        None,
    )
    assert row.wall_ns(10**6) == 300


def test_standing_grant_is_timed_until_now(ledger, path):
    ledger.open_grant(grant())
    assert only(path).wall_ns(150) == 50
    assert only(path).wall_ns(50) == 0


def test_cards_of_one_job_are_kept_apart(ledger, path):
    ledger.open_grant(grant(cards=(CARD, OTHER)))
    ledger.record([sample(busy_ns=4)._replace(uuid=OTHER.uuid)], 200)
    rows = read_usage(path, [9])
    assert [(row.card_index, row.busy_ns) for row in rows] == [(0, None), (1, 4)]


def test_refused_grant_has_no_row_and_unknown_tenants_are_passed_over(ledger, path):
    ledger.open_grant(Grant(9, 1000, 100, "n1", "refused", None, 100, "no"))
    ledger.record([sample(busy_ns=4)], 200)
    assert read_usage(path, [9]) == []


def test_reader_sees_committed_rows_while_the_writer_has_the_file(ledger, path):
    ledger.open_grant(grant())
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    ledger.record([sample(busy_ns=4)], 200)
    assert reader.execute("SELECT busy_ns FROM usage").fetchone() == (4,)
    reader.close()


def test_failed_transaction_leaves_nothing_behind(ledger, path, monkeypatch):
    ledger.open_grant(grant())
    ledger.open_grant(grant(job=10))
    monkeypatch.setattr(module, "_PEAKS", attrgetter("no_such_column"))
    with pytest.raises(AttributeError):
        ledger.record([sample(busy_ns=4)], 200)
    monkeypatch.undo()
    assert only(path).busy_ns is None
    ledger.record([sample(busy_ns=4)], 200)
    assert only(path).busy_ns == 4


def test_schema_is_numbered_without_gaps_and_remembered(ledger, path):
    numbers = [number for number, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    version = sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0]
    assert version == numbers[-1]
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_ledger_of_a_newer_release_is_not_touched(ledger, path):
    ledger.close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(LedgerError, match=r"schema 99.*newer release"):
        Ledger(path)


def test_file_that_is_no_ledger_is_said(path):
    path.write_text("hello " * 500)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be opened"):
        Ledger(path)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite cannot be read"):
        read_usage(path, [9])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
@pytest.mark.parametrize("running", [True, False])
def test_another_user_can_read_it_while_qgpud_runs_and_when_it_does_not(open_directory, running):
    path = open_directory / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.open_grant(grant())
    for file in path.parent.iterdir():
        file.chmod(0o644)
    if not running:
        ledger.close()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            os._exit(0 if len(read_usage(path, [9])) == 1 else 1)
        except LedgerError:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_reading_does_not_make_a_file(tmp_path):
    with pytest.raises(LedgerError):
        read_usage(tmp_path / "none.sqlite", [9])
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30))
def test_sum_over_any_restarts_is_what_was_done(steps: list[tuple[int, bool]]):
    """Work is done in steps; before a step the arbiter may restart, after it it is asked."""
    boot, counter, total, kept = 1, 0, 0, 0
    before: tuple[int | str, ...] | None = None
    for work, restart in steps:
        if restart:
            boot, counter = boot + 1, 0
        counter += work
        total += work
        now = Sample(9, CARD.uuid, boot, 5, busy_ns=counter)
        kept += counter_deltas(now, before)[0]
        before = (str(boot), 5, *(getattr(now, name) for name in COUNTERS))
    assert kept == total


def test_hostile_counter_is_clamped_and_not_an_overflow(ledger, path):
    ledger.open_grant(grant())
    ledger.record([sample(boot=2**64 - 1, since=2**64 - 1, busy_ns=2**64 - 1)], 200)
    assert only(path).busy_ns == 2**63 - 1
