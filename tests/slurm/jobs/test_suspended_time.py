"""Time that online jobs took from offline jobs: given back, bounded by the partition; requeued
when it is too much.
"""

from __future__ import annotations

from jobs_support import Live, work
from test_jobs_sites import site

SETTINGS = "suspended: {offline: {extend_time: true}, normal: {max_suspended: 2s}}\n"


def _limit(live: Live, job: int) -> str:
    return live.job(job)["TimeLimit"]


def test_suspended_jobs_get_their_time_back_or_are_requeued(live: Live) -> None:
    node = ("-w", live.nodes[0], "--gres=qgpu:20,vram:4G")
    endless = work("--length", "600")
    with site(live, lambda text: text + SETTINGS):
        short = live.submit(endless, "--qos=offline", "--time=2", *node)
        bounded = live.submit(endless, "--qos=offline", "--time=1-0", *node)
        tired = live.submit(endless, "--qos=normal", "--time=2", "--requeue", *node)
        for job in (short, bounded, tired):
            live.until(lambda job=job: job in live.grants(), 20, "its grant")
        assert live.ask("qgpu", "extend", "--ahead", "0s") == "", "nobody lost anything yet"
        online = live.submit(work("--length", "6"), "--qos=online", *node)
        live.finish(online, seconds=60)

        def lost(job: int) -> float:
            (grant,) = live.report(job)[job]["grants"]
            return float(grant["suspended_s"])

        live.until(
            lambda: min(map(lost, (short, bounded, tired))) > 3, 20, "the ledger of what they lost"
        )
        said = live.ask("qgpu", "extend", "--ahead", "0s").splitlines()
        assert set(said) == {
            f"job {short}: its time limit is now 00:03:00",
            f"job {bounded}: its partition allows no more time",
            f"job {tired}: requeued, it was suspended for too long",
        }
        assert (_limit(live, short), _limit(live, bounded)) == ("00:03:00", "1-00:00:00")
        assert live.ask("qgpu", "extend", "--ahead", "0s") == "", "once"
        live.until(lambda: live.job(tired).get("Restarts") == "1", 20, "the requeue")
        assert live.report(short)[short]["extended_s"] == 60
        told = live.report(tired)[tired]
        assert told["requeued"] == 1 and any("requeued 1 time" in line for line in told["advice"])
        live.cancel(short, bounded, tired)
        for job in (short, bounded, tired):
            live.wait_gone(job)
        assert live.drained() == ""
