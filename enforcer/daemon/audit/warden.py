"""What is done about findings: said once, and the processes of a job stopped or killed, where that is the policy.

A process that was stopped is kept so: its own user may send SIGCONT as well, so each look stops it again, and who is
let go on again and again is killed. An administrator who wants it to go on says so by `qgpu job pardon`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.audit.findings import Finding
from enforcer.daemon.audit.procs import start_ticks, stop_waits, stopped
from enforcer.daemon.audit.punish import punish
from enforcer.daemon.log import emit
from gres.config.schema import AuditSettings
from gres.grant.store import Grant

PUNISHED = ("unregistered", "ungranted", "over", "busy")
PASSING = "over"  # true as long as it is seen; the others say what a process did, which stays true of it
AGAIN_NS = 60 * 10**9
AGAIN_MOST = (
    5  # so often a process may be made to go on within AGAIN_NS; scontrol and gang scheduling stay below
)
Mark = tuple[int, int]  # a process: its number, and when it began


@dataclass
class _Held:
    finding: Finding
    times: list[int] = field(default_factory=list)  # when it was stopped again
    rested: bool = False  # seen stopped since the last signal


@dataclass
class Warden:
    """Acts by `settings.action`. `job_of` and the user ids prove whose a process is, each time anew."""

    settings: AuditSettings
    clock: Clock
    grants: Callable[[], Mapping[int, Grant]]
    job_of: Callable[[int], int | None]
    stopped: Callable[[int], bool | None] = stopped
    stop_waits: Callable[[int], bool] = stop_waits
    tell: Callable[[Finding, str], None] | None = None  # the job's user, of a program without limits
    _said: set[Finding] = field(default_factory=set)
    _signalled: set[Mark] = field(default_factory=set)
    _held: dict[Mark, _Held] = field(default_factory=dict)
    _pardoned: set[int] = field(default_factory=set)

    def deal(
        self, due: Iterable[Finding], standing: Iterable[Finding], unseen: Container[str] = ()
    ) -> list[Finding]:
        """Say what is new, act upon processes that were not dealt with yet; the findings that were acted upon. What was
        found on an `unseen` card stands until somebody can look there again."""
        there = set(standing)
        self._said = {finding for finding in self._said if finding in there or finding.uuid in unseen}
        self._signalled = {mark for mark in self._signalled if start_ticks(mark[0]) == mark[1]}
        passing = {mark: held.finding for mark, held in self._held.items() if held.finding.kind == PASSING}
        over = {mark for mark, what in passing.items() if what not in there and what.uuid not in unseen}
        self._signalled -= over  # they may go on, and are stopped for the next time
        for mark in over:
            del self._held[mark]
        acted = []
        for finding in due:
            done = self._act(finding)
            if done or finding not in self._said:
                self._say(finding, done)
            self._said.add(finding)
            acted += [finding] if done else []
        return acted

    def _act(self, finding: Finding) -> list[int]:
        """The processes that got the signal: of those that the finding is about, who did not have it before."""
        action, grant = self.settings.action, self.grants().get(finding.job_id or 0)
        if action == "log" or finding.kind not in PUNISHED or grant is None or grant.job_id in self._pardoned:
            return []
        began = {pid: start_ticks(pid) for pid in finding.pids}
        marks = {p: (p, at) for p, at in began.items() if at is not None and (p, at) not in self._signalled}
        done = punish(action, marks, grant, self.job_of)
        self._signalled.update(marks[pid] for pid in done)
        if action == "stop":
            self._held.update({marks[pid]: _Held(finding) for pid in done})
        return done

    def _say(self, finding: Finding, done: list[int]) -> None:
        emit(
            logging.WARNING,
            f"audit-{finding.kind}",
            job=finding.job_id,
            card=finding.uuid,
            pid=finding.pid,
            **finding.figures,
            action=self.settings.action if done else None,
            signalled=",".join(map(str, done)) or None,
        )
        if self.tell is not None and finding.kind == "unregistered":
            self.tell(finding, self.settings.action if done else "log")

    # ---- the stopped -----------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop again whoever was let go on since the last look. Not one that the signal did not reach yet, which
        nobody let go on; one that never is at rest when we look was. Where nobody can tell (too many threads) the
        signal is sent and not counted: to one that is stopped it does nothing."""
        for mark, held in list(self._held.items()):
            if start_ticks(mark[0]) != mark[1]:
                del self._held[mark]
                continue
            rests = self.stopped(mark[0])
            if rests is None:
                self._send("stop", mark[0], held)
            elif rests:
                held.rested = True
            elif held.rested or not self.stop_waits(mark[0]):
                self._stop_again(mark[0], held)

    def _send(self, action: str, pid: int, held: _Held) -> Grant | None:
        """The grant of the job whose process got the signal; None if nobody did."""
        grant = self.grants().get(held.finding.job_id or 0)
        return grant if grant is not None and punish(action, [pid], grant, self.job_of) else None

    def _stop_again(self, pid: int, held: _Held) -> None:
        now = self.clock.monotonic_ns()
        held.rested = False
        held.times = [*(at for at in held.times if now - at < AGAIN_NS), now]
        action = "kill" if len(held.times) > AGAIN_MOST else "stop"
        grant = self._send(action, pid, held)
        if grant is None:
            return
        emit(
            logging.WARNING,
            "audit-again",
            job=grant.job_id,
            card=held.finding.uuid,
            pid=pid,
            found=held.finding.kind,
            times=len(held.times),
            action=action,
        )

    def pardon(self, grant: Grant, listed: Iterable[int] = ()) -> list[int]:
        """Do nothing more to this job as long as its grant stands; who of its stopped processes goes on. `listed`: who
        is on a card: what qgpud stopped before it started anew is nowhere else."""
        self._pardoned.add(grant.job_id)
        held = [mark for mark, held in self._held.items() if held.finding.job_id == grant.job_id]
        same = {pid for pid, began in held if start_ticks(pid) == began}
        for mark in held:
            del self._held[mark]
        same.update(pid for pid in listed if self.stopped(pid) is not False)
        return punish("continue", sorted(same), grant, self.job_of)

    def ended(self, job_id: int) -> None:
        """The job's grant ended: nothing is known of the next one with this number."""
        self._pardoned.discard(job_id)
        self._said = {finding for finding in self._said if finding.job_id != job_id}
        self._held = {mark: held for mark, held in self._held.items() if held.finding.job_id != job_id}
