"""How exactly shares are kept, judged by the simulator's own trace.

Every tenant has work all the time (kernels back to back, never waiting for one). burst-share is
judged by the part of what was executed, fixed-share by the part of the wall time, over 10 s and
over every 1 s window inside them.

A combination that comes near a target, on either side of it, is run three times: its errors are the
median of the three, and what fixed-share promises never to exceed is the worst of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.harness.figures import NEAR, Figure, enough_runs
from bench.harness.scene import Actor, Scene, calm_play, endless
from simulator.judge import shares as sh

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
    runs: tuple[float, ...] = ()  # `total` of each, where there were several

    @property
    def near(self) -> bool:
        """Whether another run could come to the other verdict."""
        return self.total > NEAR * TARGET or self.worst_1s > NEAR * TARGET_1S


def of_runs(runs: Sequence[Errors]) -> Errors:
    """The result of several runs of one combination: the median of
    errors, the worst of promises.
    """
    if len(runs) == 1:
        return runs[0]
    return Errors(
        statistics.median(run.total for run in runs),
        statistics.median(run.worst_1s for run in runs),
        max(run.above for run in runs),
        max(run.above_1s for run in runs),
        sorted((run.price for run in runs), key=lambda price: price.lost_percent)[len(runs) // 2],
        tuple(run.total for run in runs),
    )


def judge(scene: Scene, shares: Mapping[int, float], policy: str, longest_us: float) -> Errors:
    """The errors of these tenants in a run in which all were backlogged from scene.start to
    scene.end.
    """
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
    name: str,
    errors: Mapping[str, Errors],
    value: Callable[[Errors], float],
    target: float | None,
    unit: str = "points",
) -> Figure:
    found = {key: value(e) for key, e in errors.items()}
    worst = max(found, key=lambda key: found[key])
    runs = errors[worst].runs
    each = f", {len(runs)} runs, errors {', '.join(f'{run:.2f}' for run in runs)}" if runs else ""
    spread = f"(worst at {worst}{each}; median of all {statistics.median(found.values()):.2f})"
    return Figure(name, found[worst], unit, target, "<=", max(len(runs), 1), spread, detail=found)


def figures_of(policy: str, found: Mapping[str, Errors]) -> Iterator[Figure]:
    """The figures over all combinations of one policy."""
    short = policy.removesuffix("-share")
    yield _figure(f"share_error_points_max_{short}", found, lambda e: e.total, TARGET)
    yield _figure(f"share_error_points_1s_{short}", found, lambda e: e.worst_1s, TARGET_1S)
    if policy == "fixed-share":
        yield _figure("fixed_share_above_points_10s", found, lambda e: e.above, TARGET)
        yield _figure("fixed_share_above_1s_and_a_kernel", found, lambda e: e.above_1s, 0.0)
    shared = {k: e for k, e in found.items() if not k.startswith(ALONE)}
    yield _figure(f"switches_per_s_{short}", shared, lambda e: e.price.switches_per_s, None, "1/s")
    yield _figure(f"drain_loss_percent_{short}", shared, lambda e: e.price.drain_percent, None, "%")


def combinations(quick: bool) -> Iterator[tuple[str, tuple[int, ...], tuple[float, ...]]]:
    """Name, shares and kernels of each run."""
    for mix, shares in MIXES.items():
        for length, us in KERNELS.items():
            if not quick or (mix, length) in (
                ("30/70", "1 ms"),
                ("5x20", "mixed"),
                ("10/90", "10 ms"),
            ):
                yield f"{mix} {length}", shares, us


def settled(
    policies: Sequence[str], mix: Sequence[int], lengths: Sequence[float], seconds: float
) -> list[Errors]:
    """The same as `measure`, of one run where that is enough."""
    runs = enough_runs(
        lambda: measure(policies, mix, lengths, seconds),
        lambda each: any(errors.near for errors in each),
    )
    return [of_runs(of_policy) for of_policy in zip(*runs, strict=True)]


def all_errors(quick: bool) -> dict[str, dict[str, Errors]]:
    """Every combination under both policies: on two cards at the same time, unless short kernels
    fill the CPUs.
    """
    seconds = 4.0 if quick else 10.0
    found: dict[str, dict[str, Errors]] = {policy: {} for policy in POLICIES}
    for name, mix, us in combinations(quick):
        together = (
            [POLICIES] if min(us) >= 1000 or len(us) > 1 else [(policy,) for policy in POLICIES]
        )
        for policies in together:
            for policy, errors in zip(policies, settled(policies, mix, us, seconds), strict=True):
                found[policy][name] = errors
    # The bound of fixed-share holds on an idle card too.
    found["fixed-share"][f"{ALONE} 25 1 ms"] = settled(("fixed-share",), (25,), (1000,), seconds)[0]
    return found


def worst_of_both(found: Mapping[str, Mapping[str, Errors]]) -> Iterator[Figure]:
    """The figures of the issue's table: the worst combination of any policy."""
    every = {f"{key}, {policy}": e for policy, errors in found.items() for key, e in errors.items()}
    yield _figure("share_error_points_max", every, lambda e: e.total, TARGET)
    yield _figure("share_error_points_1s", every, lambda e: e.worst_1s, TARGET_1S)


def figures(quick: bool) -> Iterator[Figure]:
    """Both policies over all combinations."""
    errors = all_errors(quick)
    yield from worst_of_both(errors)
    for policy, found in errors.items():
        yield from figures_of(policy, found)
