"""Shares where tenants are not alike: long kernels beside short ones, copies beside kernels,
several processes, many tenants, some that come and go, online among online, one alone on an idle
card.

The table of `shares` has offline tenants that all do the same. Here each line is of ten seconds,
judged by the same judge and the same targets. What fixed-share promises as a bound is judged in two
lines of its own: no tenant ever above its N + 1 % of the run, nor above N % and one kernel of its
own in any second. Runs that come near a target, on either side of it, are made three times, as
there: the median of the errors counts, and the worst of what is a bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.harness.figures import NEAR, Figure, enough_runs
from bench.harness.scene import Actor, Scene, calm_play, endless
from bench.promises.shares import SWITCH_US, TARGET, TARGET_1S, Errors, S, judge
from bench.promises.shares import of_runs as errors_of_runs
from gres.config.site import JobClass
from simulator.judge import shares as sh

OFFLINE_BESIDE_ONLINE = 0.1  # percent of the time in which online always has work
# so slow that a copy of COPY takes as long as a kernel, and the machine's CPUs are not the limit
COPY_GBS = 1
COPY = "1MiB"
LONGEST_JUDGED_1S_US = 10_000
SHORT_US, LONG_US = 100, 10_000
FIXED = "fixed-share"
TOGETHER = 2  # cards at the same time: kernels of a millisecond leave the CPUs idle


@dataclass(frozen=True)
class Mix:
    """One run: tenants on one card under a policy.

    `visitors` come and go, all others always have work. `each_us`: the longest kernel of each
    tenant, where they differ.
    """

    name: str
    policy: str
    actors: Sequence[Actor]
    longest_us: float = 1000
    each_us: Sequence[float] = ()

    @property
    def figure(self) -> str:
        """The name of its figure."""
        return "mix_error_" + self.name.replace("/", "_").replace(" ", "_")

    @property
    def shares(self) -> dict[int, float]:
        """Weights by which it is judged."""
        equal = self.policy == "best-effort"
        return {a.job_id: 1.0 if equal else float(a.share) for a in self.actors if a.share}

    @property
    def kernel_us(self) -> dict[int, float]:
        """The longest kernel of each tenant."""
        longest = self.each_us or [self.longest_us] * len(self.actors)
        return {a.job_id: us for a, us in zip(self.actors, longest, strict=True)}

    @property
    def fluctuates(self) -> bool:
        """Whether a tenant comes later or leaves earlier."""
        return any(a.after_s or a.for_s for a in self.actors)


def tenants(
    shares: Sequence[int], *lengths_us: float, job_class: JobClass = "offline"
) -> list[Actor]:
    """Tenants with these shares and kernels, always at work."""
    return [
        Actor(200 + i, job_class, share, (*endless(*lengths_us), "--seed", str(i)))
        for i, share in enumerate(shares)
    ]


def unlike(name: str, policy: str, shares: Sequence[int], lengths_us: Sequence[float]) -> Mix:
    """Tenants each of which has kernels of another length."""
    actors = [tenants(shares, us)[i] for i, us in enumerate(lengths_us)]
    return Mix(
        f"{name} {policy.removesuffix('-share')}",
        policy,
        actors,
        max(lengths_us),
        tuple(lengths_us),
    )


def alone(lengths_us: Sequence[float]) -> list[Mix]:
    """One tenant with fixed-share on a card that is idle otherwise: its bound holds there too."""
    return [
        Mix(f"alone 25 {us / 1000:g} ms fixed", FIXED, tenants((25,), us), longest_us=us)
        for us in lengths_us
    ]


def copying(actor: Actor) -> Actor:
    """The same tenant with a copy each way beside each kernel."""
    args = (*actor.args, "--kernels-per-request", "1", "--copy", COPY)
    return Actor(actor.job_id, actor.job_class, actor.share, args)


def processes(actor: Actor, count: int) -> Actor:
    """The same tenant in several processes."""
    return Actor(actor.job_id, actor.job_class, actor.share, actor.args, procs=count)


def visitors(seconds: float) -> list[Actor]:
    """30 and 70 stay; two with 50 come one after the other, one with 25 comes and goes while the
    first is there.
    """
    tenth = seconds / 10
    stays = tenants((30, 70), 1000)
    when = {210: (50, 2, 3), 211: (50, 6, 2), 212: (25, 3, 1)}
    come = [
        Actor(job, "offline", share, endless(1000), after_s=0.5 + at * tenth, for_s=length * tenth)
        for job, (share, at, length) in when.items()
    ]
    return [*stays, *come]


def mixes(seconds: float) -> list[Mix]:
    """All runs, by name."""
    small, large = tenants((30, 70), 1000)
    equal = tenants((50, 50), 1000)
    found = [
        Mix("best-effort 4 processes beside 1", "best-effort", [processes(equal[0], 4), equal[1]]),
        Mix("30/70 the 30 in 4 processes", "burst-share", [processes(small, 4), large]),
        Mix("30/70 the 30 copies", "burst-share", [copying(small), large]),
        Mix("30/70 the 70 copies", "burst-share", [small, copying(large)]),
        Mix("tenants come and go", "burst-share", visitors(seconds)),
        Mix("30/70 online", "burst-share", tenants((30, 70), 1000, job_class="online")),
    ]
    for policy in ("burst-share", "fixed-share"):
        word = policy.removesuffix("-share")
        found += [
            Mix(f"16x6 1 ms {word}", policy, tenants((6,) * 16, 1000)),
            Mix(f"5/10/85 1 ms {word}", policy, tenants((5, 10, 85), 1000)),
            Mix(f"5/10/85 mixed {word}", policy, tenants((5, 10, 85), 100, 1000, 10_000), 10_000),
            Mix(f"30/70 30 ms {word}", policy, tenants((30, 70), 30_000), 30_000),
            unlike("30/70 10 ms beside 0.1 ms", policy, (30, 70), (LONG_US, SHORT_US)),
            unlike("30/70 0.1 ms beside 10 ms", policy, (30, 70), (SHORT_US, LONG_US)),
        ]
    online = tenants((30, 70), 1000, job_class="online")
    return [*found, Mix("30/70 online fixed", FIXED, online), *alone((SHORT_US, 1000, LONG_US))]


def due_points(
    shares: Mapping[int, float], present: Mapping[int, tuple[int, int]], start: int, end: int
) -> dict[int, float]:
    """Percent of [start, end) that weights give each tenant when each has work only while it is
    present.
    """
    edges = sorted(
        {start, end, *(min(max(t, start), end) for pair in present.values() for t in pair)}
    )
    due = dict.fromkeys(shares, 0.0)
    for low, high in pairwise(edges):
        there = [job for job, (come, go) in present.items() if come <= low and go >= high]
        weight = sum(shares[job] for job in there)
        for job in there:
            due[job] += 100 * (high - low) / (end - start) * shares[job] / weight
    return due


def presence(scene: Scene, job: int) -> tuple[int, int]:
    """From a job's first submission to the end of its last kernel."""
    own = scene.of(job)
    return min(span.t_submit for span in own), max(span.t_end for span in own)


