"""What sacct and qgpu report say of jobs that ended, run, wait, or never were."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jobs_support import Live, work

from cli.sandbox.cluster import Sandbox
from cli.sandbox.options import SandboxOptions
from gres.units import parse_size

GIB = 1 << 30


def known(live: Live, *jobs: int) -> None:
    """Wait until the database knows the jobs; what is final comes later."""
    live.until(
        lambda: all(live.sacct(job, "state") != [""] for job in jobs), 60, f"{jobs} in sacct"
    )


def ended(live: Live, script: str, *options: str) -> int:
    """A job that ran to its end and is known to sacct."""
    job = live.submit(script, *options)
    live.finish(job)
    known(live, job)
    return job


def test_tres_are_accounted_by_class(live: Live) -> None:
    online = live.submit("true", "--qos=online", "--gres=qgpu:30,vram:24G")
    offline = live.submit("true", "--qos=offline", "--gres=qgpu:60,vram:8G")
    lone = live.dialect.lone_whole
    whole = live.submit("true", f"--gres=qgpu:{100 if lone else 200}")
    live.finish(online, offline, whole)
    tres = {}
    for job in (online, offline, whole):
        live.wait_sacct(job)
        pairs = (item.split("=") for item in live.sacct(job, "alloctres")[0].split(","))
        tres[job] = {
            name.removeprefix("gres/"): value for name, value in pairs if name.startswith("gres/")
        }
    sizes = {job: parse_size(tres[job].pop("vram")) for job in (online, offline)}
    assert sizes == {online: 24 * GIB, offline: 8 * GIB}
    assert tres[online] == {"qgpu": "30", "qgpu:online": "30", "shard": "31"}
    assert tres[offline] == {"qgpu": "60", "qgpu:offline": "60", "shard": "11"}
    count = "100" if lone else "200"
    held = {"shard": "100"} if lone else {"gpu": "2"}
    assert tres[whole] == {**held, "qgpu": count, "qgpu:offline": count}


def test_busy_time_is_that_of_the_kernels(live: Live) -> None:
    # 400 kernels of 5 ms are 2 s on the card, by the card's own clock.
    kernels = "--kernel-us 5000 --iters 5000000 --requests 400 --memory 1G"
    job = ended(live, f"qgpu-workload {kernels}", "--gres=qgpu:30,vram:4G")
    (grant,) = live.report(job)[job]["grants"]
    assert grant["busy_s"] == pytest.approx(2.0, rel=0.05)
    assert grant["launches"] >= 400
    assert grant["ended"] is True
    assert grant["reached"] == pytest.approx(100 * grant["busy_s"] / grant["granted_s"], rel=0.01)
    # With the context, which the driver counts to the job as well.
    assert GIB <= grant["mem_peak"] < 1.5 * GIB
    assert (grant["denied"], grant["preempted"], grant["suspended_s"]) == (0, 0, 0)
    assert (grant["share"], grant["mem_cap"]) == (30, 4 * GIB)


def test_preemptions_and_denials_are_counted(live: Live) -> None:
    node = ("-w", live.nodes[0])
    duty = ("--busy", "0.3", "--idle", "0.4", "--length", "1.6")
    offline = live.submit(work("--length", "600"), "--qos=offline", "--gres=qgpu:50,vram:4G", *node)
    live.wait_state(offline, "RUNNING")
    online = live.submit(
        f"{work(*duty)}; {work('--memory', '5G')}",
        "--qos=online",
        "--gres=qgpu:50,vram:4G",
        *node,
    )
    live.finish(online)
    live.cancel(offline)
    live.finish(offline)
    known(live, offline, online)
    found = live.report(offline, online)
    (below,), (above,) = found[offline]["grants"], found[online]["grants"]
    assert below["card"] == above["card"]
    assert below["preempted"] >= 2
    # Two bursts of 0.3 s or more.
    assert below["suspended_s"] >= 0.6 and below["busy_s"] > 0
    # idle_release after each, and little else.
    assert 0.15 < below["suspended_idle_s"] < below["suspended_s"] - 0.4
    assert (above["preempted"], above["suspended_s"]) == (0, 0)
    assert above["denied"] == 1
    assert any("--gres=qgpu:50,vram:6G" in line for line in found[online]["advice"])


def test_report_in_its_three_forms(live: Live) -> None:
    done = ended(live, work("--length", "0.3"), "--qos=online", "--gres=qgpu:30", "-J", "fold|1")
    runs = live.submit("exec sleep 600", "--qos=offline", "--gres=qgpu:20,vram:4G")
    waits = live.submit("true", "-H", "--gres=qgpu:40")
    live.wait_state(runs, "RUNNING")
    live.wait_sacct(done)
    live.until(lambda: live.sacct(runs, "state") == ["RUNNING"], 15, "the running job in sacct")
    live.until(lambda: live.sacct(waits, "state") == ["PENDING"], 15, "the waiting job in sacct")
    ids = [str(job) for job in (done, runs, waits)]
    lines = live.ask("qgpu", "report", "--parsable", *ids).splitlines()
    table = [dict(zip(lines[0].split("|"), line.split("|"), strict=True)) for line in lines[1:]]
    assert [row["JOBID"] for row in table] == ids
    assert [row["STATE"] for row in table] == ["COMPLETED", "RUNNING", "PENDING"]
    assert [row["CLASS"] for row in table][:2] == ["online", "offline"]
    assert [row["SHARE%"] for row in table][:2] == ["30", "20"]
    assert [row["CARD"] == "-" for row in table] == [False, False, True]
    assert (table[2]["BUSY_S"], table[2]["DENIED"]) == ("-", "-")
    human = live.ask("env", "COLUMNS=80", "qgpu", "report", *ids).splitlines()
    assert set(human[0].split()) < set(lines[0].split("|")) and len(human[0]) <= 80
    assert [line.split()[0] for line in human[1:4]] == ids
    found = live.report(*ids)
    assert found[done]["name"] == "fold|1"
    assert found[runs]["grants"][0]["ended"] is False
    assert found[waits]["grants"] == []


def test_report_of_unknown_and_of_wrong_ids(live: Live) -> None:
    done = ended(live, "true", "--gres=qgpu:30")
    mixed = live.run("qgpu", "report", str(done), "999999")
    assert mixed.returncode == 1
    assert str(done) in mixed.stdout
    assert mixed.stderr.strip() == "qgpu report: job 999999 is not known to sacct"
    wrong = live.run("qgpu", "report", "twelve")
    assert wrong.returncode == 2
    assert "'twelve' is not a job id" in wrong.stderr


def test_report_of_arrays_and_jobs_without_cards(live: Live) -> None:
    array = live.submit("true", "--array=1-2", "--gres=qgpu:10", output="%A_%a.out")
    plain = live.submit("true")
    live.until(lambda: not live.ask("squeue", "-h", "-o", "%i"), 20, "the end of the array")
    ids = (f"{array}_1", f"{array}_2", str(plain))
    live.until(
        lambda: all(live.sacct(job, "state") != [""] for job in ids), 15, "the array in sacct"
    )
    lines = live.ask("qgpu", "report", "--parsable", str(array), str(plain)).splitlines()[1:]
    assert sorted(line.split("|")[0] for line in lines) == sorted(
        [f"{array}_1", f"{array}_2", str(plain)]
    )
    one = live.ask("qgpu", "report", "--parsable", f"{array}_2").splitlines()[1:]
    assert [line.split("|")[0] for line in one] == [f"{array}_2"]
    (bare,) = [line.split("|") for line in lines if line.startswith(f"{plain}|")]
    assert bare[4:7] == ["-", "-", "-"]
    spelled = (f"{array}_[1-2],{plain}", f"{array}_1.batch", f"{plain}.0")
    again = live.ask("qgpu", "report", "--parsable", *spelled).splitlines()[1:]
    assert sorted(again) == sorted(lines)


BURN = """import time
held = bytearray(200 << 20)
while time.process_time() < 2:
    pass"""


def test_my_jobs_have_the_host_beside_the_card(live: Live) -> None:
    """Two tasks of 2 s and 200 MiB each: CPU% and HOST% are those of Slurm's own figures."""
    # Sampled each second, because the last sample misses tasks that end at once.
    script = f"srun -n2 --acctg-freq=1 python3 -c '{BURN}'; {work('--length', '0.5')}"
    done = ended(live, script, "-n2", "--mem=1G", "--gres=qgpu:30,vram:4G", "-J", "burn")
    live.wait_sacct(done)
    (job,) = live.report(done).values()
    assert 4 <= job["cpu_s"] < 8 and job["cpus"] >= 2
    assert job["cpu_percent"] == pytest.approx(
        100 * job["cpu_s"] / (job["cpus"] * job["elapsed_s"]), rel=1e-6
    )
    assert 400 << 20 <= job["host_mem_peak"] < 600 << 20 and job["host_mem"] == GIB
    assert job["gpu_hours"] == pytest.approx(0.3 * job["elapsed_s"] / 3600, rel=1e-6)
    mine = live.ask("env", "COLUMNS=80", "qgpu", "report", user="alice").splitlines()
    assert max(map(len, mine)) <= 80 and any(" burn " in line for line in mine)
    rows = {user: csv_of(live, user) for user in ("alice", "bob")}
    assert rows["alice"][str(done)]["CPU%"] == f"{job['cpu_percent']:.1f}"
    for user, found in rows.items():
        assert {row["USER"] for row in found.values()} <= {user}


