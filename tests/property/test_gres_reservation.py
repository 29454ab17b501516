"""The reservation rule: what Slurm books covers what is promised, on each card and in any packing.

Lua books a request; Python computes it again before a job changes its class.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from gres_support import LUA_VERSIONS, module
from hypothesis import assume, given
from hypothesis import strategies as st

from gres.request.reservation import CARD_SHARDS, mem_shards
from gres.request.reservation import shards as in_python

Shards = Callable[[int, int, int, bool], int]
BOOKED = [*(module(version)[1].shards for version in LUA_VERSIONS), in_python]
each = pytest.mark.parametrize("shards", BOOKED, ids=[*LUA_VERSIONS, "python"])
each_lua = pytest.mark.parametrize("version", LUA_VERSIONS)

USABLE = st.integers(100, 4 * 1024 * 1024)
SHARE = st.integers(1, 100)
BOOL = st.booleans()


@st.composite
def card_and_mem(draw: st.DrawFn) -> tuple[int, int]:
    usable = draw(USABLE)
    return usable, draw(st.integers(1, usable))


@each
@given(card_and_mem(), SHARE, BOOL)
def test_never_books_less_than_is_promised(
    shards: Shards, card: tuple[int, int], share: int, compute: bool
) -> None:
    usable, mem = card
    booked = shards(share, mem, usable, compute)
    assert Fraction(booked, CARD_SHARDS) >= Fraction(mem, usable)
    assert not compute or booked >= share
    assert 1 <= booked <= CARD_SHARDS


@each
@given(card_and_mem(), SHARE)
def test_books_no_more_than_one_shard_too_many(
    shards: Shards, card: tuple[int, int], share: int
) -> None:
    usable, mem = card
    assert Fraction(shards(share, mem, usable, False) - 1, CARD_SHARDS) < Fraction(mem, usable)


@each_lua
@given(USABLE, SHARE, BOOL)
def test_a_share_with_its_default_memory_books_exactly_itself_or_less(
    version: str, usable: int, share: int, compute: bool
) -> None:
    q = module(version)[1]
    mem = q.default_mem(share, usable)
    booked = mem_shards(mem, usable)
    assert booked <= share
    assert mem + 1 > Fraction(share * usable, 100) >= mem
    assert not compute or q.shards(share, mem, usable, compute) == share


@each
@given(USABLE, st.data())
def test_any_packing_of_a_hundred_shards_fits_the_card(
    shards: Shards, usable: int, data: st.DataObject
) -> None:
    """Jobs are placed while shards are free, as Slurm does; then caps and shares never exceed
    the card.
    """
    free, mems, guaranteed = CARD_SHARDS, 0, 0
    jobs = st.tuples(SHARE, st.integers(1, usable), BOOL)
    for share, mem, compute in data.draw(st.lists(jobs, max_size=30)):
        booked = shards(share, mem, usable, compute)
        if booked > free:
            continue
        free -= booked
        mems += mem
        guaranteed += share if compute else 0
    assert mems <= usable
    assert guaranteed <= 100


@each
@given(USABLE, SHARE, SHARE, st.data(), BOOL)
def test_more_never_books_less(
    shards: Shards, usable: int, one: int, two: int, data: st.DataObject, compute: bool
) -> None:
    mem_a, mem_b = sorted((data.draw(st.integers(1, usable)), data.draw(st.integers(1, usable))))
    share_a, share_b = sorted((one, two))
    assert shards(share_a, mem_a, usable, compute) <= shards(share_b, mem_b, usable, compute)
    assert shards(share_a, mem_a, usable, False) <= shards(share_a, mem_a, usable, True)


@each
@given(USABLE, USABLE, SHARE, BOOL, st.data())
def test_the_smallest_card_is_safe_on_every_larger_one(
    shards: Shards, small: int, large: int, share: int, compute: bool, data: st.DataObject
) -> None:
    """An untyped request is booked for the smallest card; on a larger one its part is at least
    as large.
    """
    assume(small <= large)
    mem = data.draw(st.integers(1, small))
    booked = shards(share, mem, small, compute)
    assert Fraction(booked * large, CARD_SHARDS) >= mem


@each_lua
@given(card_and_mem(), SHARE, BOOL)
def test_a_class_is_changed_by_the_rule_that_booked_it(
    version: str, card: tuple[int, int], share: int, compute: bool
) -> None:
    usable, mem = card
    assert module(version)[1].shards(share, mem, usable, compute) == in_python(
        share, mem, usable, compute
    )
