"""Grants of moved jobs: what is accepted names each card by one name, and both forms keep it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.wire import abi
from gres.grant.store import Grant, GrantCard, GrantError

# few, so that cards and homes meet
UUIDS = st.sampled_from([f"GPU-{i}" for i in range(5)])


@st.composite
def card(draw: st.DrawFn) -> GrantCard:
    home = draw(st.just("") | UUIDS)
    minor = draw(st.integers(0, 7)) if home else -1
    return GrantCard(draw(UUIDS), 0, 0, 10, 1, 2, home=home, home_minor=minor)


def grant_of(cards: list[GrantCard]) -> Grant:
    return Grant(7, 1, 1, "n1", "active", "offline", 0, "", tuple(cards), "/run", "/lib", "/shim")


@given(st.lists(card(), min_size=1, max_size=4))
def test_a_card_has_one_name_or_the_grant_is_refused(cards: list[GrantCard]) -> None:
    uuids, homes = [c.uuid for c in cards], [c.home for c in cards if c.home]
    if len(set(uuids + homes)) < len(uuids + homes):
        with pytest.raises(GrantError):
            grant_of(cards)
        return
    grant = grant_of(cards)
    assert Grant.from_json(grant.to_json()) == grant
    page = abi.unpack_grant(abi.pack_grant(grant))
    found = [(page.cards[i].uuid.decode(), page.cards[i].home.decode()) for i in range(len(cards))]
    assert found == [(c.uuid, c.home) for c in cards]
    for name in uuids + homes:
        assert sum(name in (c.uuid, c.home) for c in cards) == 1
