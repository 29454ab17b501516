"""Card use and idle waits in `qgpu report`: as a sentence, as a table, as JSON, on the page."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from records_support import recorded
from records_support import sacct as fake_sacct

from cli.report.cards import card_uses
from cli.report.command import report
from cli.report.ledgers import Row
from enforcer.ledger.store import Ledger, Sample, read_usage
from gres.config.schema import JobClass
from gres.grant.store import Grant, GrantCard
from slurm_plugin import records

SECOND = 10**9
START = 1_700_000_100
UUID = "GPU-00000000-0000-0000-0000-000000000001"
TEXT = "\n".join(
    [
        "JobID|JobIDRaw|User|State|Elapsed|NodeList|QOS|Partition|AllocTRES|Account|Start|End|"
        "JobName",
        *(
            f"{job}|{job}|alice|COMPLETED|00:01:40|n1|{kind}|gpu|gres/qgpu:{kind}=30,gres/qgpu=30|"
            f"acct|{START}|{START + 100}|x"
            for job, kind in ((1, "online"), (2, "offline"))
        ),
    ]
)
WINDOW = tuple(
    time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) for at in (START - 60, START + 200)
)
IDLE = "was idle 71 % of the time that offline jobs waited: idle_release."
REMEDY = "root on n1 may try: qgpu card set 1 idle_release=auto"


def use(path: Path, job: int, kind: JobClass, begin: int = 0, **counters: int) -> None:
    """A grant of 100 s."""
    card = GrantCard(UUID, 0, 1, 30, 1 << 30, 1 << 40)
    at = (START + begin) * SECOND
    ledger = Ledger(path)
    ledger.open_grant(
        Grant(job, 1000, 100, "n1", "active", kind, at, "", (card,), "/r", "/d", "/s")
    )
    ledger.record([Sample(job, UUID, 1, 5, **counters)], at)  # type: ignore[arg-type]
    ledger.end(job, "epilog", at + 100 * SECOND)
    ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A service that used its card for 4 s of 100, and a job that waited for 50 s."""
    found = tmp_path / "ledger.sqlite"
    use(found, 1, "online", busy_ns=4 * SECOND, launches=9, closed_idle_ns=0)
    waited = {"closed_preempted_ns": 50 * SECOND, "closed_idle_ns": 35_500_000_000}
    use(found, 2, "offline", busy_ns=25 * SECOND, launches=9, **waited)
    return found


def ask(path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(records, "run", fake_sacct(recorded(TEXT)))
    done = CliRunner().invoke(report, [*words, "--ledger", str(path)])
    assert done.exit_code == 0, done.output
    return done.stdout


def window(path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    begin, end = WINDOW
    return ask(path, monkeypatch, "--since", begin, "--until", end, "--by", "class", *words)


def test_a_job_is_told_what_idle_release_cost_and_what_would_work(path, monkeypatch):
    said = ask(path, monkeypatch, "1", "2")
    assert "* card 1 of n1 was idle 71 % of the time that job 2 waited: idle_release." in said
    assert REMEDY in said and "that job 1 waited" not in said
    jobs = json.loads(ask(path, monkeypatch, "2", "--json"))["jobs"]
    (grant,) = next(job["grants"] for job in jobs if job["raw_id"] == 2)
    assert (grant["suspended_s"], grant["suspended_idle_s"]) == (50.0, 35.5)


@pytest.mark.parametrize(
    "counters",
    [
        {"closed_preempted_ns": 50 * SECOND},
        {"closed_preempted_ns": 50 * SECOND, "closed_idle_ns": SECOND},
        {"closed_preempted_ns": SECOND // 2, "closed_idle_ns": SECOND // 2},
    ],
    ids=["not reported", "hardly idle", "hardly waited"],
)
def test_nothing_is_said_where_nothing_is_known_or_lost(tmp_path, monkeypatch, counters):
    path = tmp_path / "ledger.sqlite"
    use(path, 2, "offline", busy_ns=SECOND, launches=9, **counters)
    assert "idle_release" not in ask(path, monkeypatch, "2")
    assert "idle_release" not in window(path, monkeypatch)


def test_a_window_shows_card_use_beside_harvest(path, monkeypatch):
    lines = window(path, monkeypatch).splitlines()
    at = lines[0].split().index("IDLE_H")
    total = next(line for line in lines if line.startswith("TOTAL")).split()
    assert total[at] == "0.01"
    header, card, advice = lines[-3:]
    assert dict(zip(header.split(), card.split(), strict=True)) == {
        "CARD": "n1:1",
        "GRANTED_H": "0.03",
        "USE%": "29.0",
        "ONLINE%": "4.0",
        "OFFLINE%": "25.0",
        "WAITED_H": "0.01",
        "IDLE%": "71.0",
    }
    assert advice.startswith(f"* card 1 of n1 {IDLE}") and advice.endswith(REMEDY)


def test_a_window_as_json_and_in_lines(path, monkeypatch):
    body: dict[str, Any] = json.loads(window(path, monkeypatch, "--json"))
    (card,) = body["cards"]
    assert (card["node"], card["card"], card["granted_s"], card["use"]) == ("n1", 1, 100.0, 29.0)
    assert (card["waited_s"], card["idle_s"], body["total"]["idle_s"]) == (50.0, 35.5, 35.5)
    assert len(window(path, monkeypatch, "--parsable").splitlines()) == 4, "one table for scripts"


def test_the_page_has_both(path, monkeypatch, tmp_path):
    page = tmp_path / "page.html"
    window(path, monkeypatch, "--html", str(page))
    text = page.read_text()
    assert "<h2>Card use</h2>" in text and 'data-name="USE%">29.0</td>' in text and IDLE in text
    ask(path, monkeypatch, "2", "--html", str(page))
    text = page.read_text()
    assert "<h2>Card use</h2>" not in text and "71 % of the time that job 2 waited" in text


def test_time_with_a_grant_counts_once_and_only_inside_the_window(tmp_path):
    path = tmp_path / "ledger.sqlite"
    for job, begin in ((1, 0), (2, 50), (3, 300)):
        use(path, job, "offline", begin, busy_ns=10 * SECOND)
    rows = [Row(usage) for usage in read_usage(path, [1, 2, 3])]

    def granted(begin: int, end: int) -> float:
        (card,) = card_uses(rows, (START + begin) * SECOND, (START + end) * SECOND)
        return card.granted_s

    assert granted(-10, 1000) == 250 and granted(60, 350) == 140 and granted(160, 170) == 0
    whole = [row._replace(usage=row.usage._replace(busy_ns=None)) for row in rows]
    assert card_uses(whole, START * SECOND, (START + 999) * SECOND) == []
