"""What sacct and qgpu report say of jobs that ended, run, wait, or never were."""

from __future__ import annotations

import pytest
from jobs_support import Live, work

from gres.units import parse_size

GIB = 1 << 30


def known(live: Live, *jobs: int) -> None:
    """Wait until the database knows the jobs; what is final comes later, and from the ledger at once."""
    live.until(lambda: all(live.sacct(job, "state") != [""] for job in jobs), 15, f"{jobs} in sacct")


def ended(live: Live, script: str, *options: str) -> int:
    """A job that ran to its end and is known to sacct."""
    job = live.submit(script, *options)
    live.finish(job)
    known(live, job)
    return job


def test_tres_are_accounted_by_class(live: Live) -> None:
    online = live.submit("true", "--qos=online", "--gres=qgpu:30,qgpu_mem:24G")
    offline = live.submit("true", "--qos=offline", "--gres=qgpu:60,qgpu_mem:8G")
    whole = live.submit("true", "--gres=qgpu:200")
    live.finish(online, offline, whole)
    tres = {}
    for job in (online, offline, whole):
        live.wait_sacct(job)
        pairs = (item.split("=") for item in live.sacct(job, "alloctres")[0].split(","))
        tres[job] = {name.removeprefix("gres/"): value for name, value in pairs if name.startswith("gres/")}
    sizes = {job: parse_size(tres[job].pop("qgpu_mem")) for job in (online, offline)}
    assert sizes == {online: 24 * GIB, offline: 8 * GIB}
    assert tres[online] == {"qgpu": "30", "qgpu:online": "30", "shard": "31"}
    assert tres[offline] == {"qgpu": "60", "qgpu:offline": "60", "shard": "11"}
    assert tres[whole] == {"gpu": "2"}


def test_busy_time_is_that_of_the_kernels(live: Live) -> None:
    # 400 kernels of 5 ms are 2 s on the card, by the card's own clock.
    kernels = "--kernel-us 5000 --iters 5000000 --requests 400 --memory 1G"
    job = ended(live, f"qgpu-workload {kernels}", "--gres=qgpu:30,qgpu_mem:4G")
    (grant,) = live.report(job)[job]["grants"]
    assert grant["busy_s"] == pytest.approx(2.0, rel=0.05)
    assert grant["launches"] >= 400
    assert grant["ended"] is True
    assert grant["reached"] == pytest.approx(100 * grant["busy_s"] / grant["granted_s"], rel=0.01)
    assert GIB <= grant["mem_peak"] < 1.2 * GIB
    assert (grant["denied"], grant["preempted"], grant["suspended_s"]) == (0, 0, 0)
    assert (grant["share"], grant["mem_cap"]) == (30, 4 * GIB)


def test_preemptions_and_denials_are_counted(live: Live) -> None:
    node = ("-w", live.nodes[0])
    duty = ("--busy", "0.3", "--idle", "0.4", "--length", "1.6")
    offline = live.submit(work("--length", "3"), "--qos=offline", "--gres=qgpu:50,qgpu_mem:4G", *node)
    live.wait_state(offline, "RUNNING")
    online = live.submit(
        f"{work(*duty)}; {work('--memory', '5G')}", "--qos=online", "--gres=qgpu:50,qgpu_mem:4G", *node
    )
    live.finish(offline, online)
    known(live, offline, online)
    found = live.report(offline, online)
    (below,), (above,) = found[offline]["grants"], found[online]["grants"]
    assert below["card"] == above["card"]
    assert below["preempted"] >= 2
    # Each burst of 0.3 s, and the 0.1 s behind it in which offline still waits.
    assert 0.6 <= below["suspended_s"] <= 2.0
    assert (above["preempted"], above["suspended_s"]) == (0, 0)
    assert above["denied"] == 1
    assert any("--gres=qgpu:50,qgpu_mem:5G" in line for line in found[online]["advice"])


def test_report_in_its_three_forms(live: Live) -> None:
    done = ended(live, work("--length", "0.3"), "--qos=online", "--gres=qgpu:30", "-J", "fold|1")
    runs = live.submit("exec sleep 60", "--qos=offline", "--gres=qgpu:20,qgpu_mem:4G")
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
    human = live.ask("qgpu", "report", *ids).splitlines()
    assert human[0].split() == lines[0].split("|")
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
    live.until(lambda: all(live.sacct(job, "state") != [""] for job in ids), 15, "the array in sacct")
    lines = live.ask("qgpu", "report", "--parsable", str(array), str(plain)).splitlines()[1:]
    assert sorted(line.split("|")[0] for line in lines) == sorted([f"{array}_1", f"{array}_2", str(plain)])
    one = live.ask("qgpu", "report", "--parsable", f"{array}_2").splitlines()[1:]
    assert [line.split("|")[0] for line in one] == [f"{array}_2"]
    (bare,) = [line.split("|") for line in lines if line.startswith(f"{plain}|")]
    assert bare[3:6] == ["-", "-", "-"]
