"""How exactly shares are kept, for two and five tenants, beside what a user would have without
qgpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.gpu.items import Item, Yield, figure
from bench.gpu.loads import LOADS, Load, Player, play, unit_of, work_of
from bench.gpu.node import Node, Way
from bench.gpu.place import Place
from bench.gpu.truth import judge

MIXES: dict[str, tuple[int, ...]] = {"10/90": (10, 90), "30/70": (30, 70), "5x20": (20,) * 5}
TARGET, TARGET_1S = 2.0, 5.0
OTHER_WAYS: tuple[Way, ...] = ("plain", "mps")


def seconds_of(place: Place) -> float:
    """How long is counted."""
    return 3.0 if place.quick else 10.0


def once(node: Node, way: Way, policy: str, mix: str, load: Load) -> Iterator[Yield]:
    """One run of tenants that always have work."""
    players = {
        f"{mix.replace('/', '-')}.{i}": Player(load, share) for i, share in enumerate(MIXES[mix])
    }
    if way == "qgpu":
        node.policy(policy)
    unit_of(node, load)
    scene = play(node, players, way, seconds_of(node.place))
    shares = {name: float(player.share) for name, player in players.items()}
    judged = judge(work_of(node, scene, players), shares, (scene.start, scene.end), policy)
    parts = "/".join(f"{100 * part:.1f}" for part in judged.parts.values())
    spread = f"(parts of the solo rate {parts} %)"
    ours = way == "qgpu"
    yield figure(
        node, "share_error_points", judged.points, "points", TARGET if ours else None, spread=spread
    )
    yield figure(
        node, "share_error_points_1s", judged.worst_1s, "points", TARGET_1S if ours else None
    )
    yield figure(node, "sum_of_solo_rates", judged.total, "")


def body(way: Way, policy: str, mix: str, load: Load) -> Any:
    """The item's function."""

    def run(node: Node) -> Iterator[Yield]:
        if way != "mps":
            yield from once(node, way, policy, mix, load)
            return
        unit_of(node, load)
        with node.mps():
            yield from once(node, way, policy, mix, load)

    return run


def items(place: Place) -> Iterator[Item]:
    """Both policies over mixes and loads; then the other ways."""
    loads = [LOADS["small"], LOADS["graph"]] if place.simulated else list(LOADS.values())
    mixes = ["30/70"] if place.quick else list(MIXES)
    for policy in ("burst-share", "fixed-share"):
        for load in loads[: 1 if place.quick else None]:
            for mix in mixes:
                if load.kind == "train" and mix == "5x20":
                    continue
                slow = 45 if load.kind == "train" and not place.simulated else 20
                needs = () if place.simulated else ("card", *load.needs)
                yield Item(
                    f"shares/{policy} {mix} {load.name}",
                    slow,
                    body("qgpu", policy, mix, load),
                    needs,
                )
    for way in OTHER_WAYS:
        for mix in mixes:
            load = LOADS["small"]
            needs = (
                ("card", "nvcc", "mps")
                if way == "mps"
                else ()
                if place.simulated
                else ("card", "nvcc")
            )
            yield Item(
                f"shares/{way} {mix} {load.name}", 25, body(way, "burst-share", mix, load), needs
            )
