"""A user with very many short jobs fills the ledger: what others used stays in it."""

from __future__ import annotations

from pathlib import Path

from enforcer.ledger.prune import Limits, prune, used_bytes
from enforcer.ledger.read import reading, usage_of_jobs
from enforcer.ledger.store import Ledger
from gres.grant.store import Grant, GrantCard

CARD = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 1000, 4000)
SECOND, JOBS, FEW = 10**9, 1500, 20
HONEST, GREEDY = 1000, 2000


def test_a_user_with_most_grants_pushes_out_his_own_and_not_those_of_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for job in range(1, JOBS + 1):
        uid, at = HONEST if job <= FEW else GREEDY, job * SECOND
        ledger.open_grant(
            Grant(job, uid, 100, "n1", "active", "online", at, "", (CARD,), "/r", "/d", "/s")
        )
        ledger.end(job, "epilog", at)
    limit = used_bytes(ledger) // 2
    while prune(ledger, Limits(10**9, limit), JOBS * SECOND):
        pass
    with reading(ledger.path) as database:
        left = [usage.job_id for _, usage in usage_of_jobs(database, range(1, JOBS + 1))]
    assert used_bytes(ledger) <= limit and len(left) < JOBS
    assert left[:FEW] == list(range(1, FEW + 1)), "the oldest of all, of a user with few"
    assert left[FEW:] == list(range(left[FEW], JOBS + 1)), "of the other the oldest went"
