"""A sentence on the stderr of a job, by `scontrol notify`: once per job, in the background.

It asks slurmctld, so it is for what is rare: a job that was found to run a program without its limits.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from enforcer.daemon.audit import Finding
from enforcer.daemon.runs import is_run
from gres.trusted import UntrustedError, require

AT_ONCE = 4  # a slurmctld that does not answer must not gather processes here
REMEMBERED = 4096


def sentence(finding: Finding, action: str) -> str:
    """What the job's user reads; `action` is what was done to the process: log, stop or kill."""
    done = {"stop": " It was stopped.", "kill": " It was killed."}.get(action, "")
    return (
        f"qgpu: process {finding.pid} of this job uses card {finding.uuid} without qgpu's library, so without the job's"
        f" limits, and its use is not in qgpu report.{done} Was LD_PRELOAD emptied or set anew, or the driver opened"
        " by its path? Put what the job found in LD_PRELOAD in front of your own."
    )


@dataclass
class JobNotes:
    """Tells jobs of Slurm. `scontrol` is its absolute path."""

    scontrol: str
    _told: dict[int, None] = field(default_factory=dict)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def tell(self, finding: Finding, action: str) -> None:
        """Say it to the job of the finding, unless it was told already."""
        job_id = finding.job_id
        self._running = [process for process in self._running if process.poll() is None]
        if job_id is None or is_run(job_id) or job_id in self._told or len(self._running) >= AT_ONCE:
            return
        self._told[job_id] = None
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]
        try:
            require(self.scontrol, "the program")
            words = [self.scontrol, "notify", str(job_id), sentence(finding, action)]
            null = subprocess.DEVNULL
            self._running.append(subprocess.Popen(words, stdin=null, stdout=null, stderr=null))
        except (OSError, UntrustedError):
            return  # the log has the finding
