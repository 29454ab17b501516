"""Keeps and ends grants: their files, whether a task fetched one, and which files stay.

A task that SPANK governs leaves JOBID.fetched. A job without it started no task (salloc without
srun, cancelled early, another node of a batch script), or its tasks ran without limits.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.arbiter.sampling import Sampler
from enforcer.daemon.granting import grantdir
from enforcer.daemon.log import emit
from enforcer.daemon.requests.runs import is_run
from enforcer.ledger.store import Ledger
from enforcer.wire.abi import AbiError, pack_grant
from gres.config.site import Node
from gres.grant.store import Grant, GrantError, GrantStore

# seconds: slurmd remembers a job for AuthInfo=cred_expire (120), and a requeue skips the Prolog
OVER_KEPT_S = 6 * 3600
FORGET_NS = 60 * 10**9  # period of scans for old marks, as a busy node has thousands
_BY_SLURM = ("epilog", "marker", "lost", "released")


def fetched(store: GrantStore, grant: Grant | None, reason: str) -> bool | None:
    """Whether a task fetched the grant; None where unknown or meaningless."""
    if grant is None or grant.state != "active" or is_run(grant.job_id) or reason not in _BY_SLURM:
        return None
    return started(store, grant.job_id)


def started(store: GrantStore, job_id: int) -> bool | None:
    """Whether a task of the job has fetched its grant; None where unknown."""
    try:
        return store.was_fetched(job_id)
    except (GrantError, OSError):
        return None


def log_unfetched(ledger: Ledger, grant: Grant) -> None:
    """Log it, as a warning if the driver saw the job on its card. Call
    it before rows are closed.
    """
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
    """Files of ended jobs in the grants directory, and how long they stay."""

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
        """Drop old marks of ended jobs, once per FORGET_NS."""
        now = self.clock.realtime_ns()
        if now >= self._due_ns:
            self._due_ns, old = now + FORGET_NS, now / 1e9 - OVER_KEPT_S
            grantdir.sweep_proofs(self.store.directory.parent, old)
            self.store.forget_over(old)


def stays_over(grant: Grant | None, job_id: int, reason: str) -> bool:
    """Whether JOBID.over stays behind, so that no task starts without a
    new Prolog (docs/adr/0006).
    """
    return not is_run(job_id) and reason in _BY_SLURM and (grant is None or grant.state != "whole")


@dataclass
class Books:
    """The books of a grant: its files, and, when it ends, ledger and log."""

    store: GrantStore
    ledger: Ledger
    sampler: Sampler
    clock: Clock
    leftovers: Leftovers = field(init=False)

    def __post_init__(self) -> None:
        self.leftovers = Leftovers(self.store, self.clock)

    def keep(self, grant: Grant, node: Node, anew: bool) -> str:
        """Write the files of a grant; a sentence if that fails.

        `anew`: it is not the standing one, whose files stay as they are where they are right.
        """
        try:
            blob = pack_grant(grant, node.injection, node.managed, node.usable)
            if anew or not self.store.holds(grant, blob):
                self.store.write_both(grant, blob)
        except (AbiError, GrantError, OSError) as error:
            if anew:
                self.leftovers.remove(grant.job_id, mark=False)
            directory = self.store.directory
            return f"the grant of job {grant.job_id} cannot be written to {directory}: {error}"
        return ""

    def close(self, job_id: int, grant: Grant | None, reason: str, ended_ns: int | None) -> None:
        """`ended_ns`: when the job ended, if that was before now (CLOCK_REALTIME)."""
        directory, now = self.store.directory, self.clock.realtime_ns()
        if reason == "marker":
            ended_ns = grantdir.marker_time_ns(directory, job_id)
        taken = fetched(self.store, grant, reason)
        if grant is not None and taken is False:
            log_unfetched(self.ledger, grant)
        at = now if ended_ns is None else min(ended_ns, now)
        self.sampler.note(self.ledger.end, job_id, reason, at, taken)
        removed = self.leftovers.remove(job_id, mark=stays_over(grant, job_id, reason))
        grantdir.drop_marker(directory, job_id)
        if grant is not None or removed:
            level = logging.WARNING if reason == "lost" else logging.INFO
            emit(level, "end", job=job_id, reason=reason)