def csv_of(live: Live, user: str) -> dict[str, dict[str, str]]:
    """The list of a user's jobs, by job."""
    lines = live.ask("qgpu", "report", "--csv", user=user).splitlines()
    return {row["JOBID"]: row for row in csv.DictReader(lines)}


def seconds_of_sacct(live: Live, *jobs: int) -> dict[int, int]:
    """ElapsedRaw, which is Slurm's own arithmetic."""
    rows = [
        line.split("|")
        for line in live.ask(
            "sacct", "-X", "-n", "-P", "-j", ",".join(map(str, jobs)), "-o", "jobidraw,elapsedraw"
        ).splitlines()
    ]
    return {int(job): int(elapsed) for job, elapsed in rows}


def test_totals_are_those_of_sacct_to_the_second(live: Live) -> None:
    shares = {"online": (30, 40), "offline": (20, 60)}
    begun = time.monotonic()
    jobs = {
        live.submit(work("--length", "1.5"), f"--qos={qos}", f"--gres=qgpu:{share},vram:4G"): (
            qos,
            share,
        )
        for qos, pair in shares.items()
        for share in pair
    }
    live.finish(*jobs)
    wall = time.monotonic() - begun
    for job in jobs:
        live.wait_sacct(job)
    elapsed = seconds_of_sacct(live, *jobs)
    found = live.report(*jobs)
    for job, (qos, share) in jobs.items():
        (grant,) = found[job]["grants"]
        assert (found[job]["elapsed_s"], found[job]["qos"], grant["share"]) == (
            elapsed[job],
            qos,
            share,
        )
        # From the Prolog to the Epilog: its program lies between.
        assert 1.5 <= grant["granted_s"] <= wall
    everything = json.loads(live.ask("qgpu", "report", "--since", "1h", "--by", "qos", "--json"))
    groups = {group["name"]: group for group in everything["groups"]}
    lines = live.ask(
        "sacct", "-X", "-a", "-n", "-P", "-S", "now-1hour", "-o", "qos,elapsedraw,alloctres"
    ).splitlines()
    for qos in shares:
        expected = 0.0
        for name, seconds, tres in (line.split("|") for line in lines):
            share = dict(item.split("=", 1) for item in tres.split(",") if item).get(
                "gres/qgpu", "0"
            )
            expected += int(seconds) * int(share) / 100 * (name == qos)
        assert groups[qos]["granted_s"] == pytest.approx(expected, abs=1e-6)
        assert groups[qos]["measured"] >= 2 and groups[qos]["used_s"] > 0
        assert groups[qos]["efficiency"] is not None


