"""Stops, kills or continues processes of one job, never those of another.

The job of a process comes from what root made (docs/specs/identity.md). All four user ids must be
the grant's, so a setuid program is left alone. A pidfd holds the process during the check, so the
signal cannot reach a later process with the same pid.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from enforcer.daemon.audit.procs import PROC, uids_of
from gres.grant.store import Grant

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL, "continue": signal.SIGCONT}


def send_action(
    action: str,
    pids: Iterable[int],
    grant: Grant,
    job_of: Callable[[int], int | None],
    proc: Path = PROC,
) -> list[int]:
    """Send the action's signal to those processes that verifiably belong to the job; the ones
    signalled.
    """
    done: list[int] = []
    for pid in pids:
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if uids_of(pid, proc) == {grant.uid} and job_of(pid) == grant.job_id:
                    signal.pidfd_send_signal(handle, SIGNALS[action])
                    done.append(pid)
            finally:
                os.close(handle)
    return done
