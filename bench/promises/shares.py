"""How exactly shares are kept, judged by the simulator's own trace.

Every tenant has work all the time (kernels back to back, never waiting for one). burst-share is
judged by the part of what was executed, fixed-share by the part of the wall time, over 10 s and
over every 1 s window inside them. fixed-share is a bound besides: in no second more than N % and
one kernel of the tenant's own.

`worlds` asks the same of 200 random cards, by the engine of `qgpu simulate`. Here are real programs
under the real shim: kernels of each length, alike and unlike, and what the engine does not model,
copies and the driver's context switches among processes of one job.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.harness.figures import Figure
from bench.harness.scene import Actor, Scene, calm_play, endless
from gres.config.site import JobClass
from simulator.judge import shares as sh

S = 1_000_000_000
SWITCH_US = 50
# so slow that a copy of COPY takes as long as a kernel, and the machine's CPUs are not the limit
COPY_GBS, COPY = 1, "1MiB"
SECONDS, FEW_SECONDS = 10.0, 4.0
SHORT_US, USUAL_US, LONG_US = 100, 1000, 10_000
MIXED_US = (SHORT_US, USUAL_US, LONG_US)
BURST, FIXED = "burst-share", "fixed-share"
ALONE = "alone"
TARGETS, TARGET_1S = {BURST: 1.5, FIXED: 2.0}, 5.0
OFFLINE_JOB, OFFLINE_PERCENT = 220, 0.1  # beside online that always has work


@dataclass(frozen=True)
class Mix:
    """Tenants on one card under a policy.

    `each_us`: the longest kernel of each of them. `beside`: tenants on the card that are
    not among the shares.
    """

    name: str
    policy: str
    actors: Sequence[Actor]
    each_us: Sequence[float]
    beside: Sequence[Actor] = ()

    @property
    def shares(self) -> dict[int, float]:
        """What it is judged by."""
        return {a.job_id: float(a.share) for a in self.actors}

    @property
    def kernel_us(self) -> dict[int, float]:
        """The longest kernel of each tenant."""
        return {a.job_id: us for a, us in zip(self.actors, self.each_us, strict=True)}

    def on_card(self, card: int) -> Mix:
        """The same on another card of a node."""

        def moved(actors: Sequence[Actor]) -> list[Actor]:
            return [replace(a, job_id=a.job_id + 100 * card, card=card) for a in actors]

        return replace(self, actors=moved(self.actors), beside=moved(self.beside))


def tenants(
    shares: Sequence[int], *lengths_us: float, job_class: JobClass = "offline"
) -> list[Actor]:
    """Tenants with these shares and kernels, always at work."""
    return [
        Actor(200 + i, job_class, share, (*endless(*lengths_us), "--seed", str(i)))
        for i, share in enumerate(shares)
    ]


def alike(name: str, policy: str, shares: Sequence[int], *lengths_us: float) -> Mix:
    """Tenants with the same kernels."""
    return Mix(name, policy, tenants(shares, *lengths_us), [max(lengths_us)] * len(shares))


def unlike(name: str, policy: str, shares: Sequence[int], lengths_us: Sequence[float]) -> Mix:
    """Tenants each of which has kernels of another length."""
    return Mix(
        name, policy, [tenants(shares, us)[i] for i, us in enumerate(lengths_us)], lengths_us
    )


def copies() -> Mix:
    """One tenant has a copy each way beside each kernel."""
    small, large = tenants((30, 70), USUAL_US)
    args = (*small.args, "--kernels-per-request", "1", "--copy", COPY)
    return Mix("30/70, the 30 copies", BURST, [replace(small, args=args), large], [USUAL_US] * 2)


def processes() -> Mix:
    """One tenant has several processes."""
    small, large = tenants((30, 70), USUAL_US)
    return Mix("30/70, the 30 in 4", BURST, [replace(small, procs=4), large], [USUAL_US] * 2)


def online() -> Mix:
    """Online among online, beside an offline job that should get nothing."""
    two = tenants((30, 70), USUAL_US, job_class="online")
    offline = Actor(OFFLINE_JOB, "offline", 100, endless(USUAL_US))
    return Mix("30/70 online", BURST, two, [USUAL_US] * 2, [offline])


def all_runs() -> list[list[Mix]]:
    """What runs at the same time, each on a card of its own. A card of kernels of 0.1 ms fills the
    CPUs of a small machine, so one of long kernels is beside it.
    """
    return [
        [
            alike("10/90 0.1 ms", BURST, (10, 90), SHORT_US),
            alike("30/70 10 ms", FIXED, (30, 70), LONG_US),
        ],
        [
            alike("10/90 0.1 ms", FIXED, (10, 90), SHORT_US),
            alike("30/70 10 ms", BURST, (30, 70), LONG_US),
        ],
        [
            alike("5x20 1 ms", BURST, (20,) * 5, USUAL_US),
            alike("25/75 mixed", FIXED, (25, 75), *MIXED_US),
        ],
        [
            alike("25/75 mixed", BURST, (25, 75), *MIXED_US),
            alike("5x20 1 ms", FIXED, (20,) * 5, USUAL_US),
        ],
        [
            unlike("30/70 0.1 ms beside 10 ms", FIXED, (30, 70), (SHORT_US, LONG_US)),
            alike(f"{ALONE} 25 1 ms", FIXED, (25,), USUAL_US),
        ],
        [unlike("30/70 10 ms beside 0.1 ms", BURST, (30, 70), (LONG_US, SHORT_US)), online()],
        [copies(), processes()],
    ]


@dataclass(frozen=True)
class Errors:
    """The share errors of one run in points, and its price."""

    total: float
    worst_1s: float
    price: sh.Price
    above_1s: float = 0.0  # of fixed-share: beyond N % and one kernel of the tenant's own


def judge(scene: Scene, shares: Mapping[int, float], policy: str) -> Errors:
    """The errors of these tenants in a run in which all were backlogged from scene.start to
    scene.end.
    """
    rule, span = sh.RULES[policy], (scene.start, scene.end)
    served = {job: scene.served[job] for job in shares}
    points = sh.errors(served, shares, *span, rule)
    within = sh.worst_window(served, shares, span, min(S, span[1] - span[0]), rule)
    return Errors(
        sh.worst(points, scene.start).points,
        within.points,
        sh.price(scene.of(*shares), *span, SWITCH_US * 1000),
    )


def above_1s(scene: Scene, mix: Mix) -> float:
    """Points by which the worst tenant in its worst second is beyond its share and one of its own
    kernels.
    """
    span = (scene.start, scene.end)
    window = min(S, span[1] - span[0])
    return max(
        sh.worst_window(
            {job: scene.served[job]}, {job: share}, span, window, sh.fixed_rule, "above"
        ).points
        - 100 * mix.kernel_us[job] * 1000 / window
        for job, share in mix.shares.items()
    )


def of_turns(scene: Scene, jobs: Iterable[int]) -> Scene:
    """The same scene by the arbiter's quanta of the card.

    A job's copies are work of its quantum like its kernels. So are changes of context among
    processes of one job, which the driver makes.
    """
    owner = {pid: job for job in jobs for pid in scene.pids[job]}
    spans = scene.of(*jobs)
    joined = [
        after._replace(t_start=before.t_end)
        if before.pid != after.pid
        and owner[before.pid] == owner[after.pid]
        and 0 <= after.t_start - before.t_end <= SWITCH_US * 1000
        else after
        for before, after in pairwise(spans)
    ]
    pieces = [*spans[:1], *joined, *scene.copies]
    return replace(scene, served=sh.services(pieces, {job: scene.pids[job] for job in jobs}))


def outcome(scene: Scene, mix: Mix) -> Errors:
    """The result of one mix by the trace of a scene. A bound is of what was executed."""
    found = judge(of_turns(scene, mix.shares), mix.shares, mix.policy)
    return replace(found, above_1s=above_1s(scene, mix)) if mix.policy == FIXED else found


def run(together: Sequence[Mix], seconds: float) -> Scene:
    """These mixes, each of them on a card of its own."""
    policies = {
        card: {"policy_offline": mix.policy, "policy_online": mix.policy}
        for card, mix in enumerate(together)
    }
    actors = [actor for mix in together for actor in (*mix.actors, *mix.beside)]
    options = ("--switch-us", str(SWITCH_US), "--copy-gbs", str(COPY_GBS))
    return calm_play(
        actors, seconds, cards=len(together), card_settings=policies, sim_options=options
    )


def _figure(
    name: str,
    errors: Mapping[str, Errors],
    value: Callable[[Errors], float],
    target: float | None,
    unit: str = "points",
) -> Figure:
    found = {key: value(e) for key, e in errors.items()}
    worst = max(found, key=lambda key: found[key])
    spread = f"(worst at {worst}; median of {len(found)} {statistics.median(found.values()):.2f})"
    return Figure(name, found[worst], unit, target, "<=", 1, spread, detail=found)


def figures_of(policy: str, found: Mapping[str, Errors]) -> Iterator[Figure]:
    """The figures over all mixes of one policy."""
    short = policy.removesuffix("-share")
    yield _figure(f"share_error_points_max_{short}", found, lambda e: e.total, TARGETS[policy])
    yield _figure(f"share_error_points_1s_{short}", found, lambda e: e.worst_1s, TARGET_1S)
    if policy == FIXED:
        yield _figure("fixed_share_above_1s_and_a_kernel", found, lambda e: e.above_1s, 0.0)
    shared = {name: e for name, e in found.items() if not name.startswith(ALONE)}
    yield _figure(f"switches_per_s_{short}", shared, lambda e: e.price.switches_per_s, None, "1/s")
    yield _figure(f"drain_loss_percent_{short}", shared, lambda e: e.price.drain_percent, None, "%")


def beside_online(scene: Scene, offline: Actor) -> Figure:
    """What an offline job gets while one of two online jobs always has work: nothing."""
    busy = scene.served[offline.job_id].within(scene.start, scene.end)
    part = 100 * busy / (scene.end - scene.start)
    return Figure("offline_percent_beside_busy_online", part, "%", OFFLINE_PERCENT, "<=", 1)


def figures(quick: bool) -> Iterator[Figure]:
    """Both policies over all mixes."""
    found: dict[str, dict[str, Errors]] = {policy: {} for policy in TARGETS}
    for mixes in all_runs():
        placed = [mix.on_card(card) for card, mix in enumerate(mixes)]
        scene = run(placed, FEW_SECONDS if quick else SECONDS)
        for mix in placed:
            found[mix.policy][mix.name] = outcome(scene, mix)
            yield from (beside_online(scene, job) for job in mix.beside)
    for policy, errors in found.items():
        yield from figures_of(policy, errors)
