"""Worlds on the real chain: which ones it can play, as what, and how it is compared."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from bench.worlds import real, worlds
from bench.worlds.draw import world
from simulator.whatif.simtrace import Trace, parse_trace


def made(*tenants: dict[str, Any], **card: Any) -> Trace:
    """A trace of one second and one card."""
    each = [
        {"name": f"t{i}", "class": "offline", "share": 40, "kernel": "200us"} | tenant
        for i, tenant in enumerate(tenants)
    ]
    return parse_trace(json.dumps({"duration": "1s", "cards": [card], "tenants": each}))


SERVES = {"class": "online", "load": {"per_second": 50, "kernels": 5}}
LEFT_OUT = {
    "one tenant, or many": [{}],
    "many processes": [{"processes": 4}, {"processes": 3}],
    "a tenant stalls or lies": [{}, {"lies": "busy"}],
    "kernels are short": [{}, {"kernel": ["5us", "90us"]}],
    "pauses are short": [{}, {"pause": "20us"}],
    "an online tenant comes or goes": [{"class": "online", "start": "100ms"}, {}],
    "requests come in a rhythm": [{"load": {"every": "20ms", "kernels": 5}}, {}],
    "requests have pauses, or several processes": [SERVES | {"processes": 2}, {}],
    "": [SERVES, {"kernel": ["5us", "200us"], "stop": "500ms"}, {"pause": "2ms", "processes": 2}],
}


@pytest.mark.parametrize("why", LEFT_OUT)
def test_what_the_chain_cannot_play_is_left_out(why: str) -> None:
    assert real.unplayable(made(*LEFT_OUT[why])) == why


def test_the_chosen_worlds_are_the_first_judged_ones_that_can_be_played() -> None:
    few = real.chosen(5)
    assert few == real.chosen(6)[:5]
    playable = [seed for seed in range(worlds.JUDGING, few[-1] + 1) if seed in few]
    assert playable == [
        seed for seed in range(worlds.JUDGING, few[-1] + 1) if not real.unplayable(world(seed))
    ]


def test_tenants_become_programs() -> None:
    trace = made(SERVES, {"kernel": ["5us", "200us"], "start": "100ms", "stop": "500ms"})
    first, second = (real.actor(i, tenant) for i, tenant in enumerate(trace.tenants))
    assert first.args[-6:] == ("--kernels-per-request", "5", "--poisson", "50.0", "--seed", "1")
    assert "--kernel-mix" in second.args and "5,200" in second.args
    assert (second.after_s, second.for_s) == (0.1, 0.4)
    (paused,) = made({"pause": "2ms"}).tenants
    assert real.arguments(paused)[-2:] == ("--gap", "0.002")


def test_settings_are_those_that_a_card_has() -> None:
    trace = real.playable(made({}, {}, idle_release="1400us", slice="2000400ns", window="99900ns"))
    (card,) = trace.cards
    found = real.settings(card)
    assert (found["idle_release_ms"], found["slice_us"], found["window_us"]) == (1, 2000, 100)
    assert card.idle_release.ns == 10**6 and card.window.ns == 100_000


@pytest.mark.parametrize(
    ("chain", "apart", "beyond"), [(4.0, 1.0, 0.0), (6.5, 3.5, 1.5), (0.5, -2.5, 0.5)]
)
def test_a_difference_is_to_the_median_and_to_all_draws(
    chain: float, apart: float, beyond: float
) -> None:
    pair = real.Pair(chain, [1.0, 5.0, 3.0])
    assert (pair.apart, pair.beyond) == (apart, beyond)


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_a_world_is_played_and_its_figures_read() -> None:
    trace = real.playable(made(SERVES, {}))
    played, said = real.chain(trace), real.engine(trace)
    for outcome in (played, said):
        assert outcome.latencies_us[0] and not outcome.latencies_us[1]
        assert outcome.busy[0] > 0 and outcome.busy[1] > 0 and sum(outcome.busy) <= 100.1
        assert outcome.of_class("offline") == outcome.busy[1]