@pytest.fixture
def untouched() -> Iterator[Live]:
    """A cluster without other jobs: sreport's totals of the root account are then those of this
    test's jobs.
    """
    with Sandbox(SandboxOptions(f"s{os.getpid()}", nodes=1)) as cluster:
        yield Live(cluster)


def test_shares_are_those_of_sreport_to_the_second(untouched: Live) -> None:
    """By sizes of jobs, which sreport sums over the jobs themselves; its use by user is an hourly
    roll-up.

    Its window has whole hours, and it finds nothing if the window begins before the hour the
    cluster was first seen in.
    """
    live = untouched
    hour = time.time() // 3600 * 3600
    done = [ended(live, "sleep 2", f"--gres=qgpu:{share},vram:4G") for share in (30, 55)]
    for job in done:
        live.wait_sacct(job)
    since, until = (
        time.strftime("%Y-%m-%dT%H:00:00", time.localtime(hour + n * 3600)) for n in (0, 2)
    )
    words = ("sreport", "-P", "-t", "Seconds", "-T", "gres/qgpu", "job", "SizesByAccount")
    rows = [
        line.split("|") for line in live.ask(*words, f"Start={since}", f"End={until}").splitlines()
    ]
    (heads,) = [row for row in rows if row[0] == "Cluster"]
    (root,) = [row for row in rows if row[1:2] == ["root"]]
    # 26.05 has a column for the sum as well.
    sizes = [int(value) for head, value in zip(heads, root, strict=True) if head.endswith(" TRES")]
    jobs = json.loads(live.ask("qgpu", "report", *map(str, done), "--json"))["jobs"]
    assert len(jobs) == 2 and min(job["elapsed_s"] for job in jobs) >= 2
    assert sum(job["elapsed_s"] * job["share"] for job in jobs) == sum(sizes)


