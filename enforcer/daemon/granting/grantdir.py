"""The grants directory as a whole: what the daemon reads at its start."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from gres.grant.store import Grant, GrantError, GrantMissing, GrantStore

# age of a directory's date from which it is trusted: file systems have coarse clocks
SETTLED_NS = 2 * 10**9
PROOFS = "spank"  # as slurm_plugin/common/proof.h has it
_ENDED = re.compile(r"([1-9][0-9]{0,9})\.ended")


@dataclass(frozen=True)
class Damaged:
    """An invalid grant file; `why` is a sentence that names it."""

    job_id: int
    why: str


def load(store: GrantStore) -> tuple[dict[int, Grant], list[Damaged]]:
    """All valid grants, and those that were set aside.

    A damaged JOBID.json is renamed to JOBID.json.bad and JOBID.grant emptied. SPANK then refuses
    further tasks of that job with a sentence instead of starting them without limits.
    """
    grants: dict[int, Grant] = {}
    damaged: list[Damaged] = []
    for job_id in store.job_ids():
        try:
            grants[job_id] = store.read(job_id)
        except GrantMissing:
            continue
        except GrantError as error:
            damaged.append(Damaged(job_id, str(error)))
            _set_aside(store, job_id)
    return grants, damaged


def _set_aside(store: GrantStore, job_id: int) -> None:
    with contextlib.suppress(OSError):
        (store.directory / f"{job_id}.json").rename(store.directory / f"{job_id}.json.bad")
    with contextlib.suppress(OSError, GrantError):
        store.write_blob(job_id, b"")


def ended_markers(directory: Path) -> list[int]:
    """Jobs whose Epilog found no daemon and left JOBID.ended."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _ENDED.fullmatch(name)))


class MarkerWatch:
    """Scans for markers, and reads the directory only after it changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_ns: int | None = None

    def scan(self) -> list[int]:
        """Jobs with a marker."""
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except OSError:
            return []
        if changed_ns == self._read_ns:
            return []
        found = ended_markers(self._directory)
        # A coarse clock may give two changes one date: only an old date is believed.
        settled = not found and time.time_ns() - changed_ns > SETTLED_NS
        self._read_ns = changed_ns if settled else None
        return found


def has_marker(directory: Path, job_id: int) -> bool:
    """Whether the Epilog of this job left a marker."""
    return (directory / f"{job_id}.ended").exists()


def marker_time_ns(directory: Path, job_id: int) -> int | None:
    """When the Epilog left the marker (CLOCK_REALTIME), None if it is not there."""
    try:
        return (directory / f"{job_id}.ended").stat().st_mtime_ns
    except OSError:
        return None


def drop_marker(directory: Path, job_id: int) -> None:
    """Remove the marker and the damaged file of the job."""
    for suffix in ("ended", "json.bad"):
        with contextlib.suppress(OSError):
            (directory / f"{job_id}.{suffix}").unlink()


def sweep_proofs(run_dir: Path, before: float) -> None:
    """Remove proofs of starts whose Prolog and Epilog never came
    (`before`: s of CLOCK_REALTIME).
    """
    for path in (run_dir / PROOFS).glob("*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before:
                path.unlink()


def sweep_temporaries(directory: Path) -> None:
    """Remove temporary files of a daemon that was killed while writing."""
    for path in directory.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()
