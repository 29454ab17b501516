"""What Slurm's daemons on this host have not read yet: files that changed since they started."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.setup.host import Here
from slurm_plugin.site.found import Site
from slurm_plugin.site.settings import Restart

SLACK_S = 1.0  # seconds: the kernel tells when it booted in whole ones


def unread(here: Here, site: Site, host: Host | None = None) -> set[Restart]:
    """The restarts that changed files need here. A daemon that does not run reads them when it
    starts; a configless slurmd writes its copies itself.
    """
    environ = {**os.environ, "SLURM_CONF": here.places.slurm_conf}
    known = Known(host or Host(environ))
    both = _newest((*site.slurm.files, *site.gres.files))
    found: set[Restart] = set()
    if _older(known, "slurmctld", both):
        found.add("all")
    if here.configless:
        return found
    if _older(known, "slurmd", both):
        # Where slurmctld has started since, slurmd alone is behind.
        found.add("slurmd" if (known.controller_read_at or 0.0) > both else "all")
    elif _older(known, "slurmd", _newest(site.cgroup.files)):
        found.add("slurmd")
    return found


def _older(known: Known, daemon: str, changed: float) -> bool:
    """Whether a daemon of this slurm.conf was started before that time."""
    proc, started = known.host.proc, []
    for process in known.slurm_processes(daemon):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            started.append(_started(proc, process.pid))
    return bool(started) and max(started) + SLACK_S < changed


def _newest(paths: Iterable[str]) -> float:
    """When the last of these files changed, in seconds since 1970. A copy may keep its time of
    modification, but not that of the inode's change.
    """
    return max((Path(path).stat().st_ctime for path in paths), default=0.0)


def _started(proc: Path, pid: int) -> float:
    """When a process was started, in seconds since 1970."""
    ticks = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    booted = re.search(r"^btime ([0-9]+)", (proc / "stat").read_text(), re.MULTILINE)
    return (int(booted[1]) if booted else 0) + ticks / os.sysconf("SC_CLK_TCK")
