"""Bracket lists: what is folded expands to the same names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gres.config.hostlist import expand, fold

NAMES = st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z.-]{0,2}[0-9]{0,3}", fullmatch=True).filter(bool)


@given(st.lists(NAMES, min_size=1, max_size=30))
def test_a_folded_list_expands_to_the_same_names(names: list[str]) -> None:
    assert expand(fold(names)) == names


@given(st.integers(0, 999), st.integers(1, 300), st.integers(1, 5))
def test_consecutive_numbers_are_one_range(first: int, count: int, width: int) -> None:
    names = [f"n{number:0{width}}" for number in range(first, first + count)]
    last = f"-{first + count - 1:0{width}}]" if count > 1 else ""
    assert fold(names).startswith("n[") == (count > 1)
    assert "," not in fold(names) and last in fold(names)
