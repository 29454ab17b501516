"""200 random jobs: the report's totals are sacct's to the second, and the ledgers' to the
nanosecond.

The oracle works on sacct's text and on the lists the jobs were made from, with arithmetic of its
own.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import pytest
from click.testing import CliRunner
from records_support import Row
from records_support import sacct as fake_sacct

from cli.report.command import report
from enforcer.ledger.store import Ledger, Sample
from gres.grant.store import Grant, GrantCard
from slurm_plugin import records

SECOND = 10**9
GIB = 1 << 30
START = 1_700_000_100
SPAN = 7200
JOBS = 200
STATES = ("COMPLETED", "FAILED", "CANCELLED by 1001", "TIMEOUT", "RUNNING")


@dataclass(frozen=True)
class Made:
    """One job as it was made; busy is per second of its run."""

    number: int
    user: str
    account: str
    qos: str
    share: int
    cards: int  # whole cards, 0 for shares
    begin: int
    elapsed: int
    state: str
    node: str
    prolog: float
    epilog: float
    busy: tuple[int, ...] | None  # None: no ledger was there

    @property
    def granted(self) -> Fraction:
        return (
            Fraction(self.share * self.elapsed, 100)
            if self.cards == 0
            else Fraction(self.cards * self.elapsed)
        )


def make(dice: random.Random, number: int) -> Made:
    elapsed = dice.choice([0, 1, dice.randrange(1, 90), dice.randrange(60, 400)])
    measured = elapsed > 0 and dice.random() < 0.85
    whole = dice.random() < 0.1
    busy = tuple(dice.choice([0, dice.randrange(SECOND), SECOND]) for _ in range(elapsed))
    return Made(
        number=number,
        user=dice.choice(["alice", "bob", "carol"]),
        account=dice.choice(["phys", "bio"]),
        qos=dice.choice(["online", "offline"]),
        share=dice.randrange(1, 101),
        cards=dice.randrange(1, 5) if whole else 0,
        begin=START + dice.randrange(SPAN - 400),
        elapsed=elapsed,
        state=dice.choice(STATES),
        node=dice.choice(["n1", "n2"]),
        prolog=dice.random() * 3,
        epilog=dice.random() * 3,
        busy=busy if measured and not whole else None,
    )


def row(job: Made) -> Row:
    if job.cards:
        # counted as qgpu; before 23.02 a job with --exclusive has all counts of its node
        more = "" if job.number % 3 == 0 else f"gres/qgpu={100 * job.cards * (job.number % 3)},"
        tres = f"billing=9,cpu=1,gres/gpu={job.cards},{more}mem=1G"
    else:
        tres = (
            f"cpu=1,gres/qgpu:{job.qos}={job.share},gres/qgpu={job.share},"
            f"gres/vram=4G,gres/shard={job.share}"
        )
    hours, rest = divmod(job.elapsed, 3600)
    clock = f"{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    end = "Unknown" if job.state == "RUNNING" else str(job.begin + job.elapsed)
    return {
        "JobIDRaw": str(job.number),
        "JobID": str(job.number),
        "User": job.user,
        "State": job.state,
        "Elapsed": clock,
        "NodeList": job.node,
        "QOS": job.qos,
        "Partition": "gpu",
        "AllocTRES": tres,
        "Account": job.account,
        "Start": str(job.begin),
        "End": end,
        "JobName": "a|b\nc",
    }


def fill(ledger: Ledger, job: Made) -> None:
    """The node's side: granted a moment before Slurm's start, ended a moment after its end."""
    assert job.busy is not None
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, job.share, 4 * GIB, 80 * GIB)
    created = int((job.begin - job.prolog) * SECOND)
    kind = "online" if job.qos == "online" else "offline"
    ledger.open_grant(
        Grant(
            job.number, 1000, 100, job.node, "active", kind, created, "", (card,), "/r", "/d", "/s"
        )
    )  # type: ignore[arg-type]
    total = 0
    for second, busy in enumerate(job.busy, 1):
        total += busy
        if second % 10 == 0 or second == len(job.busy):
            ledger.record(
                [Sample(job.number, card.uuid, 1, 5, busy_ns=total, denied=1)],
                (job.begin + second) * SECOND,
            )
    if job.state != "RUNNING":
        ledger.end(job.number, "epilog", int((job.begin + job.elapsed + job.epilog) * SECOND))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Made], list[str]]:
    dice = random.Random(5)
    made = [make(dice, number) for number in range(1, JOBS + 1)]
    directory = tmp_path_factory.mktemp("ledgers")
    options = []
    for node in ("n1", "n2"):
        ledger = Ledger(directory / f"{node}.sqlite")
        for job in made:
            if job.node == node and job.busy is not None:
                fill(ledger, job)
        ledger.close()
        options += ["--ledger", str(directory / f"{node}.sqlite")]
    return made, options


def ask(
    world: tuple[list[Made], list[str]], monkeypatch: pytest.MonkeyPatch, *words: str
) -> dict[str, object]:
    made, options = world
    monkeypatch.setattr(records, "run", fake_sacct([row(job) for job in made]))
    done = CliRunner().invoke(report, [*words, *options, "--json"])
    assert done.exit_code == 0, done.output
    body: dict[str, object] = json.loads(done.stdout)
    return body


def stamp(seconds: int) -> str:
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


@pytest.mark.parametrize("by", ["user", "account", "qos"])
def test_totals_are_those_of_sacct_and_of_the_ledgers(world, monkeypatch, by):
    made, _ = world
    window = ("--since", stamp(START - 10), "--until", stamp(START + SPAN))
    body = ask(world, monkeypatch, "--by", by, *window)
    expected: dict[str, list[Fraction]] = defaultdict(lambda: [Fraction()] * 5)
    for job in made:
        old = expected[getattr(job, by)]
        busy = Fraction(sum(job.busy), SECOND) if job.busy is not None else Fraction()
        some = int(job.busy is not None)
        expected[getattr(job, by)] = [
            old[0] + 1,
            old[1] + job.granted,
            old[2] + busy,
            old[3] + some,
            old[4] + some * job.granted,
        ]
    found = {group["name"]: group for group in body["groups"]}  # type: ignore[union-attr, index]
    assert set(found) == set(expected) and len(expected) >= 2
    for name, (jobs, granted, used, measured, base) in expected.items():
        group = found[name]
        assert (group["jobs"], group["measured"]) == (jobs, measured)
        assert group["granted_s"] == pytest.approx(float(granted), abs=0.01)
        assert group["used_s"] == pytest.approx(float(used), abs=1e-3)
        assert group["efficiency"] == pytest.approx(float(100 * used / base), rel=1e-6)
        assert group["denied"] == measured
    total = body["total"]
    assert total["granted_s"] == pytest.approx(float(sum(e[1] for e in expected.values())), abs=0.1)  # type: ignore[index]
    assert total["used_s"] == pytest.approx(float(sum(e[2] for e in expected.values())), abs=0.01)  # type: ignore[index]


def test_each_job_has_sacct_s_time_and_the_ledger_s_use(world, monkeypatch):
    made, _ = world
    body = ask(world, monkeypatch, *(str(job.number) for job in made))
    reports = {int(entry["raw_id"]): entry for entry in body["jobs"]}  # type: ignore[union-attr, index]
    assert len(reports) == JOBS
    for job in made:
        entry = reports[job.number]
        assert (entry["elapsed_s"], entry["user"], entry["account"]) == (
            job.elapsed,
            job.user,
            job.account,
        )
        if job.busy is None:
            assert entry["grants"] == []
            continue
        (grant,) = entry["grants"]
        assert grant["busy_s"] == pytest.approx(sum(job.busy) / SECOND, abs=1e-6)
        assert grant["busy_s"] <= grant["granted_s"] + 1e-6
        if job.state != "RUNNING":
            # The grant stands from the Prolog to the Epilog, Slurm counts what lies between.
            assert grant["granted_s"] == pytest.approx(
                job.prolog + job.elapsed + job.epilog, abs=1e-3
            )


@pytest.mark.parametrize("cut", [600, 1800, 3333, 5000])
def test_windows_that_meet_add_up(world, monkeypatch, cut):
    """Slurm cuts elapsed times at a window's edge; so do we with what was used, bucket by
    bucket.
    """
    by = ("--by", "user")
    words = ("--since", stamp(START - 10), "--until", stamp(START + SPAN))
    whole = ask(world, monkeypatch, *by, *words)["total"]
    parts = [
        ask(world, monkeypatch, *by, "--since", stamp(a), "--until", stamp(b))["total"]
        for a, b in ((START - 10, START + cut), (START + cut, START + SPAN))
    ]
    used = [part["used_s"] or 0 for part in parts]  # type: ignore[index]
    assert sum(used) == pytest.approx(whole["used_s"], abs=0.01)  # type: ignore[index]
    assert min(used) > 0
