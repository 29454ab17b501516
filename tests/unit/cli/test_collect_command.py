"""`qgpu collect`: merging twice changes nothing, late copies undo nothing, hostile lines are
refused, Slurm's fields that belong to others stay theirs.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from records_support import answer

from cli.report.collect import collect, totals_since
from enforcer.ledger.merge import Record, merge, records
from enforcer.ledger.read import read_usage, reading, series_of, usage_of_jobs
from enforcer.ledger.schema import LedgerError
from enforcer.ledger.store import Ledger, Sample
from gres.grant.store import Grant, GrantCard
from slurm_plugin.accounting import summary
from slurm_plugin.accounting.summary import Totals, decide, text_of

SECOND = 10**9
START = (int(time.time()) - 7200) // 300 * 300  # what is older than the retention is not collected
CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
CONFIG = """version: 1
cluster: c
state_dir: {directory}/%n
default_class: offline
models: {{h: {{memory: 80GiB}}}}
nodes: [{{names: "n[1-2]", model: h, count: 1, files: /dev/nvidia0}}]
reports: {{collected: {directory}/all.sqlite{more}}}
"""


def grant(job: int, node: str = "n1", created: int = START) -> Grant:
    card = replace(CARD, uuid=f"GPU-{node}-0000-0000-0000-000000000001")
    return Grant(
        job, 1000, 100, node, "active", "online", created * SECOND, "", (card,), "/r", "/d", "/s"
    )


def use(ledger: Ledger, job: int, node: str = "n1", seconds: int = 30, ended: bool = True) -> None:
    one = grant(job, node)
    ledger.open_grant(one)
    for second in range(0, seconds, 5):
        counters = {"busy_ns": second * job, "close_hist": (second,), "mem_used": 5}
        ledger.record([Sample(job, one.cards[0].uuid, 1, 5, **counters)], (START + second) * SECOND)  # type: ignore[arg-type]
    if ended:
        ledger.end(job, "epilog", (START + seconds) * SECOND)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for node in ("n1", "n2"):
        (tmp_path / node).mkdir()
        ledger = Ledger(tmp_path / node / "ledger.sqlite")
        for job in (1, 2, 3):
            use(ledger, job + 10 * (node == "n2"), node, ended=job != 3)
        ledger.close()
    (tmp_path / "qgpu.yaml").write_text(CONFIG.format(directory=tmp_path, more=""))
    return tmp_path


def run(cluster: Path, *words: str) -> Result:
    return CliRunner().invoke(
        collect, ["--config", str(cluster / "qgpu.yaml"), "--pause", "0", *words]
    )


def content(path: Path) -> list[tuple[object, ...]]:
    """Everything in a ledger, without our own row numbers."""
    with reading(path) as database:
        rows = sorted(
            usage_of_jobs(database, range(1, 100)),
            key=lambda pair: (pair[1].job_id, pair[1].granted_at),
        )
        return [(usage, tuple(series_of(database, number))) for number, usage in rows]


def test_all_nodes_are_merged_with_their_series(cluster):
    done = run(cluster)
    assert done.exit_code == 0, done.output
    assert "n1: 3 new, 0 changed, 0 as before" in done.stdout
    found = content(cluster / "all.sqlite")
    assert found == content(cluster / "n1/ledger.sqlite") + content(cluster / "n2/ledger.sqlite")
    assert (cluster / "all.sqlite").stat().st_mode & 0o777 == 0o644


def test_twice_the_same_changes_nothing(cluster):
    run(cluster)
    before = content(cluster / "all.sqlite")
    done = run(cluster)
    assert (
        "n1: 0 new, 0 changed, 3 as before" in done.stdout
        and content(cluster / "all.sqlite") == before
    )


def test_what_went_on_meanwhile_replaces_and_what_ended_stays(cluster):
    run(cluster)
    ledger = Ledger(cluster / "n1/ledger.sqlite")
    ledger.record([Sample(3, grant(3).cards[0].uuid, 1, 5, busy_ns=999)], (START + 40) * SECOND)
    ledger.end(3, "epilog", (START + 50) * SECOND)
    ledger.close()
    assert "n1: 0 new, 1 changed, 2 as before" in run(cluster).stdout
    assert read_usage(cluster / "all.sqlite", [3])[0].busy_ns == 999
    assert content(cluster / "all.sqlite")[:3] == content(cluster / "n1/ledger.sqlite")


def test_collected_ledger_of_private_use_is_for_root(cluster):
    (cluster / "qgpu.yaml").write_text(
        CONFIG.format(directory=cluster, more=", private_data: [usage]")
    )
    run(cluster)
    assert (cluster / "all.sqlite").stat().st_mode & 0o777 == 0o640


@examples(20)
@given(st.integers(0, 2**32))
def test_any_order_of_copies_ends_in_the_newest(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    directory = tmp_path_factory.mktemp("merge")
    source = Ledger(directory / "n1.sqlite")
    copies = []
    source.open_grant(grant(1))
    for second in range(5):
        source.record(
            [Sample(1, grant(1).cards[0].uuid, 1, 5, busy_ns=second)], (START + second) * SECOND
        )
        copies += list(records(source.path))
    source.end(1, "epilog", (START + 9) * SECOND)
    copies += list(records(source.path))
    newest = copies[-1]
    dice = random.Random(seed)
    dice.shuffle(copies)
    target = Ledger(directory / "all.sqlite")
    for copy in copies:
        list(merge(target, [copy]))
    assert list(records(target.path)) == [newest]
    target.close()


def test_records_survive_the_way_as_lines(cluster):
    for record in records(cluster / "n1/ledger.sqlite"):
        assert Record.from_line(record.to_line()) == record


LINE = {"version": 1, "series": [], "latency": [], "usage": {}}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        "x",
        json.dumps(LINE),
        json.dumps(LINE | {"version": 2}),
        "[" * 9999,
        json.dumps(LINE | {"usage": {"job_id": "1; DROP TABLE usage"}}),
        json.dumps(LINE | {"usage": {"job_id": -1}}),
        json.dumps(LINE | {"usage": {"job_id": True}}),
        json.dumps(LINE | {"usage": {"job_id": 2**63}}),
    ],
)
def test_line_that_is_no_record_is_refused(line):
    with pytest.raises(LedgerError, match="no record"):
        Record.from_line(line)


def test_newer_nodes_may_tell_more(cluster):
    (record, *_) = records(cluster / "n1/ledger.sqlite")
    body = json.loads(record.to_line())
    body["usage"]["next_year"] = 5
    assert Record.from_line(json.dumps(body)) == record


def fake_ssh(cluster: Path, body: str) -> str:
    script = cluster / "ssh"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


def test_a_machine_that_is_no_node_is_told_what_works(cluster, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "login")
    sent = CliRunner().invoke(collect, ["--config", str(cluster / "qgpu.yaml"), "--send"])
    assert sent.exit_code == 2 and "this machine (login) is not a node of" in sent.stderr
    assert "--node n1" in sent.stderr


def test_over_ssh_what_the_other_end_prints_is_merged(cluster):
    for node in ("n1", "n2"):
        sent = CliRunner().invoke(
            collect, ["--config", str(cluster / "qgpu.yaml"), "--send", "--node", node]
        )
        assert sent.exit_code == 0 and sent.stdout.count("\n") == 3
        (cluster / f"{node}.out").write_text(sent.stdout)
    ssh = fake_ssh(cluster, f'echo "$@" >>{cluster}/asked; cat {cluster}/$1.out')
    done = run(cluster, "--ssh", ssh)
    assert done.exit_code == 0, done.output
    assert content(cluster / "all.sqlite") == content(cluster / "n1/ledger.sqlite") + content(
        cluster / "n2/ledger.sqlite"
    )
    asked = (cluster / "asked").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in asked] == [
        f"{n} qgpu collect --send --after" for n in ("n1", "n2")
    ]
    run(cluster, "--ssh", ssh)
    again = (cluster / "asked").read_text().splitlines()[2]
    assert int(again.rpartition(" ")[2]) == (START - 3600) * SECOND, (
        "only what may be new, with an overlap"
    )


def test_node_that_does_not_answer_does_not_stop_the_others(cluster):
    ssh = fake_ssh(
        cluster, f'[ "$1" = n1 ] && {{ echo no route >&2; exit 255; }}; cat {cluster}/n2.out'
    )
    sent = CliRunner().invoke(
        collect, ["--config", str(cluster / "qgpu.yaml"), "--send", "--node", "n2"]
    )
    (cluster / "n2.out").write_text(sent.stdout)
    done = run(cluster, "--ssh", ssh)
    assert done.exit_code == 1 and "n1: " in done.stderr and "status 255: no route" in done.stderr
    assert "n2: 3 new" in done.stdout


def test_node_that_hangs_is_given_up(cluster):
    done = run(cluster, "--ssh", fake_ssh(cluster, "exec sleep 60"), "--timeout", "1")
    assert done.exit_code == 1 and done.stderr.count("ended with status -9") == 2


def test_half_a_line_is_an_error_and_what_came_before_is_kept_in_batches(cluster):
    sent = (
        CliRunner()
        .invoke(collect, ["--config", str(cluster / "qgpu.yaml"), "--send", "--node", "n1"])
        .stdout
    )
    (cluster / "out").write_text(sent[:-40])
    done = run(cluster, "--ssh", fake_ssh(cluster, f"cat {cluster}/out"))
    assert done.exit_code == 1 and "no record of a ledger" in done.stderr


def test_directory_may_hold_copies_in_three_forms(cluster):
    base = cluster / "shared"
    base.mkdir()
    (base / "n1.sqlite").write_bytes((cluster / "n1/ledger.sqlite").read_bytes())
    sent = (
        CliRunner()
        .invoke(collect, ["--config", str(cluster / "qgpu.yaml"), "--send", "--node", "n2"])
        .stdout
    )
    (base / "n2.jsonl").write_text(sent)
    done = run(cluster, "--from", str(base))
    assert done.exit_code == 0 and done.stdout.count("3 new") == 2
    assert run(cluster, "--from", str(cluster / "none")).exit_code in (1, 2)


def test_two_collections_do_not_meet(cluster):
    import fcntl

    with (cluster / ".all.sqlite.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run(cluster)
    assert done.exit_code == 2 and "another collection" in done.stderr


def test_what_is_older_than_the_retention_is_not_fetched_again_and_again(cluster):
    (cluster / "qgpu.yaml").write_text(
        CONFIG.format(directory=cluster, more="") + "ledger: {retention: 1d}\n"
    )
    ledger = Ledger(cluster / "n1/ledger.sqlite")
    old = replace(grant(50), created_ns=(START - 3 * 86400) * SECOND)
    ledger.open_grant(old)
    ledger.end(50, "epilog", (START - 2 * 86400) * SECOND)
    ledger.close()
    assert "n1: 3 new" in run(cluster).stdout and "n1: 0 new, 0 changed, 3" in run(cluster).stdout


def test_collected_ledger_is_bounded_like_the_nodes(cluster):
    run(cluster)
    database = sqlite3.connect(cluster / "all.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# ---- the summary in Slurm's database -----------------------------------------------------------

OURS = text_of(Totals(12.34, 0, 3 << 30, 1))


def test_text_is_short_and_ours():
    assert OURS == "QG1:busy_s=12.3;suspended_s=0.0;mem_peak_mib=3072;denied=1"
    assert len(text_of(Totals(1e12, 1e12, 2**53, 2**63))) < summary.MAX_TEXT


@pytest.mark.parametrize(
    ("current", "new"),
    [
        ("", OURS),
        ("  ", OURS),
        ("QG1:busy_s=1.0", OURS),
        ("qg1:busy_s=1.0", OURS),
        (OURS.lower(), None),
        (OURS, None),
        ("JS1:H4sIAAAA", None),
        ("by hand", None),
        ("QG1:busy_s=1.0 and a note", None),
        ("JS1:x QG1:busy_s=1.0", None),
        ("QG1:", None),
        ("QG2:busy_s=1", None),
    ],
)
def test_only_an_empty_field_or_our_own_text_is_written(current, new):
    assert decide(current, OURS) == new


@given(st.text(max_size=40))
def test_no_text_of_others_is_ever_overwritten(current: str):
    if decide(current, OURS) is not None:
        assert current.strip() == "" or current.startswith(("QG1:", "qg1:"))


def slurm(fields: dict[int, str], log: list[list[str]]) -> summary.Runner:
    def runner(command: Sequence[str]) -> str:
        log.append(list(command))
        if command[0] == "sacct":
            asked = {int(job) for job in command[command.index("-j") + 1].split(",")}
            return answer(
                command,
                [
                    {
                        "JobIDRaw": str(job),
                        "End": "Unknown" if job == 9 else "5",
                        "AdminComment": text,
                        "Extra": text,
                    }
                    for job, text in fields.items()
                    if job in asked
                ],
            )
        job = int(next(word for word in command if word.startswith("jobid=")).partition("=")[2])
        fields[job] = command[-1].partition("=")[2]
        return ""

    return runner


def test_summaries_are_written_once_and_foreign_fields_left_alone():
    fields = {1: "", 2: "JS1:abc|def", 3: "QG1:busy_s=0.1", 9: ""}
    totals = {job: Totals(1.0, 0, 0, 0) for job in (1, 2, 3, 4, 9)}
    log: list[list[str]] = []
    assert summary.write("admin_comment", totals, slurm(fields, log)) == ([1, 3], [2])
    assert fields[2] == "JS1:abc|def" and fields[9] == "" and fields[1].startswith("QG1:")
    writes = [command for command in log if command[0] == "sacctmgr"]
    assert writes[0][:7] == ["sacctmgr", "-i", "modify", "job", "where", "jobid=1", "set"]
    assert summary.write("admin_comment", totals, slurm(fields, log)) == ([], [2])


def test_one_run_writes_no_more_than_its_limit():
    fields = dict.fromkeys(range(1, 301), "")
    totals = {job: Totals(1.0, 0, 0, 0) for job in fields}
    assert len(summary.write("extra", totals, slurm(fields, []), limit=120)[0]) == 120


def test_totals_are_of_ended_and_measured_jobs_on_all_cards(tmp_path):
    ledger = Ledger(tmp_path / "x.sqlite")
    use(ledger, 1)
    use(ledger, 1, "n2")
    use(ledger, 2, ended=False)
    ledger.open_grant(grant(3))
    ledger.end(3, "epilog", (START + 5) * SECOND)
    assert totals_since(ledger, 0) == {1: Totals(50 / 1e9, 0.0, 0, 0)}
    assert totals_since(ledger, (START + 1000) * SECOND) == {}