def test_private_data_hides_the_jobs_of_others(live: Live) -> None:
    """Users ask qgpud, which knows them by the kernel; what slurm.conf hides, qgpu hides by the
    same words.
    """
    done = ended(live, work("--length", "0.5"), "--gres=qgpu:30,vram:4G")
    runs = live.submit(work("--length", "600"), "--gres=qgpu:30,vram:4G")
    live.wait_state(runs, "RUNNING")

    def seen(user: str | None) -> tuple[set[int], set[int]]:
        body = json.loads(live.ask("qgpu", "top", "--cluster", "--json", user=user))
        top = {t["job_id"] for n in body["nodes"] for c in n["cards"] for t in c["tenants"]}
        jobs = json.loads(live.ask("qgpu", "report", "--json", str(done), user=user))["jobs"]
        return top, {job["raw_id"] for job in jobs if any(g["busy_s"] for g in job["grants"])}

    everybody = ({runs}, {done})
    live.until(lambda: all(seen(u) == everybody for u in ("alice", "bob", None)), 15, "open to all")
    config = live.sandbox.layout.qgpu_yaml

    def restart() -> None:
        for node in live.nodes:
            live.stop_qgpud(node)
            live.restore(node)

    text = config.read_text()
    try:
        config.write_text(f"{text}\nreports: {{private_data: [jobs]}}\n")
        restart()
        live.until(
            lambda: seen("alice") == everybody and seen(None) == everybody,
            15,
            "alice and root see it",
        )
        assert seen("bob") == (set(), set()), "bob sees neither what runs nor what was used"
        for node in live.nodes:
            assert (
                live.run("cat", str(live.paths(node).run_dir / "state.json"), user="bob").returncode
                != 0
            )
    finally:
        config.write_text(text)
        restart()
        live.cancel(runs)


