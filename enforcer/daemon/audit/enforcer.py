"""Acts on findings: logs each once, and stops or kills processes where so configured.

A stopped process is kept stopped. Its user may send SIGCONT too, so each sample stops it again. A
process continued six times within 60 s is killed. An administrator exempts a job by `qgpu job
pardon`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field

from enforcer.clock import Clock
from enforcer.daemon.audit.action import send_action
from enforcer.daemon.audit.findings import Finding
from enforcer.daemon.audit.procs import owner_of, start_ticks, stop_waits, stopped
from enforcer.daemon.log import emit
from enforcer.rate import Rate
from gres.config.enforcer import AuditSettings
from gres.grant.store import Grant

ACTED_UPON = ("unregistered", "ungranted", "over", "busy")
# kind that ends when it is no longer found; other kinds state what a process did
PASSING = "over"
CONTINUE_WINDOW_NS = 60 * 10**9  # window in which continuations of one process are counted
# continuations within CONTINUE_WINDOW_NS before the kill; scontrol and gang scheduling stay below
CONTINUE_MAX = 5
LINES = 20  # lines of one user at once: more is a flood of short processes
LINES_PER_SECOND = 1
Mark = tuple[int, int]  # pid and start of a process


@dataclass
class _Held:
    finding: Finding
    times: list[int] = field(default_factory=list)  # times at which it was stopped again
    was_stopped: bool = False  # was stopped in a sample since the last signal


@dataclass
class AuditEnforcer:
    """Acts by `settings.action`. `job_of` and the uids prove, each time, to which job a process
    belongs.
    """

    settings: AuditSettings
    clock: Clock
    grants: Callable[[], Mapping[int, Grant]]
    job_of: Callable[[int], int | None]
    stopped: Callable[[int], bool | None] = stopped
    stop_waits: Callable[[int], bool] = stop_waits
    # notifies the job's user of a program without limits
    notify: Callable[[Finding, str, int], None] | None = None
    _logged: set[Finding] = field(default_factory=set)
    _signalled: set[Mark] = field(default_factory=set)
    _held: dict[Mark, _Held] = field(default_factory=dict)
    _pardoned: set[int] = field(default_factory=set)
    _lines: Rate = field(default_factory=lambda: Rate(LINES_PER_SECOND, burst=LINES))
    _left_out: Counter[int] = field(default_factory=Counter)

    def act(
        self, due: Iterable[Finding], standing: Iterable[Finding], unseen: Container[str] = ()
    ) -> list[Finding]:
        """Log new findings, act on processes not acted upon yet; the findings that were acted upon.

        A finding on an `unseen` card stays until the card can be sampled again.
        """
        there = set(standing)
        self._logged = {
            finding for finding in self._logged if finding in there or finding.uuid in unseen
        }
        self._signalled = {mark for mark in self._signalled if start_ticks(mark[0]) == mark[1]}
        passing = {
            mark: held.finding for mark, held in self._held.items() if held.finding.kind == PASSING
        }
        passed = {
            mark for mark, what in passing.items() if what not in there and what.uuid not in unseen
        }
        self._signalled -= passed  # they may be stopped again
        for mark in passed:
            del self._held[mark]
        acted = []
        for finding in due:
            done = self._act(finding)
            if done or finding not in self._logged:
                self._log(finding, done)
            self._logged.add(finding)
            acted += [finding] if done else []
        return acted

    def _act(self, finding: Finding) -> list[int]:
        """The processes of the finding that got the signal now, and not before."""
        action, grant = self.settings.action, self.grants().get(finding.job_id or 0)
        if (
            action == "log"
            or finding.kind not in ACTED_UPON
            or grant is None
            or grant.job_id in self._pardoned
        ):
            return []
        began = {pid: start_ticks(pid) for pid in finding.pids}
        marks = {
            p: (p, at)
            for p, at in began.items()
            if at is not None and (p, at) not in self._signalled
        }
        done = send_action(action, marks, grant, self.job_of)
        self._signalled.update(marks[pid] for pid in done)
        if action == "stop":
            self._held.update({marks[pid]: _Held(finding) for pid in done})
        return done

    def _log(self, finding: Finding, done: list[int]) -> None:
        """Log it and tell the job. Each user has lines of its own; what was done is always said."""
        uid = self._uid_of(finding)
        if done or self._lines.allows(uid):
            if left_out := self._left_out.pop(uid, 0):
                emit(logging.WARNING, "audit-more", uid=uid, lines=left_out)
            self._write(finding, done)
        else:
            self._left_out[uid] += 1
        if self.notify is not None and finding.kind == "unregistered":
            self.notify(finding, self.settings.action if done else "log", uid)

    def _uid_of(self, finding: Finding) -> int:
        grant = self.grants().get(finding.job_id or 0)
        if grant is not None:
            return grant.uid
        owner = None if finding.pid is None else owner_of(finding.pid)
        return -1 if owner is None else owner

    def _write(self, finding: Finding, done: list[int]) -> None:
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

    # ---- stopped processes ---------------------------------------------------------------------

    def keep_stopped(self) -> None:
        """Stop processes again that were continued since the last sample.

        A process that the signal has not reached yet is not one of them. If too many threads leave
        the state unknown, the signal is sent and not counted: it does nothing to a stopped process.
        """
        for mark, held in list(self._held.items()):
            if start_ticks(mark[0]) != mark[1]:
                del self._held[mark]
                continue
            rests = self.stopped(mark[0])
            if rests is None:
                self._send("stop", mark[0], held)
            elif rests:
                held.was_stopped = True
            elif held.was_stopped or not self.stop_waits(mark[0]):
                self._stop_again(mark[0], held)

    def _send(self, action: str, pid: int, held: _Held) -> Grant | None:
        """The grant of the job whose process got the signal; None if none did."""
        grant = self.grants().get(held.finding.job_id or 0)
        return (
            grant if grant is not None and send_action(action, [pid], grant, self.job_of) else None
        )

    def _stop_again(self, pid: int, held: _Held) -> None:
        now = self.clock.monotonic_ns()
        held.was_stopped = False
        held.times = [*(at for at in held.times if now - at < CONTINUE_WINDOW_NS), now]
        action = "kill" if len(held.times) > CONTINUE_MAX else "stop"
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
        """Exempt this job until its grant ends; the processes that were continued.

        `listed`: pids on a card. Processes that qgpud stopped before its restart are known only
        there.
        """
        self._pardoned.add(grant.job_id)
        held = [mark for mark, held in self._held.items() if held.finding.job_id == grant.job_id]
        same = {pid for pid, began in held if start_ticks(pid) == began}
        for mark in held:
            del self._held[mark]
        same.update(pid for pid in listed if self.stopped(pid) is not False)
        return send_action("continue", sorted(same), grant, self.job_of)

    def ended(self, job_id: int) -> None:
        """The job's grant ended: drop all that is kept under its number."""
        self._pardoned.discard(job_id)
        self._logged = {finding for finding in self._logged if finding.job_id != job_id}
        self._held = {
            mark: held for mark, held in self._held.items() if held.finding.job_id != job_id
        }
