"""Benchmarks' substitutes for real programs must equal these for the arbiter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.costs import daemons_cpu as cost
from bench.costs import simulate
from bench.harness.node import Rig, wait_for
from bench.harness.scene import Actor, endless, play

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a grant"),
    pytest.mark.timeout(120),
]


@pytest.mark.parametrize("mode", cost.TARGETS)
def test_tenants_of_the_cost_scenario_are_on_their_cards(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few of them: NVML lists each with its memory; a card on which one is missing is refused."""
    for name, value in (("CARDS", 2), ("TENANTS", 3), ("LOAD_S", 0.8)):
        monkeypatch.setattr(cost, name, value)
    with Rig(tmp_path, cards=2) as rig:
        who = cost.admit(rig)
        assert len(who) == 6 and {grant.cards[0].uuid for grant in rig.grants.values()} == set(
            rig.uuids
        )
        with cost.at_work(rig, who, mode) as pids:
            wait_for("their work", lambda: all(t.launches for t in rig.link.stats()), 30)
            if mode == "idle":
                wait_for(
                    "the end of their work", lambda: not any(t.busy for t in rig.link.stats()), 30
                )
            cost.check(rig, pids, mode)
            monkeypatch.setattr(cost, "LISTED_S", 0.1)
            with pytest.raises(TimeoutError):
                cost.check(rig, [pids[0] + 10_000, *pids[1:]], mode)


def test_a_scene_is_what_the_card_executed(tmp_path: Path) -> None:
    with Rig(tmp_path, cards=2) as rig:
        actors = [
            Actor(601, "offline", 50, endless(1000)),
            Actor(602, "offline", 50, endless(1000)),
            Actor(603, "online", 50, ("--poisson", "50", "--iters", "100000"), card=1),
        ]
        scene = play(rig, actors, 1.0)
        assert not rig.grants
    assert {span.card for span in scene.of(603)} == {1} and {
        span.card for span in scene.of(601, 602)
    } == {0}
    assert scene.served[601].within(scene.start, scene.end) > 0
    assert all(
        b.call >= scene.start and b.end <= scene.end for b in scene.whole_bursts(603, 1_000_000)
    )
    assert scene.latencies_us(603) and scene.gates_of(601)


def test_a_visitor_works_only_while_it_is_there(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        actors = [
            Actor(611, "offline", 50, endless(1000)),
            Actor(612, "offline", 50, endless(1000), after_s=0.9, for_s=0.3),
        ]
        scene = play(rig, actors, 1.5)
    begin, own = scene.start - 500_000_000, scene.of(612)
    assert own and own[0].t_submit >= begin + 900_000_000
    assert own[-1].t_submit <= begin + 1_800_000_000, "it launches for 0.3 s"
    assert scene.of(611)[-1].t_end > begin + 1_900_000_000


def test_the_traces_of_the_simulation_are_understood() -> None:
    assert all(simulate.took(tenants, 1) > 0 for tenants in simulate.NODES.values())
    assert all(sum(int(t["count"]) for t in tenants) == 16 for tenants in simulate.NODES.values())
