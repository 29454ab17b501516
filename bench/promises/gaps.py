"""Does offline fill the gaps of services, and what does online pay?

Random services beside random offline tenants through `qgpu simulate`, with `idle_release: auto` and
with fixed values. The best fixed value that keeps online's limits in a scenario is the oracle. The
seeds were never used to choose a constant. *Captured*: services that were captured from programs (a
decoder, two encoders, images), beside a captured training and kernels of 200 us.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from bench.harness.figures import Figure
from bench.worlds.replayed import captured, program
from simulator.judge.evaluate import percentile
from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import run_program

JUDGED, QUICK = range(1000, 1024), range(1000, 1006)
SECONDS = 20
AUTO, RULE = "auto", "100ms"
FIXED = (RULE, "20ms", "5ms", "1ms", "0s")
RATES = (2, 5, 20, 50, 200)
# ms: card free at p99; mean of online's latency above alone
FREE_MS, MEAN_MS = 1.0, 0.5
ENOUGH = 200  # preemptions for a p99
# captured programs: services, and the parts of the card that they ask for
SERVICES, PARTS = ("infer", "encoder", "decode", "images"), (0.05, 0.3)
TRAINING, KERNEL = "train", "200us"


@dataclass(frozen=True)
class Scenario:
    """A card: its online and offline tenants, as a trace has them."""

    seed: int
    rate: int  # requests per second of each service
    short: bool  # offline's kernels are 500 us at most
    paused: bool  # online pauses inside its requests
    online: tuple[dict[str, Any], ...]
    offline: tuple[dict[str, Any], ...]
    programs: tuple[str, ...] = ()  # captured ones that its tenants run


@dataclass(frozen=True)
class Played:
    """One run: parts of the time, and milliseconds."""

    use: float  # part of the time in which the card worked
    free_ms: float  # p99 from online's launch to the card free of offline
    preemptions: int
    mean_ms: float
    p99_ms: float


def draw(seed: int) -> Scenario:
    """The scenario of a seed. Requests take half of the time at most."""
    dice = random.Random(seed)
    rate, short = dice.choice(RATES), dice.random() < 0.7
    kernel_us = dice.choice((100, 200))
    most = min(200, 500_000 // rate // kernel_us)
    paused = dice.random() < 0.4
    service = {
        "class": "online",
        "share": 20,
        "kernel": f"{kernel_us}us",
        "pause": f"{dice.randint(20, 300)}us" if paused else "0s",
        "load": {"per_second": rate, "kernels": dice.randint(min(10, most), max(10, most // 4))},
    }
    lengths = ("50us", "200us", "500us") if short else ("200us", "5ms", "20ms")
    offline = tuple(
        {"name": f"o{i}", "class": "offline", "share": 50, "kernel": dice.choice(lengths)}
        for i in range(dice.choice((1, 1, 2, 4, 8)))
    )
    return Scenario(seed, rate, short, paused, ({"name": "s", **service},), offline)


def replay(seed: int, name: str, part: float) -> Scenario:
    """A captured service that asks for this part of the card."""
    one = captured(name)
    rate = one.requests * part / (one.busy_ns / 1e9)
    load = {"per_second": rate, "kernels": max(1, round(one.kernels / one.requests))}
    service = {"name": "s", "class": "online", "share": 20, "program": name, "load": load}
    both = ({"kernel": KERNEL}, {"program": TRAINING})
    offline = tuple(
        {"name": f"o{i}", "class": "offline", "share": 50, **what} for i, what in enumerate(both)
    )
    return Scenario(seed, round(rate), True, True, (service,), offline, (name, TRAINING))


def play(scenario: Scenario, release: str, alone: bool = False) -> Played:
    """Run it with this idle_release; `alone`: without the offline tenants."""
    body = {
        "duration": f"{SECONDS}s",
        "seed": scenario.seed,
        "cards": [{"idle_release": release}],
        "programs": [program(name) for name in scenario.programs],
        "tenants": [*scenario.online, *(() if alone else scenario.offline)],
    }
    raw = run_program(Trace.model_validate(body), "--requests")
    (card,) = raw["cards"]
    waits = [ns / 1e6 for t in raw["tenants"] for ns in t["latencies_ns"]]
    return Played(
        card["busy_ns"] / raw["duration_ns"],
        card["freed_p99_ns"] / 1e6,
        card["freed"],
        fmean(waits),
        percentile(waits, 99),
    )


def oracle(runs: Mapping[str, Played], alone: Played, exact: bool) -> str:
    """The fixed value with the most card use among those that keep online's limits.

    `exact`: the mean can be compared with alone. With pauses the arrivals of two runs differ.
    """
    kept = [
        name
        for name in FIXED
        if runs[name].free_ms <= FREE_MS
        and (not exact or runs[name].mean_ms <= alone.mean_ms + MEAN_MS)
    ]
    return max(kept or [RULE], key=lambda name: runs[name].use)


@dataclass(frozen=True)
class Outcome:
    """A scenario in all its runs."""

    scenario: Scenario
    alone: Played
    runs: Mapping[str, Played]

    @property
    def auto(self) -> Played:
        return self.runs[AUTO]

    @property
    def use_ratio(self) -> float:
        """Card use of auto over that of the oracle."""
        best = oracle(self.runs, self.alone, not self.scenario.paused)
        return self.auto.use / self.runs[best].use


def _figure(
    name: str, found: Mapping[int, float], unit: str, target: float, least: bool, what: str
) -> Figure:
    """The worst of all scenarios, by seed."""
    worst = (min if least else max)(found, key=lambda seed: found[seed])
    note = f"(worst of {len(found)} at seed {worst}; {what})"
    detail = {str(seed): round(value, 3) for seed, value in found.items()}
    how: Literal["<=", ">="] = ">=" if least else "<="
    return Figure(name, found[worst], unit, target, how, len(found), note, detail=detail)


def judged(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """The figures of all scenarios; those without any value are left out."""
    plain = [o for o in outcomes if not o.scenario.paused and o.scenario.short]
    ratio = {o.scenario.seed: o.use_ratio for o in outcomes}
    rule = {o.scenario.seed: o.auto.use / o.runs[RULE].use for o in outcomes}
    rare = {o.scenario.seed: o.auto.use for o in plain if o.scenario.rate < 50}
    often = {o.scenario.seed: o.auto.use for o in plain if o.scenario.rate == 200}
    free = {o.scenario.seed: o.auto.free_ms for o in plain if o.auto.preemptions >= ENOUGH}
    mean = {o.scenario.seed: o.auto.mean_ms - o.alone.mean_ms for o in plain}
    p99 = {o.scenario.seed: o.auto.p99_ms / o.alone.p99_ms for o in plain}
    for values, name, unit, target, least, what in (
        (ratio, "gaps_use_ratio", "", 0.9, True, "card use over the best fixed value's"),
        (rule, "gaps_rule_ratio", "", 1.0, True, "card use over that of 100ms"),
        (rare, "gaps_use_rare", "", 0.90, True, "short kernels, rarer than 50/s"),
        (often, "gaps_use_often", "", 0.85, True, "short kernels, 200/s"),
        (free, "gaps_card_free_ms", "ms", FREE_MS, False, "p99, short kernels"),
        (mean, "gaps_online_mean_ms", "ms", MEAN_MS, False, "above alone, no pauses"),
        (p99, "gaps_online_p99_ratio", "", 1.12, False, "over alone, no pauses"),
    ):
        if values:
            yield _figure(name, values, unit, target, least, what)
    idle = [o.runs[RULE].use for o in plain if o.scenario.rate >= 20]
    if idle:
        note = f"(the most with {RULE}; short kernels, 20/s and more)"
        yield Figure("gaps_use_control", max(idle), "", 0.85, ">=", len(idle), note, control=True)


def of_captured(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """The same of captured services."""
    names = [f"{o.scenario.programs[0]} {o.scenario.rate}/s" for o in outcomes]
    use = dict(zip(names, (o.use_ratio for o in outcomes), strict=True))
    p99 = dict(zip(names, (o.auto.p99_ms / o.alone.p99_ms for o in outcomes), strict=True))
    for found, name, target, least in (
        (use, "gaps_captured_use_ratio", 0.9, True),
        (p99, "gaps_captured_p99_ratio", 1.12, False),
    ):
        worst = (min if least else max)(found, key=lambda key: found[key])
        note = f"(worst at {worst}; {', '.join(f'{k}: {v:.2f}' for k, v in found.items())})"
        how: Literal["<=", ">="] = ">=" if least else "<="
        yield Figure(name, found[worst], "", target, how, len(found), note)


def outcome(scenario: Scenario) -> Outcome:
    """Play it in all ways."""
    runs = {release: play(scenario, release) for release in (*FIXED, AUTO)}
    return Outcome(scenario, play(scenario, AUTO, alone=True), runs)


def figures(quick: bool) -> Iterator[Figure]:
    """All scenarios of the judged set."""
    yield from judged([outcome(draw(seed)) for seed in (QUICK if quick else JUDGED)])
    cases = [(name, part) for name in SERVICES for part in PARTS]
    yield from of_captured([outcome(replay(i, *case)) for i, case in enumerate(cases)])
