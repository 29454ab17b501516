"""What benchmarks put in place of real programs must look real to the arbiter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import simulate
from bench.daemons import cpu_ns
from bench.rig import BUILD, Rig, wait_for
from bench.scene import Actor, endless, play

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a grant"),
    pytest.mark.timeout(120),
]
JOBS = range(500, 520)


def light(rig: Rig, mode: str):
    for job in JOBS:
        rig.grant(job, "offline", 5, mem_mib=64)
    process = rig.spawn([BUILD / "test/light-tenants", rig.run_dir, mode, *map(str, JOBS)], None, stdin=-1)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_busy_light_tenants_take_turns_and_all_advance(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        process = light(rig, "busy")

        def all_ran() -> bool:
            stats = rig.link.stats()
            return len(stats) == len(JOBS) and all(t.procs == 1 and t.launches > 100 for t in stats)

        wait_for("20 light tenants at work", all_ran, 30)
        assert all(t.closed_share_ns > 0 for t in rig.link.stats())
        process.stdin.close()
        assert process.wait(10) == 0
        wait_for("their end", lambda: all(t.procs == 0 for t in rig.link.stats()), 10)


def test_idle_light_tenants_are_registered_and_launch_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        process = light(rig, "idle")
        assert all(t.procs == 1 and t.launches == 0 and not t.busy for t in rig.link.stats())
        assert cpu_ns(rig.arbiter.pid) > 0
        process.terminate()
        assert process.wait(10) == 0


def test_a_scene_is_what_the_card_executed(tmp_path: Path) -> None:
    with Rig(tmp_path, cards=2) as rig:
        actors = [
            Actor(601, "offline", 50, endless(1000)),
            Actor(602, "offline", 50, endless(1000)),
            Actor(603, "online", 50, ("--poisson", "50", "--iters", "100000"), card=1),
        ]
        scene = play(rig, actors, 1.0)
        assert not rig.grants
    assert {span.card for span in scene.of(603)} == {1} and {span.card for span in scene.of(601, 602)} == {0}
    assert scene.served[601].within(scene.start, scene.end) > 0
    assert all(b.call >= scene.start and b.end <= scene.end for b in scene.whole_bursts(603, 1_000_000))
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
    assert own[-1].t_submit <= begin + 1_300_000_000, "it launches for 0.3 s"
    assert scene.of(611)[-1].t_end > begin + 1_900_000_000


def test_the_traces_of_the_simulation_are_understood() -> None:
    assert all(simulate.took(tenants, 1) > 0 for tenants in simulate.NODES.values())
    assert all(sum(int(t["count"]) for t in tenants) == 16 for tenants in simulate.NODES.values())
