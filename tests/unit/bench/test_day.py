"""The day of bench/promises/day.py: its model keeps to the card, and its control does not."""

from __future__ import annotations

import pytest

from bench.promises import day


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day, "DAY_S", 6 * 3600)


def test_nobody_is_refused_memory_where_offline_leaves() -> None:
    taken, control = day.play(3, "reclaimable"), day.play(3, "without reclaiming")
    assert taken.waits and taken.moves
    assert taken.refused == 0 < control.refused


def test_reserved_memory_moves_nothing() -> None:
    kept = day.play(3, "reserved")
    assert kept.done > 0 and kept.assigned > 0
    assert (kept.moves, kept.refused, kept.stalled, kept.waits) == (0, 0, 0, [])