def come_and_go(scene: Scene, shares: Mapping[int, float]) -> float:
    """Share error in points over the run where some have work only at times."""
    span = (scene.start, scene.end)
    due = due_points(shares, {job: presence(scene, job) for job in shares}, *span)
    busy = {job: scene.served[job].within(*span) for job in shares}
    return max(abs(100 * busy[job] / sum(busy.values()) - due[job]) for job in shares)


def on_card(mix: Mix, card: int) -> Mix:
    """The same mix on another card of a node."""
    actors = [replace(a, job_id=a.job_id + 100 * card, card=card) for a in mix.actors]
    return replace(mix, actors=actors)


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
    return replace(
        scene,
        served=sh.services(
            [*spans[:1], *joined, *scene.copies], {job: scene.pids[job] for job in jobs}
        ),
    )


@dataclass(frozen=True)
class Outcome:
    """The result of one mix. `steady` and `above_1s` are None where they are not judged."""

    total: float
    executed: float  # the error by kernels alone
    steady: Errors | None = None
    above_1s: float | None = None  # of fixed-share: beyond N % and a kernel of the tenant's own
    runs: int = 1

    def near(self, mix: Mix) -> bool:
        """Whether another run could come to the other verdict."""
        by_second = (
            self.steady.worst_1s if self.steady and mix.longest_us <= LONGEST_JUDGED_1S_US else 0.0
        )
        return self.total > NEAR * TARGET or by_second > NEAR * TARGET_1S


