"""The arbiter's record of gate changes (`qgpu-arbiter --trace FILE`, docs/specs/control.md)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from enforcer.wire import abi


@dataclass(frozen=True)
class Gate:
    """One change of one tenant's gate word; t_ns is CLOCK_MONOTONIC."""

    t_ns: int
    job_id: int
    card: int
    flags: int


def read_gates(path: Path) -> list[Gate]:
    """All gate changes of a trace file; an unfinished last record is left out."""
    size = ctypes.sizeof(abi.GateEvent)
    data = path.read_bytes()
    events = (
        abi.GateEvent.from_buffer_copy(data, at) for at in range(0, len(data) - size + 1, size)
    )
    return [Gate(e.t_ns, e.job_id, e.card, e.flags) for e in events]
