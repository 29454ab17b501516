"""The judge of the set for a card: stamps, work, shares, records. Needs no card and no
simulator.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gpu.record import Outcome, Results
from bench.gpu.truth import (
    HEAD,
    MAGIC,
    Piece,
    StampError,
    Work,
    alone,
    judge,
    read_spans,
    read_stamps,
)
from bench.harness.figures import Figure

MS = 1_000_000
ABOUT = {
    "card": "c",
    "driver": "580",
    "simulated": True,
    "quick": False,
    "machine": "m",
    "qgpu": "q",
    "command": "make gpu",
}


def stamps(
    path: Path,
    pairs: list[tuple[int, int]],
    clock=(1000, 5000, 2000, 6000),
    seen: int | None = None,
) -> Path:
    """A file as programs/tenant.cu writes it."""
    host0, card0, host1, card1 = clock
    count = len(pairs) if seen is None else seen
    head = HEAD.pack(MAGIC, 77, len(pairs), host0, card0, host1, card1, 10, count)
    path.write_bytes(
        head + b"".join(a.to_bytes(8, "little") + b.to_bytes(8, "little") for a, b in pairs)
    )
    return path


def test_card_times_become_host_times_also_where_the_clocks_drift(tmp_path: Path) -> None:
    (piece,) = read_stamps(stamps(tmp_path / "s", [(5100, 5200)]))
    assert (piece.t_start, piece.t_end, piece.pid) == (1100, 1200, 77)
    drifting = (0, 0, 1_000_000, 2_000_000)  # the card's clock runs twice as fast
    (piece,) = read_stamps(stamps(tmp_path / "s", [(1000, 3000)], drifting))
    assert (piece.t_start, piece.t_end) == (500, 1500)


def test_a_kernel_that_never_ended_is_left_out(tmp_path: Path) -> None:
    assert len(read_stamps(stamps(tmp_path / "s", [(5100, 5200), (5300, 0)]))) == 1


@pytest.mark.parametrize("damage", ["empty", "magic", "short", "full"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, damage: str) -> None:
    path = stamps(tmp_path / "s", [(5100, 5200)], seen=9 if damage == "full" else None)
    raw = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "magic": b"x" + raw[1:], "short": raw[:-8], "full": raw}[damage]
    )
    with pytest.raises(StampError, match=str(path)):
        read_stamps(path)


def test_spans_of_pytorch(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(json.dumps({"pid": 5, "spans": [[1, 2], [3, 4]]}))
    assert read_spans(tmp_path / "s") == [Piece(1, 2, 0, 5), Piece(3, 4, 0, 5)]


def test_work_counts_a_preempted_kernel_once_and_the_edge_by_its_part() -> None:
    work = Work(
        [Piece(0, 100), Piece(100, 500), Piece(500, 600)], unit=100
    )  # the second was off the card for 300
    assert work.within(0, 600) == 300
    assert work.within(50, 100) == 50
    assert work.within(100, 300) == 50
    assert work.within(600, 900) == 0


def test_without_a_unit_a_piece_is_worth_its_length() -> None:
    assert Work([Piece(0, 100), Piece(200, 500)]).within(0, 1000) == 400


def test_alone_is_the_median_and_refuses_to_guess() -> None:
    assert alone([Piece(0, 10), Piece(0, 12), Piece(0, 1000)]) == 12
    with pytest.raises(StampError):
        alone([Piece(0, 10)])


def turns(first: int, second: int, rounds: int) -> tuple[Work, Work]:
    """Two tenants in turn, ms each."""
    a, b = [], []
    for i in range(rounds):
        at = i * (first + second) * MS
        a.append(Piece(at, at + first * MS))
        b.append(Piece(at + first * MS, at + (first + second) * MS))
    return Work(a), Work(b)


@pytest.mark.parametrize(("policy", "error"), [("burst-share", 0.0), ("fixed-share", 0.0)])
def test_exact_shares_have_no_error(policy: str, error: float) -> None:
    a, b = turns(3, 7, 300)
    judged = judge({"a": a, "b": b}, {"a": 30, "b": 70}, (0, 3000 * MS), policy)
    assert judged.points == pytest.approx(error, abs=1e-6)
    assert judged.worst_1s < 0.5 and judged.total == pytest.approx(1.0)


def test_equal_turns_are_twenty_points_from_thirty_to_seventy() -> None:
    a, b = turns(5, 5, 300)
    judged = judge({"a": a, "b": b}, {"a": 30, "b": 70}, (0, 3000 * MS), "burst-share")
    assert judged.points == pytest.approx(20.0)


def test_an_error_that_evens_out_over_the_run_shows_in_the_window() -> None:
    first = Work([Piece(0, 1000 * MS)])
    second = Work([Piece(1000 * MS, 2000 * MS)])
    judged = judge({"a": first, "b": second}, {"a": 50, "b": 50}, (0, 2000 * MS), "burst-share")
    assert judged.points == pytest.approx(0.0) and judged.worst_1s == pytest.approx(50.0)


def outcome(
    item: str, state: str = "done", when: str = "2026-01-01T00:00:00", **about: object
) -> Outcome:
    record = Figure("f", 3.0, "us", 2.0, "<=", 1).record()
    return Outcome(item, state, ABOUT | about, (record,), ("a note",), 1.0, when)


def test_results_resume_and_survive_a_torn_line(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(outcome("works/a"))
    results.add(outcome("works/b", "failed"))
    with results.path.open("a") as file:
        file.write('{"item": "works/c", "sta')
    again = Results(tmp_path)
    assert again.done(ABOUT) == {"works/a"}
    assert again.done(ABOUT | {"driver": "595"}) == set(), "another driver: everything once more"


def test_summary_names_what_is_short_what_failed_and_what_was_left_out(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(outcome("shares/a"))
    results.add(outcome("works/b", "failed", "2026-01-02T00:00:00"))
    results.add(outcome("works/c", "skipped", "2026-01-02T00:00:00"))
    results.add(outcome("works/elsewhere", "done", "2025-01-02T00:00:00", card="another"))
    results.write_summary()
    text = results.summary_path.read_text()
    assert "no figure here is of a GPU" in text and "Driver 580" in text and "`make gpu`" in text
    assert "Short of the target: shares/a f, works/b f, works/c f." in text
    assert "Failed: works/b." in text and "Left out: works (c): a note." in text
    assert "elsewhere" not in text, "one page is about one card"
