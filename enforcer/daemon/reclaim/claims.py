"""Prologs that wait for memory: claims, with a deadline after which their jobs are requeued.

A claim is not a grant yet: nothing of its job is written or sent, but a file says when its Prolog
came. So a restarted qgpud gives it no new deadline. The hook's own would end first, and drain the
node.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path

from enforcer.clock import Clock
from enforcer.daemon.granting.decide import refused
from enforcer.daemon.granting.reclaimable import too_many
from enforcer.daemon.log import emit
from enforcer.daemon.reclaim.child import Child
from enforcer.daemon.reclaim.slurm import Queue
from enforcer.reclaim.model import Claim
from gres.config.site import Config, Node
from gres.grant.store import Grant
from gres.units import MIB, format_mib


@dataclass
class _Waiting:
    grant: Grant
    since_ns: int
    ready: bool = False
    turned_away: str = ""  # why it is requeued
    child: Child | None = None


@dataclass
class Claims:
    """The Prologs that wait on one node."""

    config: Config
    node: Node
    clock: Clock
    queue: Queue | None
    directory: Path  # of the files
    news: bool = False  # a Prolog can go on
    _waiting: dict[int, _Waiting] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def waits(self, job_id: int) -> bool:
        """Whether the job's Prolog waits."""
        return job_id in self._waiting

    def cards(self) -> set[str]:
        """The cards on which they wait."""
        return {card.uuid for one in self._waiting.values() for card in one.grant.cards}

    def waiting(self) -> list[Claim]:
        """The claims for a decision; a job that is turned away has none."""
        return [
            Claim(job_id, {card.uuid: card.mem_cap for card in one.grant.cards}, one.since_ns)
            for job_id, one in self._waiting.items()
            if not one.turned_away
        ]

    def ready(self, job_id: int) -> None:
        """The memory of this claim is free."""
        waiting = self._waiting.get(job_id)
        if waiting is not None and not waiting.ready:
            waiting.ready = self.news = True
            took = self.clock.monotonic_ns() - waiting.since_ns
            emit(logging.INFO, "reclaim", step="ready", job=job_id, ms=took // 10**6)

    def withdraw(self, job_id: int) -> None:
        """The Prolog is gone, or answered."""
        waiting = self._waiting.pop(job_id, None)
        with contextlib.suppress(OSError):
            self._file(job_id).unlink()
        if waiting is not None and waiting.child is not None:
            waiting.child.drop()

    def admit(self, grant: Grant, standing: Collection[Grant], contested: Set[str]) -> Grant | str:
        """The grant, or its refusal, or why its Prolog waits.

        `contested`: cards with reclaimable jobs. A whole card has one if it was moved there.
        """
        if any(other.job_id == grant.job_id for other in standing) or grant.state == "refused":
            return grant  # the same Prolog again, or nothing to wait for
        waiting = self._waiting.get(grant.job_id)
        if waiting is None:
            why = too_many(grant, standing, self.node, self.config)
            if not why and (grant.reclaimable or contested.isdisjoint(_uuids(grant))):
                return grant
            waiting = _Waiting(grant, self._came(grant.job_id))
            self._waiting[grant.job_id] = waiting
            if why:
                self._turn_away(waiting, why)
            else:
                emit(logging.INFO, "reclaim", step="claim", job=grant.job_id)
        return self._answer(waiting, grant)

    def _file(self, job_id: int) -> Path:
        return self.directory / f"{job_id}.claim"

    def _came(self, job_id: int) -> int:
        """When the job's Prolog came first (CLOCK_MONOTONIC), which is written down."""
        now, most = self.clock.monotonic_ns(), self.config.prolog_deadline.ns
        with contextlib.suppress(OSError, ValueError):
            before = int(self._file(job_id).read_text())
            if now - most < before <= now:
                return before
        with contextlib.suppress(OSError):  # without the file a restart costs a requeue at most
            self.directory.mkdir(mode=0o700, exist_ok=True)
            self._file(job_id).write_text(f"{now}\n")
        return now

    def _answer(self, waiting: _Waiting, grant: Grant) -> Grant | str:
        late = self.clock.monotonic_ns() - waiting.since_ns >= self.config.reclaim.deadline.ns
        if not waiting.turned_away and not waiting.ready and late:
            self._turn_away(waiting, self._too_late(grant))
        if waiting.turned_away:
            return self._refusal(waiting, grant)
        if waiting.ready:
            self.withdraw(grant.job_id)
            return grant
        return f"memory of card(s) {_indexes(grant)} is not free yet"

    def _too_late(self, grant: Grant) -> str:
        cap = format_mib(max(card.mem_cap for card in grant.cards) // MIB)
        return (
            f"job {grant.job_id} needs {cap} of card(s) {_indexes(grant)} of {grant.node}, and"
            f" offline jobs did not give it back within {self.config.reclaim.deadline}."
        )

    def _turn_away(self, waiting: _Waiting, why: str) -> None:
        """Requeue the job. Its Prolog is answered when Slurm was told, so no task starts."""
        waiting.turned_away, job_id = why, waiting.grant.job_id
        emit(logging.WARNING, "reclaim", step="requeue", job=job_id, why=why)
        waiting.child = None if self.queue is None else self.queue.requeue(job_id)

    def _refusal(self, waiting: _Waiting, grant: Grant) -> Grant | str:
        """The refusal that lets no task start, whether or not Slurm requeues the job."""
        done = None if waiting.child is None else waiting.child.poll()
        if waiting.child is not None and done is None:
            return waiting.turned_away
        waiting.child = None  # it ended
        self.withdraw(grant.job_id)
        queued = done is not None and done.status == 0
        then = "It is put back into the queue." if queued else "Submit it again."
        if not queued:
            why = "Slurm cannot be asked" if done is None else done.why
            emit(logging.WARNING, "reclaim", step="not-requeued", job=grant.job_id, why=why)
        return refused(grant, f"{waiting.turned_away} {then}", grant.created_ns)


def _uuids(grant: Grant) -> Iterable[str]:
    return [card.uuid for card in grant.cards]


def _indexes(grant: Grant) -> str:
    return ", ".join(str(card.index) for card in grant.cards)
