"""How exactly shares are kept, judged by the simulator's own trace.

Every tenant has work all the time (kernels back to back, never waiting for one). burst-share is judged by the part of
what was executed, fixed-share by the part of the wall time, over 10 s and over every 1 s window inside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figure
from bench.scene import Actor, Scene, calm_play, endless
from enforcer import shares as sh

S = 1_000_000_000
SWITCH_US = 50
MIXES: dict[str, tuple[int, ...]] = {
    "10/90": (10, 90),
    "30/70": (30, 70),
    "5x20": (20,) * 5,
    "25/75": (25, 75),
}
KERNELS: dict[str, tuple[float, ...]] = {
    "0.1 ms": (100,),
    "1 ms": (1000,),
    "10 ms": (10_000,),
    "mixed": (100, 1000, 10_000),
}
POLICIES = ("burst-share", "fixed-share")
ALONE = "alone"
TARGET, TARGET_1S = 1.0, 3.0


@dataclass(frozen=True)
class Errors:
    """The share errors of one run in points, and its price."""

    total: float
    worst_1s: float
    above: float
    above_1s: float  # beyond one kernel, which fixed-share may always finish
    price: sh.Price


def judge(scene: Scene, shares: Mapping[int, float], policy: str, longest_us: float) -> Errors:
    """The errors of these tenants in a run in which all were backlogged from scene.start to scene.end."""
    rule, span = sh.RULES[policy], (scene.start, scene.end)
    served = {job: scene.served[job] for job in shares}
    points = sh.errors(served, shares, *span, rule)
    window = min(S, scene.end - scene.start)
    within = sh.worst_window(served, shares, span, window, rule)
    above = sh.worst_window(served, shares, span, window, rule, "above")
    return Errors(
        sh.worst(points, scene.start).points,
        within.points,
        max(points.values()),
        above.points - 100 * longest_us * 1000 / window,
        sh.price(scene.of(*shares), *span, SWITCH_US * 1000),
    )


def measure(
    policies: Sequence[str], mix: Sequence[int], lengths: Sequence[float], seconds: float
) -> list[Errors]:
    """One run of tenants with these shares and kernels, under each policy on a card of its own."""
    cards = {card: {"policy_offline": policy} for card, policy in enumerate(policies)}
    jobs = {card: {200 + 20 * card + i: share for i, share in enumerate(mix)} for card in cards}
    actors = [
        Actor(job, "offline", share, (*endless(*lengths), "--seed", str(job)), card=card)
        for card, shares in jobs.items()
        for job, share in shares.items()
    ]
    options = ("--switch-us", str(SWITCH_US))
    scene = calm_play(actors, seconds, cards=len(cards), card_settings=cards, sim_options=options)
    return [judge(scene, jobs[card], policies[card], max(lengths)) for card in cards]


def _figure(
    name: str, found: Mapping[str, float], target: float | None, runs: int, unit: str = "points"
) -> Figure:
    worst = max(found, key=lambda key: found[key])
    spread = f"(worst at {worst}; median of all {statistics.median(found.values()):.2f})"
    return Figure(name, found[worst], unit, target, "<=", runs, spread, detail=dict(found))


def figures_of(policy: str, found: Mapping[str, Errors], runs: int) -> Iterator[Figure]:
    """The figures over all combinations of one policy."""
    short = policy.removesuffix("-share")
    yield _figure(f"share_error_points_max_{short}", {k: e.total for k, e in found.items()}, TARGET, runs)
    yield _figure(
        f"share_error_points_1s_{short}", {k: e.worst_1s for k, e in found.items()}, TARGET_1S, runs
    )
    if policy == "fixed-share":
        yield _figure("fixed_share_above_points_10s", {k: e.above for k, e in found.items()}, TARGET, runs)
        yield _figure(
            "fixed_share_above_1s_and_a_kernel", {k: e.above_1s for k, e in found.items()}, 0.0, runs
        )
    prices = {k: e.price for k, e in found.items() if not k.startswith(ALONE)}
    yield _figure(
        f"switches_per_s_{short}", {k: p.switches_per_s for k, p in prices.items()}, None, runs, "1/s"
    )
    yield _figure(
        f"drain_loss_percent_{short}", {k: p.drain_percent for k, p in prices.items()}, None, runs, "%"
    )


def combinations(quick: bool) -> Iterator[tuple[str, tuple[int, ...], tuple[float, ...]]]:
    """Name, shares and kernels of each run."""
    for mix, shares in MIXES.items():
        for length, us in KERNELS.items():
            if not quick or (mix, length) in (("30/70", "1 ms"), ("5x20", "mixed"), ("10/90", "10 ms")):
                yield f"{mix} {length}", shares, us


def all_errors(quick: bool) -> dict[str, dict[str, Errors]]:
    """Every combination under both policies: on two cards at the same time, unless short kernels fill the CPUs."""
    seconds = 4.0 if quick else 10.0
    found: dict[str, dict[str, Errors]] = {policy: {} for policy in POLICIES}
    for name, mix, us in combinations(quick):
        together = [POLICIES] if min(us) >= 1000 or len(us) > 1 else [(policy,) for policy in POLICIES]
        for policies in together:
            for policy, errors in zip(policies, measure(policies, mix, us, seconds), strict=True):
                found[policy][name] = errors
    # The bound of fixed-share holds on an idle card too.
    found["fixed-share"][f"{ALONE} 25 1 ms"] = measure(("fixed-share",), (25,), (1000,), seconds)[0]
    return found


def worst_of_both(found: Mapping[str, Mapping[str, Errors]], runs: int) -> Iterator[Figure]:
    """The figures of the issue's table: the worst combination of any policy."""
    every = {f"{key}, {policy}": e for policy, errors in found.items() for key, e in errors.items()}
    yield _figure("share_error_points_max", {k: e.total for k, e in every.items()}, TARGET, runs)
    yield _figure("share_error_points_1s", {k: e.worst_1s for k, e in every.items()}, TARGET_1S, runs)


def figures(quick: bool) -> Iterator[Figure]:
    """Both policies over all combinations."""
    errors = all_errors(quick)
    yield from worst_of_both(errors, 1)
    for policy, found in errors.items():
        yield from figures_of(policy, found, 1)
