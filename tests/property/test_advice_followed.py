"""Jobs that are run again as `qgpu report` says: refused nothing, and no less of the card.

A program is a list of what it holds and asks for, and of how much of a card it wants. It is run
under a grant by the few lines of `run`, into a real ledger, and then again under the advice.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st

from cli.report.advice import advice
from cli.report.model import JobReport, build
from enforcer.ledger.store import Ledger, Sample, read_usage
from gres.config.site import Config, parse_config
from gres.grant.store import Grant, GrantCard
from slurm_plugin.accounting.sacct import SacctJob
from slurm_plugin.submission import JobSubmit, Submission

GIB, MIB, SECOND = 1 << 30, 1 << 20, 10**9
STEP = 2  # seconds between two samples, as enforcer.ledger_interval
NODES = 'nodes: [{names: "n[1-2]", model: h200, count: 4, files: "/dev/nvidia[0-3]"}'
SITES = {
    "one model": "models: {h200: {memory: 80GiB, reserve: 2GiB}}\n" + NODES + "]",
    "two models": "models: {h200: {memory: 80GiB, reserve: 2GiB}, l4: {memory: 23GiB}}\n"
    f"{NODES}, {{names: n3, model: l4, count: 2, files: '/dev/nvidia[0-1]'}}]",
    "narrow": "models: {h200: {memory: 80GiB, reserve: 2GiB, context: 1500MiB}}\n"
    f"limits: {{min_share: 7, max_share: 60, min_mem: 700MiB}}\n{NODES}]",
}


def site(name: str) -> tuple[Config, JobSubmit]:
    config = parse_config(
        'version: 1\ncluster: c\nslurm: {version: "24.11", multi_card: true}\n'
        f"qos: {{online: online, offline: offline}}\n{SITES[name]}\n"
    )
    return config, JobSubmit(config)


MADE = {name: site(name) for name in SITES}


@dataclass(frozen=True)
class Step:
    """STEP seconds: the bytes that it has to hold, those of a buffer that it can do without, the
    percent of the card that it wants, and what others leave it beyond its share.
    """

    holds: int
    buffer: int
    wants: int
    left: int


@dataclass(frozen=True)
class Asked:
    """What a run is granted."""

    share: int
    cap: int
    cards: int = 1


@dataclass(frozen=True)
class Job:
    """Runs of one job, the last one ends by itself; in `moves` it goes to another card."""

    job_class: str
    runs: tuple[tuple[Step, ...], ...]
    moves: frozenset[int]


@dataclass
class Shown:
    """What happened in all runs. `tried`: the steps that were reached."""

    denied: int = 0
    most: float = 0.0
    mean: float = 0.0
    tried: list[tuple[Step, ...]] | None = None


def size(most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(1, most), st.integers(1, 5 * GIB))


STEPS = st.lists(
    st.builds(
        Step,
        size(60 * GIB),
        st.one_of(st.just(0), st.just(0), size(90 * GIB)),
        st.one_of(st.integers(0, 100), st.integers(0, 12), st.integers(0, 12)),
        st.sampled_from([0, 0, 30, 100]),
    ),
    min_size=3,
    max_size=12,
).map(tuple)
JOBS = st.builds(
    Job,
    st.sampled_from(["online", "online", "offline"]),
    st.lists(STEPS, min_size=1, max_size=2).map(tuple),
    st.frozensets(st.integers(0, 1)),
)
ASKED = st.builds(
    Asked,
    st.integers(7, 60),
    st.integers(1, 76 * 1024).map(lambda mib: max(mib, 1500) * MIB),
    st.sampled_from([1, 1, 2]),
)


def tried(steps: tuple[Step, ...], cap: int) -> tuple[Step, ...]:
    """Up to the first step that is refused what it has to hold."""
    refused = next((i for i, step in enumerate(steps) if step.holds > cap), len(steps))
    return steps[: refused + 1]


def run_once(
    ledger: Ledger, grant: Grant, steps: tuple[Step, ...], moves: bool, shown: Shown
) -> int:
    """One run into the ledger; the second in which it ended."""
    asked, now, since = grant.cards[0], grant.created_ns // SECOND, 1
    rates: list[float] = []
    names = ("busy_ns", "closed_share_ns", "launches", "denied", "mem_peak", "mem_refused")
    counts = dict.fromkeys(names, 0)
    ledger.open_grant(grant)
    for at, step in enumerate(steps):
        now += STEP
        for need in dict.fromkeys((step.holds, step.holds + step.buffer)):
            name = "mem_refused" if need > asked.mem_cap else "mem_peak"
            counts[name] = max(counts[name], need)
            counts["denied"] += need > asked.mem_cap
            shown.denied += need > asked.mem_cap
        rates.append(min(step.wants, asked.share + step.left))
        counts["busy_ns"] += int(rates[-1] * STEP * SECOND // 100)
        counts["closed_share_ns"] += STEP * SECOND * (rates[-1] < step.wants)
        counts["launches"] += rates[-1] > 0
        samples = [Sample(grant.job_id, card.uuid, 1, since, **counts) for card in grant.cards]
        ledger.record(samples, now * SECOND)
        if moves and at == 6 and len(grant.cards) == 1:
            note_use(rates, shown)
            card = replace(
                asked, uuid="GPU-9", index=3, moved_from=asked.uuid, moved_ns=now * SECOND
            )
            grant, rates, since = replace(grant, cards=(card,)), [], since + 1
            ledger.open_grant(grant)
            counts = dict.fromkeys(names, 0) | {"mem_peak": min(step.holds, asked.mem_cap)}
    ledger.end(grant.job_id, "epilog", now * SECOND)
    note_use(rates, shown)
    return now


def note_use(rates: list[float], shown: Shown) -> None:
    """Of a grant of 10 s or more: a shorter one shows nothing."""
    if len(rates) >= 5:
        shown.mean = max(shown.mean, sum(rates) / len(rates))
        shown.most = max(shown.most, *(sum(rates[i : i + 5]) / 5 for i in range(len(rates) - 4)))


def run(job: Job, asked: Asked, config: Config) -> tuple[JobReport, Shown]:
    """All runs of the job, and the report of it."""
    shown = Shown(tried=[tried(steps, asked.cap) for steps in job.runs])
    cards = tuple(
        GrantCard(f"GPU-{n}", n, n, asked.share, asked.cap, 80 * GIB) for n in range(asked.cards)
    )
    words = ("n1", "active", job.job_class)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.sqlite"
        ledger, begin = Ledger(path), 1000
        for at, steps in enumerate(shown.tried or ()):
            start = begin
            more = (start * SECOND, "", cards, "/r", "/d", "/s")
            grant = Grant(7, 1, 1, *words, *more)  # type: ignore[arg-type]
            begin = run_once(ledger, grant, steps, at in job.moves, shown) + 100
        ledger.close()
        rows = read_usage(path, [7])
    done = SacctJob("7", 7, "a", "COMPLETED", begin - 100 - start, ("n1",), job.job_class, "", {})
    (report,) = build([done], rows, (begin + 9) * SECOND, config=config)
    return report, shown


REQUEST = r"--gres=(?:gpu:\S+?|qgpu:\S+?)(?: --qgpu-cards=\d)?(?= would do| or more|\.)"


def request_of(lines: list[str]) -> str:
    """The one request that is named, or nothing."""
    named = [line for line in lines if "--gres" in line]
    assert len(named) <= 1, named
    if not named or "never used" in named[0]:
        return ""
    (found,) = re.findall(REQUEST, named[0])
    return str(found)


def next_time(request: str, rules: JobSubmit, job_class: str) -> Asked | None:
    """What Slurm's rules make of it; None for a whole card."""
    gres, _, cards = request.removeprefix("--gres=").partition(" --qgpu-cards=")
    decision = rules.decide(Submission(gres=gres, qos=job_class, cards=cards or None))
    if not gres.startswith("qgpu:"):
        return None
    assert decision.tag is not None and decision.tag.share and decision.tag.mem
    return Asked(decision.tag.share, decision.tag.mem * MIB, int(cards or 1))


@pytest.mark.parametrize("name", SITES)
@examples(200)
@given(job=JOBS, asked=ASKED)
def test_who_follows_the_advice_is_refused_nothing_and_gets_no_less(
    name: str, job: Job, asked: Asked
) -> None:
    config, rules = MADE[name]
    for _ in range(3):  # advice on the outcome of advice is no worse
        report, shown = run(job, asked, config)
        request = request_of(advice(report))
        if not request:
            return
        then = next_time(request, rules, job.job_class)
        job = replace(job, runs=tuple(shown.tried or ()))
        if then is None:
            assert shown.denied
            return
        assert then.cards == asked.cards
        again, outcome = run(job, then, config)
        assert not outcome.denied and not any(one.denied for one in again.grants)
        if shown.denied:
            assert then.share == asked.share and then.cap > asked.cap
        else:
            assert then.share >= shown.mean - 0.51 and then.share >= min(asked.share, shown.most)
            assert then.share != asked.share or then.cap < asked.cap, "it says something"
        asked = then
