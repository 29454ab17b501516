"""Tables that fit into a terminal (cli/columns.py)."""

from __future__ import annotations

import pytest

from cli.columns import Column, cells, cut, table

COLUMNS = (
    Column("ID"),
    Column("NAME", left=True, least=6),
    Column("MODEL", rank=2, left=True),
    Column("USED", rank=1),
)
ROWS = [["7", "a-long-name-of-a-job", "NVIDIA H200", "12.5"], ["12", "b", "NVIDIA A100", "100.0"]]


@pytest.mark.parametrize(
    ("room", "header", "first"),
    [
        (None, "ID  NAME                  MODEL         USED", "a-long-name-of-a-job"),
        (44, "ID  NAME                  MODEL         USED", "a-long-name-of-a-job"),
        (40, "ID  NAME              MODEL         USED", "a-long-name-of-…"),
        (30, "ID  NAME    MODEL         USED", "a-lon…"),
        (29, "ID NAME   MODEL        USED", "a-long-…"),
        (26, "ID  NAME         USED", "a-long-name-of-a…"),
        (18, "ID  NAME   USED", "a-long-n…"),
        (12, "ID  NAME", "a-long-n…"),
        (3, "ID  NAME", "a-lon…"),
    ],
)
def test_columns_leave_by_rank_and_only_free_text_is_cut(
    room: int | None, header: str, first: str
) -> None:
    lines = table(COLUMNS, ROWS, room)
    assert lines[0].split() == header.split()
    assert lines[1].split()[1] == first
    if room is not None and room >= 10:
        assert max(map(cells, lines)) <= room
    shown = {word for line in lines for word in line.split()}
    whole = {
        word for row in [[c.name for c in COLUMNS], *ROWS] for text in row for word in text.split()
    }
    assert {word for word in shown if not word.endswith("…")} <= whole


def test_hostile_texts_keep_one_line_and_their_width() -> None:
    lines = table(COLUMNS, [["1", "名" * 40 + "\n\x1b[2J", "x", "1"]], 30)
    assert [cells(line) for line in lines] == [30, 30]
    assert "…" in lines[1] and "\n" not in lines[1]


@pytest.mark.parametrize("width", range(1, 9))
def test_a_cut_text_is_never_wider_than_its_room(width: int) -> None:
    assert cells(cut("名前x名前", width)) <= width
