"""Drawn worlds on the real chain: arbiter, shim and simulated card, in real time, compared with
what the engine says of them.

The engine of `qgpu simulate` stands for the chain where 200 worlds are judged. Here the worlds of
the judged seeds that the chain can play are played, the first ones in order of seed. `unplayable`
says what rules a world out.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice

import click

from bench.harness.figures import Figure
from bench.harness.scene import START_S, Actor, Scene, endless, kernels, play, rig
from bench.worlds.draw import without_offline, world
from bench.worlds.judge import LEAST_REQUESTS, Raw, percentile
from bench.worlds.worlds import JUDGING
from gres.config.site import JobClass
from gres.units import Duration
from simulator.judge import evaluate as ev
from simulator.whatif.simtrace import CardTrace, Latency, Requests, TenantTrace, Trace
from simulator.whatif.simulate import run_program

WORLDS, FEW = 20, 3
DRAWS = 9  # of the engine: by chance alone its own runs differ
LEAST_TENANTS = 2
MOST_TENANTS, MOST_PROCESSES = 4, 6  # two cores play them all
LEAST_KERNEL_NS = 50_000  # in the mean: launches of shorter ones need a core each
LEAST_PAUSE_NS = 1_000_000  # a program that sleeps wakes up 0.1 ms late
FIRST_JOB = 401
TRIES = 3  # of a world: the machine may be too busy to begin


def tenant_unplayable(tenant: TenantTrace) -> str:
    """Why the chain's program cannot do what this tenant does; empty: it can."""
    lengths = [kernel.ns for kernel in tenant.kernel or []]
    if tenant.halted or tenant.lies:
        return "a tenant stalls or lies"
    if not lengths or sum(lengths) < LEAST_KERNEL_NS * len(lengths):
        return "kernels are short"
    if 0 < tenant.pause.ns < LEAST_PAUSE_NS:
        return "pauses are short"
    if tenant.job_class == "online" and (tenant.start.ns or tenant.stop):
        return "an online tenant comes or goes"
    if isinstance(tenant.load, Requests):
        return requests_unplayable(tenant, tenant.load)
    return ""


def requests_unplayable(tenant: TenantTrace, load: Requests) -> str:
    """The same of one that answers requests."""
    if load.every:
        return "requests come in a rhythm"
    if tenant.pause.ns or tenant.processes > 1:
        return "requests have pauses, or several processes"
    return ""


def unplayable(trace: Trace) -> str:
    """Why the chain cannot play a world; empty: it can."""
    if not LEAST_TENANTS <= len(trace.tenants) <= MOST_TENANTS:
        return "one tenant, or many"
    if sum(tenant.processes for tenant in trace.tenants) > MOST_PROCESSES:
        return "many processes"
    return next(filter(None, map(tenant_unplayable, trace.tenants)), "")


def whole(length: Duration, unit_ns: int) -> Duration:
    """As the card's settings have it."""
    return Duration(max(1, round(length.ns / unit_ns)) * unit_ns)


def playable(trace: Trace) -> Trace:
    """The world with settings that a card has, and wake-ups of a usual machine: the chain's own are
    not drawn.
    """
    (card,) = trace.cards
    release, _ = card.release()
    settings = {
        "idle_release": whole(release, 10**6),
        "slice": whole(card.slice, 1000),
        "window": whole(card.window, 1000),
        "latency": Latency(),
    }
    return trace.model_copy(update={"cards": [card.model_copy(update=settings)]})


def chosen(number: int) -> list[int]:
    """The first seeds of the judged set whose worlds the chain can play."""
    return list(islice((seed for seed in count(JUDGING) if not unplayable(world(seed))), number))


def arguments(tenant: TenantTrace) -> tuple[str, ...]:
    """Options of the workload."""
    lengths = [kernel.ns / 1000 for kernel in tenant.kernel or []]
    if isinstance(tenant.load, Requests):
        rate, each = str(tenant.load.per_second), str(tenant.load.kernels)
        return (*kernels(*lengths), "--kernels-per-request", each, "--poisson", rate)
    if tenant.pause.ns:
        gap = ("--gap", str(tenant.pause.seconds))
        return (*kernels(*lengths), "--kernels-per-request", "1", *gap)
    return endless(*lengths)