def test_harvest_is_what_offline_did_beside_online(live: Live) -> None:
    node = ("-w", live.nodes[0])
    duty = ("--busy", "0.2", "--idle", "0.6", "--length", "3")
    offline = live.submit(work("--length", "600"), "--qos=offline", "--gres=qgpu:50,vram:4G", *node)
    live.wait_state(offline, "RUNNING")
    online = live.submit(work(*duty), "--qos=online", "--gres=qgpu:50,vram:4G", *node)
    live.finish(online)
    live.cancel(offline)
    live.finish(offline)
    known(live, online, offline)
    found = live.report(online, offline)
    (above,), (below,) = found[online]["grants"], found[offline]["grants"]
    assert above["card"] == below["card"]
    assert 0 < below["harvest_s"] < below["busy_s"], "it also worked alone"
    assert above["harvest_s"] is None and below["held_s"] is None
    if above["held_s"] is not None:  # an arbiter that tells it
        assert above["held_s"] >= above["busy_s"] * 0.9


def test_users_get_their_own_through_qgpud_and_not_the_file(live: Live) -> None:
    done = ended(live, work("--length", "0.5"), "--gres=qgpu:30,vram:4G")
    ledger = live.paths(live.nodes[0]).ledger
    assert ledger.stat().st_mode & 0o777 == 0o640
    assert live.run("cat", str(ledger), user="alice").returncode != 0
    body = json.loads(live.ask("qgpu", "report", "--json", str(done), user="alice"))
    (job,) = body["jobs"]
    assert job["grants"][0]["busy_s"] > 0 and body["notes"] == []


def test_top_jobs_and_cards_show_what_runs(live: Live) -> None:
    job = live.submit(work("--length", "300"), "--qos=online", "--gres=qgpu:30,vram:4G")
    live.wait_state(job, "RUNNING")

    def tenant(user: str | None = None) -> dict[str, Any]:
        body = json.loads(live.ask("qgpu", "top", "--cluster", "--json", user=user))
        found = [
            t for n in body["nodes"] for c in n["cards"] for t in c["tenants"] if t["job_id"] == job
        ]
        return found[0] if found else {}

    live.until(lambda: tenant().get("state") == "running", 20, "the job running in qgpu top")
    live.until(lambda: (tenant().get("share_now") or 0) > 50, 10, "a busy card in qgpu top")
    assert tenant("alice")["user"] == "alice" and tenant()["mem_cap"] == 4 * GIB
    node, card = live.place(job)
    lines = live.ask("qgpu", "jobs", "--parsable", "--node", node).splitlines()
    assert lines[1].split("|")[:6] == [str(job), "alice", node, str(card), "online", "30"]
    cards = json.loads(live.ask("qgpu", "cards", "--json", "--node", node))["cards"]
    assert [c["online"] for c in cards if c["card"] == card] == [30]
    live.cancel(job)


def test_collected_ledger_tells_the_same(live: Live) -> None:
    done = ended(live, work("--length", "0.5"), "--gres=qgpu:30,vram:4G")
    base, into = (
        live.paths(live.nodes[0]).state_dir.parent,
        live.sandbox.layout.state / "collected.sqlite",
    )
    first = live.ask("qgpu", "collect", "--from", str(base), "--into", str(into))
    again = live.ask("qgpu", "collect", "--from", str(base), "--into", str(into))
    assert " new" in first and all(" 0 new, 0 changed" in line for line in again.splitlines())
    apart = json.loads(live.ask("qgpu", "report", "--json", "--ledger", str(into), str(done)))[
        "jobs"
    ][0]
    assert apart["grants"] == live.report(done)[done]["grants"]


def test_page_of_a_live_job(live: Live) -> None:
    done = ended(live, work("--length", "2.5"), "--gres=qgpu:30,vram:4G")
    page = live.sandbox.layout.state / "page.html"
    live.ask("qgpu", "report", str(done), "--html", str(page))
    text = page.read_text()
    assert text.count("<svg") == 2 and f"<h3>Job {done} " in text
