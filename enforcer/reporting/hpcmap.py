"""DCGM's HPC job mapping: a directory with one file per card, one job id per line. DCGM numbers
cards as NVML does.

An unmodified dcgm-exporter (`--hpc-job-mapping-dir`) then labels the card's metrics with the jobs
on it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from enforcer.reporting.state import NodeState, write

_NAME = re.compile(r"[0-9]+(\.[0-9]+)?")


def jobs_by_card(state: NodeState) -> dict[str, list[int]]:
    """Job ids per card, by the driver's index; cards without jobs have an empty list."""
    return {
        str(card.driver_index): sorted({tenant.job_id for tenant in card.tenants})
        for card in state.cards
        if card.driver_index is not None
    }


class JobMapping:
    """Keeps the files of one directory; writes changes only."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._written: dict[str, list[int]] | None = None

    def update(self, jobs: Mapping[str, Iterable[int]]) -> None:
        """Write the directory. Files of missing cards are emptied, others left alone."""
        wanted = {name: list(ids) for name, ids in jobs.items()}
        if wanted == self._written:
            return
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        before = self._written if self._written is not None else self._found()
        for name, ids in {**{key: [] for key in before}, **wanted}.items():
            if self._written is None or before.get(name) != ids:
                write(self.directory / name, "".join(f"{job}\n" for job in ids), 0o644)
        self._written = wanted

    def _found(self) -> dict[str, list[int]]:
        with contextlib.suppress(OSError):
            return {p.name: [] for p in self.directory.iterdir() if _NAME.fullmatch(p.name)}
        return {}