def of_runs(runs: Sequence[Outcome]) -> Outcome:
    """The result of several runs of one mix: the median of errors, the worst of bounds."""
    steady = [run.steady for run in runs if run.steady]
    above = [run.above_1s for run in runs if run.above_1s is not None]
    return Outcome(
        statistics.median(run.total for run in runs),
        statistics.median(run.executed for run in runs),
        errors_of_runs(steady) if steady else None,
        max(above, default=None),
        len(runs),
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


def outcome(scene: Scene, mix: Mix) -> Outcome:
    """The result of one mix by the trace of a scene."""
    if mix.fluctuates:
        total = come_and_go(of_turns(scene, mix.shares), mix.shares)
        return Outcome(total, total)
    steady = judge(of_turns(scene, mix.shares), mix.shares, mix.policy, mix.longest_us)
    executed = judge(scene, mix.shares, mix.policy, mix.longest_us)
    return Outcome(
        steady.total, executed.total, steady, above_1s(scene, mix) if mix.policy == FIXED else None
    )


def run(together: Sequence[Mix], seconds: float) -> list[Outcome]:
    """Each of these mixes on a card of its own."""
    placed = [on_card(mix, card) for card, mix in enumerate(together)]
    options = ("--switch-us", str(SWITCH_US), "--copy-gbs", str(COPY_GBS))
    policies = {
        card: {"policy_offline": mix.policy, "policy_online": mix.policy}
        for card, mix in enumerate(placed)
    }
    actors = [actor for mix in placed for actor in mix.actors]
    scene = calm_play(
        actors, seconds, cards=len(placed), card_settings=policies, sim_options=options
    )
    return [outcome(scene, mix) for mix in placed]


def settled(together: Sequence[Mix], seconds: float) -> list[Outcome]:
    """The same as `run`, of one run where that is enough."""
    runs = enough_runs(
        lambda: run(together, seconds),
        lambda found: any(seen.near(mix) for mix, seen in zip(together, found, strict=True)),
    )
    return [of_runs(each) for each in zip(*runs, strict=True)]


def beside_online(seconds: float) -> Figure:
    """What an offline job gets while one of two online jobs always has work: nothing."""
    offline = Actor(220, "offline", 100, endless(1000))
    actors = [*tenants((30, 70), 1000, job_class="online"), offline]
    scene = calm_play(actors, seconds)
    part = 100 * scene.served[220].within(scene.start, scene.end) / (scene.end - scene.start)
    return Figure("offline_percent_beside_busy_online", part, "%", OFFLINE_BESIDE_ONLINE, "<=", 1)


def line(mix: Mix, found: Outcome) -> Figure:
    """The error over all of its time."""
    note = "(weights of those who are there)"
    if steady := found.steady:
        note = f"(worst second {steady.worst_1s:.2f}; {steady.price.switches_per_s:.0f} changes/s; "
        note += f"by kernels alone {found.executed:.2f})"
    return Figure(mix.figure, found.total, "points", TARGET, "<=", found.runs, note)


def worst(name: str, found: Mapping[str, float], target: float) -> Figure:
    """The worst of several mixes, by name."""
    at = max(found, key=lambda name: found[name])
    return Figure(
        name, found[at], "points", target, "<=", len(found), f"(worst at {at})", detail=found
    )


def over_all(found: Mapping[str, tuple[Mix, Outcome]]) -> Iterator[Figure]:
    """What is judged at the worst of all mixes: the worst second, and the bound of fixed-share."""
    seconds = {
        name: seen.steady.worst_1s
        for name, (mix, seen) in found.items()
        if seen.steady and mix.longest_us <= LONGEST_JUDGED_1S_US
    }
    yield worst("mix_error_points_1s", seconds, TARGET_1S)
    above = {
        name: seen.steady.above
        for name, (mix, seen) in found.items()
        if seen.steady and mix.policy == FIXED
    }
    yield worst("mix_fixed_above_points", above, TARGET)
    within = {name: seen.above_1s for name, (_, seen) in found.items() if seen.above_1s is not None}
    yield worst("mix_fixed_above_1s_and_a_kernel", within, 0.0)


def figures(quick: bool) -> Iterator[Figure]:
    """One line per mix, and the worst of all."""
    seconds = 4.0 if quick else 10.0
    found: dict[str, tuple[Mix, Outcome]] = {}
    todo = mixes(seconds)
    for first in range(0, len(todo), TOGETHER):
        together = todo[first : first + TOGETHER]
        for mix, seen in zip(together, settled(together, seconds), strict=True):
            found[mix.name] = mix, seen
            yield line(mix, seen)
    yield from over_all(found)
    yield beside_online(seconds)