def actor(number: int, tenant: TenantTrace) -> Actor:
    """The job of a tenant."""
    stop = tenant.stop.seconds - tenant.start.seconds if tenant.stop else 0.0
    return Actor(
        FIRST_JOB + number,
        tenant.job_class,
        tenant.share,
        (*arguments(tenant), "--seed", str(number + 1)),
        procs=tenant.processes,
        after_s=tenant.start.seconds,
        for_s=stop,
    )


def scene(trace: Trace) -> Scene:
    """The world, played."""
    (card,) = trace.cards
    slice_us, switch_us = card.timeslice.ns / 1000, card.context_switch.ns / 1000
    sim = ("--slice-us", str(slice_us), "--switch-us", str(switch_us))
    actors = [actor(i, tenant) for i, tenant in enumerate(trace.tenants)]
    for left in reversed(range(TRIES)):
        try:
            with rig(sim_options=sim, settings=settings(card)) as node:
                return play(node, actors, trace.duration.seconds)
        except RuntimeError:
            if not left:
                raise
    raise AssertionError


def settings(card: CardTrace) -> dict[str, object]:
    """Of the card, as the arbiter takes them."""
    return {
        "policy_online": card.policy.online,
        "policy_offline": card.policy.offline,
        "idle_release_ms": card.release()[0].ns // 10**6,
        "slice_us": card.slice.ns // 1000,
        "window_us": card.window.ns // 1000,
    }


@dataclass(frozen=True)
class Outcome:
    """What the tenants of a world got: the busy part of its time in percent, latencies of their
    requests, and the times until offline had left the card.
    """

    trace: Trace
    busy: Sequence[float]
    latencies_us: Sequence[Sequence[float]]
    freed_us: float | None

    def of_class(self, job_class: JobClass) -> float:
        """The busy part of a class."""
        pairs = zip(self.trace.tenants, self.busy, strict=True)
        return sum(busy for tenant, busy in pairs if tenant.job_class == job_class)

    def p99_us(self, number: int) -> float | None:
        """Of a tenant's requests, if there are enough."""
        found = self.latencies_us[number]
        return percentile(found, 99) if len(found) >= LEAST_REQUESTS else None


def engine(trace: Trace) -> Outcome:
    """What the engine says."""
    raw: Raw = run_program(trace, "--requests", jobs=1)
    return Outcome(
        trace,
        [100 * tenant["busy_ns"] / trace.duration.ns for tenant in raw["tenants"]],
        [[ns / 1000 for ns in tenant["latencies_ns"]] for tenant in raw["tenants"]],
        raw["cards"][0]["freed_p99_ns"] / 1000 if raw["cards"][0]["freed"] else None,
    )


