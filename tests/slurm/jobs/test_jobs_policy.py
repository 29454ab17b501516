"""A job of one percent has no more of a node than is booked, and other jobs start beside it."""

from __future__ import annotations

import shlex

from jobs_support import CASES, Live

ONE = {"cpu": "1", "node": "1", "gres/qgpu": "1", "gres/qgpu:online": "1", "gres/shard": "1"}


def test_no_option_books_more_or_keeps_others_out(live: Live) -> None:
    """All of them run at once on one card of a node; then the rest of both its cards is given."""
    node = ("-w", live.nodes[0], "--qos=online")
    cases = [case for case in CASES["harmless"] if not live.dialect.before(case.get("since", ""))]
    jobs = {
        live.submit("exec sleep 600", "--gres=qgpu:1", *node, *shlex.split(case["args"])): case
        for case in cases
    }
    for job, case in jobs.items():
        grant = live.grant(job)
        assert (grant.job_class, [card.share for card in grant.cards]) == ("online", [1]), case
        booked = live.tres(job)
        assert {name: booked[name] for name in ONE} == ONE, case
        assert "gres/gpu" not in booked, case
    rest = 100 - len(jobs)
    others = [
        live.submit("exec sleep 600", f"--gres=qgpu:{share}", *node, user="bob")
        for share in (rest, 100 - 1)
    ]
    for job in others:
        live.wait_state(job, "RUNNING")
