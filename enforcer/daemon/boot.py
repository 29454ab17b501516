"""Finds grants from before the machine's boot, which no job survives.

The kernel's identifier of the boot is kept in run_dir/boot_id. The clock alone does not suffice:
the kernel's time of boot moves with each step of the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from enforcer.daemon.audit.procs import BOOT_ID
from enforcer.daemon.granting import grantdir
from enforcer.daemon.log import emit
from enforcer.daemon.ports import Ports
from gres.grant.store import Grant, GrantError, GrantStore

FILE_NAME = "boot_id"


def left_over(run_dir: Path, ports: Ports, grants: Iterable[Grant]) -> list[int]:
    """The jobs whose grants are from before the boot."""
    now, before = ports.boot_id(), _kept(run_dir)
    if now is not None and before is not None:
        return [] if now == before else [grant.job_id for grant in grants]
    if ports.on_tmpfs(run_dir):
        return []  # a boot empties it, so these files are newer
    # No identifier was kept yet: only the clock remains.
    booted = ports.boot_time_ns()
    return [grant.job_id for grant in grants if booted is not None and grant.created_ns < booted]


def note(run_dir: Path, ports: Ports) -> None:
    """Keep this boot's identifier for the next start, after older grants were ended."""
    now = ports.boot_id()
    grantdir.sweep_temporaries(run_dir)
    try:
        store = GrantStore(run_dir)
        data = None if now is None else f"{now}\n".encode()
        try:
            store.keep(FILE_NAME, data)
        except OSError:
            store.keep(FILE_NAME, None)  # an earlier identifier would end grants of this boot
            raise
    except (GrantError, OSError) as error:
        emit(logging.ERROR, "boot-not-kept", file=run_dir / FILE_NAME, why=error)


def _kept(run_dir: Path) -> str | None:
    try:
        data = GrantStore(run_dir).kept(FILE_NAME)
    except (GrantError, OSError) as error:
        emit(logging.ERROR, "boot-unknown", file=run_dir / FILE_NAME, why=error)
        return None
    match = None if data is None else BOOT_ID.match(data)
    return None if match is None else match[0].decode()
