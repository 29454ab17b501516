"""The end of a grant: whether a task ever took it, and which of its files stay behind.

A task that SPANK governs leaves JOBID.fetched. A job whose grant stood until its end without that mark either started
no task (salloc without srun, cancelled early, the other nodes of a batch script), or its tasks ran without limits.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass

from enforcer.clock import Clock
from enforcer.daemon.granting import grantdir
from enforcer.daemon.log import emit
from enforcer.daemon.requests.runs import is_run
from enforcer.ledger.store import Ledger
from gres.grant.store import Grant, GrantError, GrantStore

# slurmd forgets a job within minutes; until then a requeued one may come without a Prolog.
OVER_KEPT_S = 6 * 3600
FORGET_NS = 60 * 10**9
_BY_SLURM = ("epilog", "marker")


def fetched(store: GrantStore, grant: Grant | None, reason: str) -> bool | None:
    """Whether a task took the grant; None where that is not known or means nothing."""
    if grant is None or grant.state != "active" or is_run(grant.job_id) or reason not in _BY_SLURM:
        return None
    try:
        return store.was_fetched(grant.job_id)
    except (GrantError, OSError):
        return None


def say_unfetched(ledger: Ledger, grant: Grant) -> None:
    """Log it: a warning where the driver saw the job on its card all the same. Call it before the rows are closed."""
    try:
        seen = ledger.seen_by_driver(grant.job_id)
    except sqlite3.Error:
        seen = False
    why = (
        "its programs ran without limits: is the SPANK plugin in plugstack.conf?"
        if seen
        else "no task was started on this node, or it ran no program on its card"
    )
    emit(
        logging.WARNING if seen else logging.INFO,
        "grant-unfetched",
        job=grant.job_id,
        uid=grant.uid,
        seen="yes" if seen else "no",
        why=why,
    )


@dataclass
class Leftovers:
    """What stays of ended jobs in the grants directory, and for how long."""

    store: GrantStore
    clock: Clock
    _due_ns: int = 0

    def remove(self, job_id: int, mark: bool) -> bool:
        """Remove the job's files; a directory that cannot be written is logged, not raised."""
        try:
            self._forget()
            return self.store.remove(job_id, mark)
        except (GrantError, OSError) as error:
            emit(logging.ERROR, "grant-not-removed", job=job_id, why=error)
            return False

    def _forget(self) -> None:
        """Drop old marks of ended jobs; not each time, since a busy node has thousands to look at."""
        now = self.clock.realtime_ns()
        if now >= self._due_ns:
            self._due_ns, old = now + FORGET_NS, now / 1e9 - OVER_KEPT_S
            grantdir.sweep_proofs(self.store.directory.parent, old)
            self.store.forget_over(old)


def stays_over(grant: Grant | None, job_id: int, reason: str) -> bool:
    """Whether JOBID.over stays behind, so that no task starts without a new Prolog (docs/adr/0006)."""
    return not is_run(job_id) and reason in _BY_SLURM and (grant is None or grant.state != "whole")
