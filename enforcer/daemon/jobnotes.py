"""Writes a sentence to the stderr of a job by `scontrol notify`, in the background.

scontrol asks slurmctld, so this is for rare events: a program that runs without its limits (once
per job), and memory that moves. qgpud's unit allows it to reach this host alone, so the command is
started outside of the unit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from enforcer.daemon.audit.findings import Finding
from enforcer.daemon.requests.runs import is_run
from enforcer.rate import may_hold
from gres.trusted import UntrustedError, require

AT_ONCE = 4  # commands at a time: a slurmctld that does not answer must not pile them up here
REMEMBERED = 4096  # jobs remembered as notified, so that memory is bounded


def sentence(finding: Finding, action: str) -> str:
    """The text for the job's user; `action` is what was done to the process: log, stop or kill."""
    done = {"stop": " It was stopped.", "kill": " It was killed."}.get(action, "")
    return (
        f"qgpu: process {finding.pid} of this job uses card {finding.uuid} without qgpu's library,"
        f" so without the job's limits, and its use is not in qgpu report.{done} If the job began"
        " with an LD_PRELOAD, put that in front of your own. If it began without, the program"
        " opened a copy of the driver, such as cuda-compat's: set LD_LIBRARY_PATH before srun"
        " starts it."
    )


def outside(environ: Mapping[str, str], waits: bool = False) -> list[str]:
    """Words before a command that start it outside of qgpud's unit; none without systemd.

    `waits`: until it ends, with its output.
    """
    program = shutil.which("systemd-run", path="/usr/bin:/bin")
    if not environ.get("NOTIFY_SOCKET") or program is None:
        return []
    how = ["--pipe", "--wait", "--setenv=SLURM_TIME_FORMAT=standard"] if waits else ["--no-block"]
    words = [program, "--quiet", "--collect", *how, "--property=RuntimeMaxSec=15"]
    conf = environ.get("SLURM_CONF")
    return [*words, *([f"--setenv=SLURM_CONF={conf}"] if conf else []), "--"]


@dataclass
class JobNotes:
    """Notifies jobs of Slurm. `scontrol` is an absolute path."""

    scontrol: str
    _notified: dict[int, None] = field(default_factory=dict)
    _running: dict[subprocess.Popen[bytes], int] = field(default_factory=dict)  # and its user

    def notify(self, finding: Finding, action: str, uid: int) -> None:
        """Notify the job of the finding, unless it was notified already; `uid` is its user."""
        job_id = finding.job_id
        if job_id is None or job_id in self._notified:
            return
        if self.tell(job_id, uid, sentence(finding, action)):
            self._notified[job_id] = None
        if len(self._notified) > REMEMBERED:
            del self._notified[next(iter(self._notified))]

    def tell(self, job_id: int, uid: int, text: str) -> bool:
        """Write a sentence to the job; whether that was begun. `uid` is its user."""
        self._running = {one: of for one, of in self._running.items() if one.poll() is None}
        held = list(self._running.values())
        if is_run(job_id) or not may_hold(held.count(uid), len(held), AT_ONCE):
            return False
        try:
            require(self.scontrol, "the program")
            command = [self.scontrol, "notify", str(job_id), text]
            words = [*outside(os.environ), *command]
            null = subprocess.DEVNULL
            process = subprocess.Popen(words, stdin=null, stdout=null, stderr=null)
            self._running[process] = uid
        except (OSError, UntrustedError):
            pass  # the log has it
        return True
