"""Stop, kill or continue processes of a job that were found on a card, and never anybody else's.

Which job a process belongs to comes from what root made: its cgroup, a root-owned slurmstepd among its
ancestors, or descent from the process that qgpud gave a grant to. Its four user ids must all be the grant's, so a
setuid program is left alone. The process is held by a pidfd while this is checked, so that the signal cannot reach
a later process with the same number.
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


def punish(
    action: str,
    pids: Iterable[int],
    grant: Grant,
    job_of: Callable[[int], int | None],
    proc: Path = PROC,
) -> list[int]:
    """Send the action's signal to those processes that are proven to be the job's; who got it."""
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
