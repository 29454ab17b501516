"""Moves the memory of a job away and back, step by step; finishes what an earlier qgpud began.

Who moves is decided elsewhere. Helpers are children; `advance` takes their ends.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from enforcer.daemon.arbiter.port import ArbiterError, ArbiterRefusedError
from enforcer.daemon.audit.procs import start_ticks
from enforcer.daemon.log import emit
from enforcer.daemon.reclaim import notes
from enforcer.daemon.reclaim.away import Away
from enforcer.daemon.reclaim.mover import Action, Mover, Operation, Outcome
from enforcer.daemon.reclaim.seen import Uses, pids_of
from enforcer.daemon.reclaim.totals import Totals
from enforcer.daemon.reclaim.transfer import Transfers, is_guest
from enforcer.daemon.reclaim.unable import Unable
from enforcer.ledger import reclaims as rows
from gres.grant.store import Grant

if TYPE_CHECKING:
    from enforcer.daemon.node import NodeService

TRIES = 3  # starts of one operation whose processes ended in its midst, or took it back
# Asks about bytes of a job that is away, after 1, 2, 4 ... s: a return that its user began is over
# then, as the longest operation is.
ASKS, ASK_NS = 6, 10**9


@dataclass
class Moves:
    """The jobs of one node that are away or on their way. `uses`: what processes held last."""

    service: NodeService
    unable: Unable = field(init=False)
    mover: Mover = field(init=False)
    transfers: Transfers = field(init=False)
    totals: Totals = field(default_factory=Totals)
    tell: Callable[[int, int, str], object] | None = None  # a job, its user, a sentence
    away: dict[int, Away] = field(default_factory=dict)
    uses: Uses = field(default_factory=dict)

    def __post_init__(self) -> None:
        service, ports = self.service, self.service.ports
        settings, clock = service.config.reclaim, ports.clock
        run_dir = Path(service.node.run_dir)
        self.mover = Mover(settings.helper, run_dir, clock, settings.operation.ns)
        self.transfers = Transfers(self.service)
        self.unable = Unable(settings.unable, clock, ports.queue, service.job_of)

    def operations(self) -> list[Operation]:
        """Those that run."""
        return [away.operation for away in self.away.values() if away.operation is not None]

    def close(self) -> None:
        """Let helpers that run go on without us: the next qgpud finds what they did."""
        for operation in self.operations():
            operation.child.drop()

    def moving(self) -> bool:
        """Whether any does not just wait for room."""
        return any(
            away.state != "checkpointed" and (away.operation is not None or not away.doubted)
            for away in self.away.values()
        )

    def advance(self) -> None:
        """Take the ends of operations."""
        for away in list(self.away.values()):
            self._advance(away)

    def ended(self, job_id: int) -> None:
        """The job's grant ended: its processes are gone, or go now."""
        self.unable.ended(job_id)
        away = self.away.pop(job_id, None)
        if away is None:
            return
        if away.operation is not None:
            away.operation.child.drop()
        self.mover.forget(job_id)
        if away.recorded and away.state != "unable":
            self._note_back(away, "ended")

    def leave(self, grant: Grant, other: int) -> None:
        """Close the job's gates, and begin to move its memory away."""
        if not self.service.connected:
            return  # the gates are closed first, and the arbiter knows all processes
        mine, now = self.uses.get(grant.job_id, {}), self.service.ports.clock.realtime_ns()
        away = Away(grant, "leaving", now, other, sizes=dict(mine))
        self._know(away, [*mine, *self.registered(grant.job_id)])
        self.away[grant.job_id] = away
        self._hold(grant.job_id, held=True)
        sizes = {card.uuid: away.taken(card.uuid) for card in grant.cards}
        why = f"job {other}" if other else "moved by root"
        self.service.sampler.note(rows.left, self.service.ledger, grant, now, why, sizes)
        emit(logging.INFO, "reclaim", step="leave", job=grant.job_id, bytes=away.size, to=other)
        self._move(away, "leave")

    def back(self, job_id: int, to: str = "") -> None:
        """Begin to move the job's memory back, or to another card."""
        away = self.away[job_id]
        if to and not away.relisted and self._newcomers(away):
            away.relisted = True
            self._move(away, "leave")
            return
        why = ""
        if to:
            why = self.transfers.obstacle(away, to) or self.transfers.switch(away, to)
        elif is_guest(away.grant):  # it may open the card from the first moment on
            self.transfers.confine(away.grant)
        if why:
            self._stay(away, why)
        else:
            self._move(away, "return")

    def regrant(self, grant: Grant) -> None:
        """The job's grant was changed while its memory is away."""
        away = self.away.get(grant.job_id)
        if away is not None:
            away.grant = grant

    def _newcomers(self, away: Away) -> bool:
        """Whether processes of the job began since it left: they see the card that it left."""
        before = set(away.pids)
        with contextlib.suppress(ArbiterError):
            self._know(away, self.registered(away.grant.job_id))
        return bool(away.pids.keys() - before)

    def _stay(self, away: Away, why: str) -> None:
        """The job returns to its own card after all."""
        away.stays, away.wanted, away.state = True, "", "checkpointed"
        self.totals.not_moved += 1
        emit(logging.WARNING, "not-moved", job=away.grant.job_id, why=why)

    def want(self, grant: Grant, uuid: str, until_ns: int) -> None:
        """Move the job to another card of the node, as root wants it.

        `until_ns` (CLOCK_MONOTONIC): then it may return to its own card as well. Without an arbiter
        nothing is done.
        """
        if grant.job_id not in self.away:
            self.leave(grant, 0)
        away = self.away.get(grant.job_id)
        if away is not None and away.state in ("leaving", "checkpointed"):
            away.wanted, away.wanted_ns, away.stays = uuid, until_ns, False

    def doubt(self) -> None:
        """Ask about jobs of which the driver counts bytes on a card though they are away: any
        process of a job's user can restore the job.
        """
        for away in list(self.away.values()):
            held = self._held(away)
            if away.doubted and not held and away.operation is None:
                away.state, away.doubted = "checkpointed", False
            elif away.state == "checkpointed" and held > away.residue:
                away.state, away.doubted, away.asks = "leaving", True, 0
                self._ask(away)

    def _held(self, away: Away) -> int:
        """Bytes of the job on its cards, as the driver counts."""
        mine = self.uses.get(away.grant.job_id, {})
        return sum(sum(held.values()) for held in mine.values())

    def _ask(self, away: Away) -> None:
        self._know(away, self.uses.get(away.grant.job_id, {}))
        self._start(away, "state")

    def registered(self, job_id: int) -> list[int]:
        """The processes of the job that the arbiter knows. Raises ArbiterError."""
        return [use.pid for use in self.service.ports.arbiter.processes() if use.job_id == job_id]

    def _know(self, away: Away, pids: Iterable[int]) -> None:
        """Note processes that provably belong to the job."""
        job_id = away.grant.job_id
        away.pids |= {p: start_ticks(p) for p in pids if self.service.job_of(p) == job_id}

    def _move(self, away: Away, action: Action) -> None:
        away.prune(start_ticks)
        away.state = "returning" if action == "return" else "leaving"
        self._start(away, action)

    def _start(self, away: Away, action: Action) -> None:
        words = []
        if action == "return" and away.came_from:
            words = ["--map", f"{away.came_from}={away.grant.cards[0].uuid}"]
            words += [word for pid in sorted(away.there) for word in ("--there", str(pid))]
        away.operation = self.mover.start(action, away.grant, away.pids, words)
        if away.operation.child.fileno() is None:
            self._advance(away)  # no helper will end

    def _advance(self, away: Away) -> None:
        """Take the end of the job's operation, or what else became of it."""
        if away.state == "unable":
            self.unable.advance(away, self.uses.get(away.grant.job_id, {}))
        elif away.operation is not None:
            outcome = away.operation.poll()
            if outcome is not None:
                operation, away.operation = away.operation, None
                self._over(away, operation, outcome)
        elif away.examine:
            self._examine(away)
        elif away.doubted:
            if self.service.ports.clock.monotonic_ns() >= away.until_ns:
                self._ask(away)
        elif away.state == "checkpointed" and not away.prune(start_ticks):
            self._home(away, "ended", None)  # its processes ended; new ones may begin

    def _over(self, away: Away, operation: Operation, outcome: Outcome) -> None:
        took = self.service.ports.clock.monotonic_ns() - operation.began_ns
        if outcome.action == "state" and away.doubted:
            self._looked(away, outcome)
        elif outcome.action == "state":
            self._examined(away, outcome)
        elif outcome.done and outcome.action == "leave":
            self._left(away, took)
        elif outcome.done:
            self._home(away, "returned", took)
        elif "failed" not in outcome.states() and (
            self._once_more(away, operation, outcome) or self._other_way(away, outcome)
        ):
            return
        else:
            self._give_up(away, outcome)

    def _looked(self, away: Away, outcome: Outcome) -> None:
        """What takes its memory back by itself leaves again, and ends if it goes on so."""
        if outcome.done and outcome.states() <= {"checkpointed"}:
            away.until_ns = self.service.ports.clock.monotonic_ns() + (ASK_NS << away.asks)
            away.asks += 1
            if away.asks > ASKS:  # the driver counts a rest
                away.state, away.doubted, away.residue = "checkpointed", False, self._held(away)
            return
        away.doubted = False
        away.residue, away.restored = 0, away.restored + 1
        job_id = away.grant.job_id
        emit(logging.WARNING, "reclaim", step="again", job=job_id, times=away.restored)
        if not outcome.done or "failed" in outcome.states():
            self._give_up(away, outcome)
        elif away.restored > TRIES:
            why = "its processes took the memory back again and again"
            self._give_up(away, Outcome("state", done=False, why=why))
        else:
            self._move(away, "leave")

    def _once_more(self, away: Away, operation: Operation, outcome: Outcome) -> bool:
        """Whether the operation was started again: processes ended in its midst, or the card that
        it returns to was filled by others.
        """
        ended = [pid for pid in operation.pids if start_ticks(pid) != away.pids.get(pid)]
        full = outcome.action == "return" and outcome.without_room()
        if away.tries >= TRIES or not (ended or full):
            return False
        away.tries += 1
        self._move(away, "leave" if full else outcome.action)
        return True

    def _other_way(self, away: Away, outcome: Outcome) -> bool:
        """Whether a failed return to another card goes on: some processes were there already, or
        the job returns to the card that it came from.
        """
        if outcome.action != "return" or not away.came_from or outcome.without_room():
            return False
        if outcome.unmapped() - away.there:
            away.there |= outcome.unmapped()
            self._move(away, "return")
            return True
        if away.stays or self.transfers.switch(away, away.came_from):
            return False
        self._stay(away, outcome.why)
        return True

    def _left(self, away: Away, took: int) -> None:
        away.state, away.tries = "checkpointed", 0
        if not away.prune(start_ticks):
            self._home(away, "ended", None)
            return
        self.service.sampler.note(rows.moved, self.service.ledger, away.grant.job_id, took)
        self.totals.left(away.size, took)
        fields = {"job": away.grant.job_id, "bytes": away.size, "ms": took // 10**6}
        emit(logging.INFO, "reclaim", step="left", **fields, to=away.other)
        self._tell_owner(away, notes.left(away))

    def _home(self, away: Away, result: str, took: int | None) -> None:
        """The job goes on where it was."""
        job_id = away.grant.job_id
        del self.away[job_id]
        self.totals.moved += bool(away.came_from) and not away.stays
        if away.recorded:
            self._note_back(away, result, took)
        fields = {"job": job_id, "bytes": away.size, "result": result}
        emit(logging.INFO, "reclaim", step="back", **fields, ms=took and took // 10**6)
        if took is not None:
            self.totals.returned(away.size, took)
            self._tell_owner(away, notes.returned(away))
        self._hold(job_id, held=False)

    def _hold(self, job_id: int, held: bool) -> None:
        """Close or open the job's gates. An arbiter that is away does so when it is back: until
        then the driver's lock keeps the job from its card.
        """
        try:
            self.service.ports.arbiter.hold(job_id, held)
        except (ArbiterError, ArbiterRefusedError) as error:
            self.service.lose_arbiter(str(error))

    def _tell_owner(self, away: Away, sentence: str) -> None:
        if self.tell is not None:
            self.tell(away.grant.job_id, away.grant.uid, sentence)

    def _note_back(self, away: Away, result: str, took: int | None = None) -> None:
        service, now = self.service, self.service.ports.clock.realtime_ns()
        service.sampler.note(rows.back, service.ledger, away.grant.job_id, now, result, took)

    def _give_up(self, away: Away, outcome: Outcome) -> None:
        """The job's memory cannot be moved: it is requeued or stopped, and its processes end."""
        away.state, away.examine = "unable", False
        self.totals.unable += 1
        why = outcome.why or "the driver says that a process failed"
        emit(logging.ERROR, "reclaim", step="unable", job=away.grant.job_id, why=why)
        self._note_back(away, f"unable: {why}")
        self.unable.begin(away, notes.unable(away, why, self.unable.policy))

    # ---- after a restart of qgpud ---------------------------------------------------------------

    def resume(self) -> None:
        """Take up what an earlier qgpud left, before the arbiter is reached."""
        service = self.service
        known: dict[int, list[rows.Reclaim]] = {}
        service.sampler.note(lambda: known.update(rows.open_rows(service.ledger)))
        for job_id in known.keys() - service.grants.keys():
            now = service.ports.clock.realtime_ns()
            service.sampler.note(rows.back, service.ledger, job_id, now, "ended")
        taken = [g for g in service.grants.values() if taken_back(g) or g.job_id in known]
        pids = pids_of({grant.uid for grant in taken}, service.job_of) if taken else {}
        for grant in taken:
            self.transfers.mend(grant)
            self._resume(grant, known.get(grant.job_id, []), pids.get(grant.job_id, []))

    def _resume(self, grant: Grant, intervals: list[rows.Reclaim], pids: list[int]) -> None:
        now = self.service.ports.clock.realtime_ns()
        away = Away(grant, "returning", now, examine=True, recorded=bool(intervals))
        away.until_ns = self.service.ports.clock.monotonic_ns() + 2 * self.mover.limit_ns
        self._know(away, pids)
        if intervals:
            away.left_at = min(row.left_at for row in intervals)
            away.sizes = {0: {row.uuid: row.bytes or 0 for row in intervals}}
            self.transfers.resume(away)
            moved = all(row.leave_ns is not None for row in intervals)
            away.state = "returning" if moved else "leaving"
            self._hold(grant.job_id, held=True)
        self.away[grant.job_id] = away

    def _examine(self, away: Away) -> None:
        """Ask where the job's processes are, once no helper of the earlier qgpud works on it."""
        if self.mover.busy(away.grant.job_id):
            if self.service.ports.clock.monotonic_ns() >= away.until_ns:
                self.mover.end(away.grant.job_id)
                self._give_up(away, Outcome("state", done=False, why="another helper hangs"))
        elif self.service.connected:
            try:
                self._know(away, self.registered(away.grant.job_id))
            except ArbiterError as error:
                self.service.lose_arbiter(str(error))
                return
            away.prune(start_ticks)
            self._start(away, "state")

    def _examined(self, away: Away, outcome: Outcome) -> None:
        """Finish what the earlier qgpud began, or undo it."""
        states, leaving = outcome.states(), away.state == "leaving"
        if not outcome.done and not away.recorded:
            emit(logging.WARNING, "reclaim", step="state", job=away.grant.job_id, why=outcome.why)
        if (not outcome.done and away.recorded) or "failed" in states:
            self._give_up(away, outcome)
            return
        away.examine = False
        if states <= {"running"} and not away.recorded:
            del self.away[away.grant.job_id]
        elif states <= {"running"}:
            self._home(away, "undone" if leaving else "returned", None)
        elif states == {"checkpointed"} and away.recorded:
            if leaving:  # before this qgpud looked, so this is the most that it took
                took = max(0, self.service.ports.clock.realtime_ns() - away.left_at)
                self.service.sampler.note(rows.moved, self.service.ledger, away.grant.job_id, took)
            away.state = "checkpointed"
            emit(logging.INFO, "reclaim", step="found", job=away.grant.job_id, bytes=away.size)
        else:
            self._move(away, "leave" if leaving else "return")


def taken_back(grant: Grant) -> bool:
    """Whether memory of the job may be taken back."""
    return grant.reclaimable and grant.state == "active"
