"""`qgpu report` without arguments: the list of one's own jobs, and its forms."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from records_support import Row
from records_support import sacct as fake_sacct

from cli.output import as_csv
from cli.report import command
from cli.report.text import COLUMNS
from enforcer.ledger.store import Ledger, Sample
from gres.grant.store import Grant, GrantCard
from slurm_plugin import records

GIB = 1 << 30
SECOND = 10**9


class Call:
    """Runs the command; remembers the calls of sacct."""

    def __init__(self, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Sequence[str]] = []
        self._ledger, self._patch = ledger, monkeypatch

    def __call__(self, *words: str, rows: Sequence[Row] | None = None) -> Result:
        answer = fake_sacct(WORKED if rows is None else rows)

        def fake(command: Sequence[str]) -> str:
            self.asked.append(command)
            return answer(command)

        self._patch.setattr(records, "run", fake)
        return CliRunner().invoke(command.report, [*words, "--ledger", str(self._ledger)])


def done(job: int, name: str, tres: str, **more: str) -> dict[str, str]:
    """A job of 100 s that ended."""
    times = {"State": "COMPLETED", "Elapsed": "00:01:40", "Start": "1", "End": "101"}
    found = {"JobIDRaw": str(job), "JobID": str(job), "User": "alice", "JobName": name}
    return {**found, "AllocTRES": tres, **times, **more}


SHARE = "gres/qgpu:{0}=30,gres/qgpu=30"
WORKED = [
    done(12, "a,b", f"cpu=2,mem=1G,{SHARE.format('online')}"),
    {"JobIDRaw": "12.batch", "TotalCPU": "00:50.000", "TRESUsageInTot": "mem=256M"},
    done(
        13,
        "waits",
        "",
        State="PENDING",
        Elapsed="00:00:00",
        End="Unknown",
        ReqTRES=f"cpu=1,{SHARE.format('offline')}",
    ),
    done(14, "whole", "cpu=1,gres/gpu=1", State="RUNNING", Elapsed="01:00:00", End="Unknown"),
    {"JobIDRaw": "14.0", "TotalCPU": "00:30.000", "TRESUsageInTot": "mem=1M"},
    done(15, "no card", "cpu=1"),
]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`qgpu report` of a user, on a cluster with these jobs; job 12 has a ledger's row."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(command, "user_name", lambda uid: "alice")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 1, 30, 12 * GIB, 80 * GIB)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    who = (12, 1000, 100, "n1", "active", "online", SECOND)
    ledger.open_grant(Grant(*who, "", (card,), "/r", "/d", "/s"))  # type: ignore[arg-type]
    used = Sample(12, card.uuid, 1, 1, busy_ns=15 * SECOND, launches=9, mem_peak=GIB)
    ledger.record([used], 0)
    ledger.end(12, "epilog", 101 * SECOND)
    ledger.close()
    return Call(tmp_path / "ledger.sqlite", monkeypatch)


def test_without_arguments_ones_own_jobs_of_a_day(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = call()
    header, *rows, total, advised = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 80
    wanted = "JOBID NAME STATE CLASS SHARE% ELAPSED BUSY_S USED% PEAK_GIB CAP_GIB"
    assert set(wanted.split()) <= set(header.split())
    assert [row.split()[:4] for row in rows] == [
        ["12", "a,b", "COMPLETED", "online"],
        ["13", "waits", "PENDING", "offline"],
        ["14", "whole", "RUNNING", "whole"],
    ]
    assert (
        total == "2 of 3 jobs had cards: 1.01 GPU-hours granted, 0.00 used (50.0 % where measured)"
    )
    assert advised.endswith("qgpu report 12") and call("12").exit_code == 0
    window = call.asked[0]
    assert window[window.index("-u") + 1] == "alice" and "-T" not in window
    assert {"-u", "-S", "-E"} <= set(call.asked[1]) & set(call.asked[2]), "no list of numbers"


def test_csv_and_json_have_the_host_beside_the_card(call):
    ended, waits, runs = csv.DictReader(io.StringIO(call("--csv").stdout))
    assert (ended["NAME"], ended["GPU_H"], ended["CPU%"]) == ("a,b", "0.01", "25.0")
    assert (ended["HOST_GIB"], ended["HOST%"], ended["BUSY_S"]) == ("0.25", "25.0", "15.0")
    assert (waits["SHARE%"], waits["BUSY_S"], waits["CPU%"]) == ("30", "", "")
    assert (runs["GPU_H"], runs["CPU%"], runs["HOST%"]) == ("1.00", "", ""), "its steps may go on"
    body = json.loads(call("--json").stdout)
    assert [job["cpu_percent"] for job in body["jobs"]] == [25.0, None, None]
    assert [job["gpu_hours"] for job in body["jobs"]] == [pytest.approx(1 / 120), None, 1.0]
    assert body["total"]["jobs"] == 2, "one waits"


def test_csv_has_no_formula_and_numbers_stay_numbers():
    cells = ("=1+1", "+x", "-2-3", "@sum", "\tx", "\rx", "-", "-2.5", "+7", "a=1")
    wanted = ["'=1+1", "'+x", "'-2-3", "'@sum", "'\\x09x", "'\\x0dx", "", "-2.5", "+7", "a=1"]
    assert next(csv.reader(io.StringIO(as_csv([cells])))) == wanted


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    body = "import click\nfrom cli.output import fail\n@click.command()\ndef main():\n"
    body += " try: click.echo('x')\n except OSError as error: fail('report', str(error))\nmain()"
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run([sys.executable, "-c", body], stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, b"")


def test_whose_jobs_are_listed(call, monkeypatch):
    def users(*words: str) -> list[str]:
        call.asked.clear()
        call(*words)
        command = call.asked[0]
        return [command[at + 1] for at, word in enumerate(command) if word == "-u"]

    assert users("--since", "2d") == ["alice"]
    assert users("--user", "bob", "--user", "eve") == ["bob,eve"]
    assert users("--account", "phys") == users("--by", "user") == []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert users() == [], "root sees all, as in sacct"


def test_one_job_has_a_line_per_figure_and_needs_no_wide_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = call("12.batch").stdout.splitlines()
    found = dict(line.split(maxsplit=1) for line in lines if not line.startswith("*"))
    assert list(found) == [column.name for column, _ in COLUMNS]
    assert (found["CPU%"], found["HOST%"], found["USED%"]) == ("25.0", "25.0", "15.0")


def test_an_empty_list_is_a_sentence(call):
    result = call("--user", "nobody", rows=WORKED[-1:])
    assert result.exit_code == 0 and "no job had a card since" in result.stderr


def test_a_range_is_shown_as_far_as_it_is_known(call):
    result = call("11-13", "99", "--parsable")
    assert [line.split("|")[0] for line in result.stdout.splitlines()] == ["JOBID", "12", "13"]
    assert "1 of the 3 jobs 11-13 are not known to sacct" in result.stderr
    assert "job 99 is not known to sacct" in result.stderr and result.exit_code == 1
