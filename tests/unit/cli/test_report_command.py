"""`qgpu report`: sacct's text and a ledger in, table, lines and JSON out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from records_support import answer, columns, recorded
from records_support import sacct as fake_sacct

from cli.report.command import report
from cli.report.text import COLUMNS, duration
from enforcer.ledger.store import Ledger, Sample
from gres.grant.store import Grant, GrantCard
from slurm_plugin import records
from slurm_plugin.accounting import sacct
from slurm_plugin.records import SlurmError

GIB = 1 << 30
SECOND = 10**9
HEADER = "JobID|JobIDRaw|User|State|Elapsed|NodeList|QOS|Partition|AllocTRES|JobName"
# sacct -P -X: a finished online job, a running array task, a job without qgpu with | in its name.
ONLINE = (
    "billing=1,cpu=1,gres/qgpu:online=30,gres/qgpu=30,gres/vram=12G,gres/shard=30,mem=1G,node=1"
)
OFFLINE = "cpu=1,gres/qgpu:offline=50,gres/qgpu=50,gres/vram=4G,gres/shard=6"
TEXT = f"""{HEADER}
12|12|alice|COMPLETED|00:01:40|n1|online|gpu|{ONLINE}|train
13_2|15|bob|RUNNING|1-02:03:04|n2|offline|gpu|{OFFLINE}|sweep
16|16|bob|CANCELLED by 1001|00:00:00|None assigned|normal|cpu||a|b
"""


def grant(
    job: int, state: str = "active", job_class: str | None = "online", cap: int = 12 * GIB
) -> Grant:
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 1, 30, cap, 80 * GIB)
    return Grant(job, 1000, 100, "n1", state, job_class, SECOND, "", (card,), "/r", "/d", "/s")  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, of which xdist has 80 columns: tables have all columns."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(path)


def use(ledger: Ledger, seconds: int = 100, item: Grant | None = None, **counters: int) -> None:
    item = item or grant(12)
    ledger.open_grant(item)
    ledger.record([Sample(item.job_id, item.cards[0].uuid, 1, 1, **counters)], 0)
    ledger.end(item.job_id, "epilog", item.created_ns + seconds * SECOND)


@pytest.fixture
def call(monkeypatch, path):
    asked: list[Sequence[str]] = []

    def run(*arguments: str, text: str = TEXT) -> Result:
        answer = fake_sacct(recorded(text))

        def fake(command: Sequence[str]) -> str:
            asked.append(command)
            return answer(command)

        monkeypatch.setattr(records, "run", fake)
        return CliRunner().invoke(report, [*arguments, "--ledger", str(path)])

    run.asked = asked  # type: ignore[attr-defined]
    return run


def fields(result: Result) -> dict[str, str]:
    header, line = result.stdout.splitlines()
    return dict(zip(header.split("|"), line.split("|"), strict=True))


def test_granted_against_used(ledger, call):
    use(
        ledger,
        busy_ns=27 * SECOND,
        launches=9,
        mem_peak=8 * GIB,
        denied=0,
        preemptions=3,
        closed_preempted_ns=12_340_000_000,
    )
    result = call("12", "--parsable")
    assert result.exit_code == 0
    assert fields(result) == {
        "JOBID": "12",
        "NAME": "train",
        "USER": "alice",
        "STATE": "COMPLETED",
        "CLASS": "online",
        "CARD": "n1:1",
        "SHARE%": "30",
        "ELAPSED": "00:01:40",
        "GPU_H": "0.01",
        "BUSY_S": "27.0",
        "HELD_S": "-",
        "USED%": "27.0",
        "PEAK_GIB": "8.0",
        "CAP_GIB": "12.0",
        "DENIED": "0",
        "PREEMPTED": "3",
        "SUSPENDED_S": "12.3",
        "CPUS": "1",
        "CPU%": "-",
        "HOST_GIB": "-",
        "HOST%": "-",
    }


def test_not_measured_is_a_dash_and_zero_is_zero(ledger, call):
    ledger.open_grant(grant(12))
    assert fields(call("12", "--parsable"))["BUSY_S"] == "-"
    use(ledger)
    assert fields(call("12", "--parsable"))["BUSY_S"] == "0.0"


def test_json_says_null_for_not_measured(ledger, call):
    ledger.open_grant(grant(12))
    body = json.loads(call("12", "--json").stdout)
    assert body["version"] == 1
    (job,) = body["jobs"]
    (found,) = job["grants"]
    assert (job["job_id"], job["user"], found["share"], found["mem_cap"]) == (
        "12",
        "alice",
        30,
        12 * GIB,
    )
    assert found["busy_s"] is None and found["denied"] is None and found["suspended_s"] is None


def test_job_without_ledger_shows_what_slurm_booked(ledger, call):
    row = fields(call("15", "--parsable"))
    assert (row["JOBID"], row["CLASS"], row["SHARE%"], row["CAP_GIB"]) == (
        "13_2",
        "offline",
        "50",
        "4.0",
    )
    assert (row["ELAPSED"], row["BUSY_S"], row["CARD"]) == ("1-02:03:04", "-", "-")


def test_array_task_is_accepted_and_asked_for_as_written(ledger, call):
    result = call("13_2", "--parsable")
    assert result.exit_code == 0 and fields(result)["JOBID"] == "13_2"
    assert call.asked[0][-2:] == ["-j", "13_2"]


def test_unknown_job_is_said_and_the_others_are_shown(ledger, call):
    use(ledger)
    result = call("12", "99")
    assert result.exit_code == 1
    assert "job 99 is not known to sacct" in result.stderr
    assert "alice" in result.stdout


@pytest.mark.parametrize("word", ["12;reboot", "abc", "1_", "--format", "12 13", "1" * 30])
def test_word_that_is_no_job_id_never_reaches_sacct(ledger, call, word):
    result = call("--", word) if word.startswith("-") else call(word)
    assert result.exit_code == 2 and not call.asked


def test_name_with_a_separator_does_not_move_fields(ledger, call):
    row = fields(call("16", "--parsable"))
    assert (row["STATE"], row["CLASS"], row["SHARE%"]) == ("CANCELLED", "-", "-")


def test_whole_card_shows_the_drivers_memory(ledger, call):
    item = grant(12, "whole", None, 80 * GIB)
    ledger.open_grant(item)
    ledger.record_memory(12, item.cards[0].uuid, 70 * GIB)
    row = fields(call("12", "--parsable"))
    assert (row["CLASS"], row["PEAK_GIB"], row["BUSY_S"]) == ("whole", "70.0", "-")


def test_requeued_job_has_a_line_per_grant(ledger, call):
    use(ledger, busy_ns=SECOND)
    from dataclasses import replace

    use(ledger, item=replace(grant(12), created_ns=500 * SECOND), busy_ns=2 * SECOND)
    lines = call("12", "--parsable").stdout.splitlines()
    assert [line.split("|")[9] for line in lines] == ["BUSY_S", "1.0", "2.0"]


def test_advice_is_a_line_below_the_table(ledger, call):
    use(ledger, mem_peak=GIB, launches=1, busy_ns=30 * SECOND)
    lines = [line for line in call("12").stdout.splitlines() if line.startswith("* ")]
    assert lines == ["* job 12: it held at most 1.0 of 12.0 GiB: --gres=qgpu:30,vram:2G would do."]


def test_no_advice_where_nothing_stands_out(ledger, call):
    use(ledger, busy_ns=29 * SECOND, launches=5, mem_peak=9 * GIB)
    assert "*" not in call("12").stdout


def test_table_is_aligned(ledger, call):
    use(ledger, busy_ns=29 * SECOND, launches=5, mem_peak=9 * GIB)
    header, first, second = call("12", "15").stdout.splitlines()
    assert header.split() == [column.name for column, _ in COLUMNS]
    at = header.index("USED%") + len("USED%")
    assert first[:at].endswith("29.0") and second[:at].endswith("-")


def test_broken_ledger_is_an_error_and_the_rest_is_shown(path, call):
    path.write_text("hello " * 500)
    result = call("12")
    assert result.exit_code == 1 and "cannot be read" in result.stderr and "alice" in result.stdout


def test_ledgers_of_all_configured_nodes_are_read(tmp_path, monkeypatch):
    (tmp_path / "n1").mkdir()
    use(Ledger(tmp_path / "n1/ledger.sqlite"), busy_ns=SECOND, launches=1)
    (tmp_path / "qgpu.yaml").write_text(
        f"version: 1\ncluster: c\nstate_dir: {tmp_path}/%n\ndefault_class: offline\n"
        "models: {h: {memory: 80GiB}}\n"
        'nodes: [{names: "n[1-2]", model: h, count: 1, files: /dev/nvidia0}]\n'
    )
    monkeypatch.setattr(records, "run", fake_sacct(recorded(TEXT)))
    result = CliRunner().invoke(report, ["12", "13_2", "--config", str(tmp_path / "qgpu.yaml")])
    assert result.exit_code == 0
    assert "n1:1" in result.stdout
    assert f"no ledger of n2 here ({tmp_path}/n2/ledger.sqlite)" in result.stderr
    assert "no ledger of n1" not in result.stderr


def test_configuration_that_is_not_there_is_a_sentence(tmp_path):
    result = CliRunner().invoke(report, ["12", "--config", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2 and "cannot be read" in result.stderr


@pytest.mark.parametrize("text", ["sacct: error", "JobID|User\n1|x\n", "<x>", "\n"])
def test_other_output_of_sacct_is_refused(text):
    with pytest.raises(SlurmError, match="sacct did not answer with the fields"):
        sacct.jobs(["12"], lambda _: text)


def test_short_line_of_sacct_is_refused():
    def short(command: Sequence[str]) -> str:
        return "12{0}12{0}alice{0}\n".format(columns(command).end)

    with pytest.raises(SlurmError, match="sacct did not answer with the fields"):
        sacct.jobs(["12"], short)


def test_sacct_that_is_missing_or_fails_is_a_sentence(tmp_path):
    with pytest.raises(SlurmError, match="was not found"):
        records.run([str(tmp_path / "sacct")])
    script = tmp_path / "bad"
    script.write_text("#!/bin/sh\necho 'sacct: error: slurmdbd is down' >&2\nexit 1\n")
    script.chmod(0o755)
    with pytest.raises(SlurmError, match="slurmdbd is down"):
        records.run([str(script)])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0),
        ("01:02:03", 3723),
        ("2-00:00:01", 172801),
        ("", None),
        ("INVALID", None),
        ("1:2", None),
    ],
)
def test_elapsed(text, seconds):
    assert sacct.parse_elapsed(text) == seconds
    if seconds is not None:
        assert duration(seconds) == text


def test_what_slurm_22_05_really_answers_is_understood():
    # recorded in a sandbox
    text = (Path(__file__).parents[2] / "cases/sacct-22.05.txt").read_text()
    whole, offline, online, first, second = sacct.jobs(["1"], lambda c: answer(c, recorded(text)))
    assert (whole.tres["gres/gpu"], whole.elapsed_s, whole.nodes) == ("1", 2, ("hooktest-n1",))
    assert (offline.tres["gres/qgpu:offline"], offline.tres["gres/vram"]) == (
        "50",
        str(2 * GIB),
    )
    assert (online.job_id, online.raw_id, online.qos, online.user) == ("4", 4, "online", "alice")
    assert [(job.job_id, job.raw_id) for job in (first, second)] == [("1_1", 5), ("1_2", 1)]


def test_node_lists_are_expanded():
    row = {"JobID": "1", "JobIDRaw": "1", "NodeList": "n[1-2],x7"}
    (job,) = sacct.jobs(["1"], fake_sacct([row]))
    assert job.nodes == ("n1", "n2", "x7")


def test_use_that_escaped_the_library_is_not_a_measured_zero(ledger, call):
    """The job ran without the shim: the driver saw memory, the library nothing."""
    use(ledger, launches=0, busy_ns=0, mem_peak=0)
    ledger.open_grant(grant(15, cap=4 * GIB))
    ledger.record_memory(15, grant(15).cards[0].uuid, 79 * GIB)
    ledger.record([Sample(15, grant(15).cards[0].uuid, 1, 1)], 0)
    row = fields(call("13_2", "--parsable"))
    assert (row["BUSY_S"], row["USED%"], row["PEAK_GIB"]) == ("-", "-", "79.0")
    assert "ran without qgpu's library" in call("13_2").stdout


def test_a_context_alone_is_no_escape(ledger, call):
    item = grant(12)
    ledger.open_grant(item)
    ledger.record_memory(12, item.cards[0].uuid, 300 << 20)
    ledger.record([Sample(12, item.cards[0].uuid, 1, 1)], 0)
    row = fields(call("12", "--parsable"))
    assert (row["BUSY_S"], row["PEAK_GIB"]) == ("0.0", "0.0")


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (0, "no task took its grant on n1, so nothing ran under it"),
        (GIB, "used card 1 of n1 without limits"),
    ],
)
def test_a_grant_that_no_task_took_is_said(ledger, call, memory, words):
    item = grant(12)
    ledger.open_grant(item)
    if memory:
        ledger.record_memory(12, item.cards[0].uuid, memory)
    ledger.end(12, "epilog", item.created_ns + 100 * SECOND, False)
    assert words in call("12").stdout
    (job,) = json.loads(call("12", "--json").stdout)["jobs"]
    assert job["grants"][0]["fetched"] is False and words in job["advice"][0]


def test_a_grant_that_a_task_took_has_no_such_line(ledger, call):
    item = grant(12)
    ledger.open_grant(item)
    ledger.end(12, "epilog", item.created_ns + 100 * SECOND, True)
    assert "no task took" not in call("12").stdout