def freed_us(trace: Trace, found: Scene) -> float | None:
    """p99 of the times from online's call to offline's last end, where offline was on the card."""
    jobs: dict[str, list[int]] = {"online": [], "offline": []}
    for i, tenant in enumerate(trace.tenants):
        jobs[tenant.job_class].append(FIRST_JOB + i)
    gap_ns = max(1, trace.cards[0].release()[0].ns // 2)
    calls = [e["start_ns"] for job in jobs["online"] for e in found.logged[job] if "burst" in e]
    bursts = ev.with_calls(ev.bursts(found.of(*jobs["online"]), gap_ns), calls, gap_ns)
    frees = [us for us in ev.card_free_us(bursts, found.of(*jobs["offline"])) if us > 0]
    return percentile(frees, 99) if frees else None


def chain(trace: Trace) -> Outcome:
    """What the chain did. Offline's time begins with the first launch of all."""
    found = scene(trace)
    begin = found.start - int(START_S * 1e9)
    jobs = [FIRST_JOB + i for i in range(len(trace.tenants))]
    ends = begin + trace.duration.ns
    return Outcome(
        trace,
        [100 * found.served[job].within(begin, ends) / trace.duration.ns for job in jobs],
        [found.latencies_us(job) for job in jobs],
        freed_us(trace, found),
    )


@dataclass(frozen=True)
class Pair:
    """A figure of the chain, and those of the engine with several draws."""

    real: float
    said: Sequence[float]

    @property
    def apart(self) -> float:
        """From the engine's median."""
        return self.real - statistics.median(self.said)

    @property
    def beyond(self) -> float:
        """How far outside of what the engine says it is."""
        return max(0.0, self.real - max(self.said), min(self.said) - self.real)

    def __str__(self) -> str:
        low, high = min(self.said), max(self.said)
        return f"{self.real:.3g} ({low:.3g} {statistics.median(self.said):.3g} {high:.3g})"


@dataclass(frozen=True)
class Compared:
    """The chain and the engine in one world: by kind of figure."""

    seed: int
    pairs: Mapping[str, Sequence[Pair]]

    def line(self) -> str:
        """For a person: the chain's, and the engine's least, median and largest one."""
        parts = (f"{name} {'; '.join(map(str, found))}" for name, found in self.pairs.items())
        return f"world {self.seed}: " + ", ".join(parts)


def p99_ratio(whole: Outcome, alone: Outcome) -> float | None:
    """The worst p99 of online's requests over that without offline."""
    pairs = [(whole.p99_us(i), alone.p99_us(i)) for i in range(len(alone.trace.tenants))]
    return max((with_it / usual for with_it, usual in pairs if with_it and usual), default=None)


def pair(real: float | None, said: Sequence[float | None]) -> list[Pair]:
    """One, if there are figures."""
    numbers = [value for value in said if value is not None]
    return [] if real is None or not numbers else [Pair(real, numbers)]


def drawn(trace: Trace) -> list[Outcome]:
    """The engine's outcomes with other arrivals and kernels."""
    return [
        engine(trace.model_copy(update={"seed": trace.seed + draw * 10**6}))
        for draw in range(DRAWS)
    ]


def compare(seed: int) -> Compared:
    """Play the world of a seed, and its online tenants alone where they have requests."""
    trace = playable(world(seed))
    online = without_offline(trace)
    real, said = chain(trace), drawn(trace)
    shares = zip(real.busy, zip(*(each.busy for each in said), strict=True), strict=True)
    found = {"share": [Pair(busy, others) for busy, others in shares]}
    if any(tenant.job_class == "offline" for tenant in trace.tenants):
        offline = [each.of_class("offline") for each in said]
        found["offline"] = pair(real.of_class("offline"), offline)
    found["freed_us"] = pair(real.freed_us, [each.freed_us for each in said])
    asked = any(tenant.load != "endless" for tenant in online.tenants)
    if asked and len(online.tenants) < len(trace.tenants):
        alone = chain(online)
        ratios = [p99_ratio(*both) for both in zip(said, drawn(online), strict=True)]
        found["p99_ratio"] = pair(p99_ratio(real, alone), ratios)
    return Compared(seed, found)


UNITS = {"share": "points", "offline": "points", "freed_us": "us", "p99_ratio": ""}


def figure(name: str, unit: str, found: Sequence[tuple[float, int]]) -> Figure:
    """p95 of the sizes of differences; the worst ones with their seeds beside it."""
    ranked = sorted(found, reverse=True)
    values = [value for value, _ in ranked]
    worst = ", ".join(f"{value:.3g} (seed {seed})" for value, seed in ranked[:3])
    return Figure(
        f"worlds_real_{name}_p95",
        percentile(values, 95),
        unit,
        None,
        "<=",
        len(values),
        f"(median {statistics.median(values):.3g}, worst {worst})",
    )


def compared(seeds: Sequence[int]) -> tuple[list[Compared], list[int]]:
    """The worlds, and the seeds of those in which a program did not end."""
    found, hung = [], []
    for seed in seeds:
        try:
            found.append(compare(seed))
        except subprocess.TimeoutExpired as error:
            hung.append(seed)
            click.echo(f"world {seed}: a program did not end: {error}")
            continue
        click.echo(found[-1].line())
    return found, hung


def figures(quick: bool) -> Iterator[Figure]:
    """How far the chain is from what the engine says, and from all that it says by chance."""
    seeds = chosen(FEW if quick else WORLDS)
    found, hung = compared(seeds)
    worst = ", ".join(f"seed {seed}" for seed in hung)
    yield Figure("worlds_real_hung", len(hung), "worlds", 0, "<=", len(seeds), worst)
    for name, unit in UNITS.items():
        pairs = [(each, one.seed) for one in found for each in one.pairs.get(name, ())]
        if pairs:
            yield figure(f"{name}_apart", unit, [(abs(each.apart), seed) for each, seed in pairs])
            yield figure(f"{name}_beyond", unit, [(each.beyond, seed) for each, seed in pairs])
