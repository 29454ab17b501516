"""What was called on the control device of the simulated driver: its log, one call per line.

qgpu-simgpu --control-log writes it, docs/specs/rm-recording.md describes it; recordings of real
drivers have the same form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

COMMANDS = {
    0xA06C0101: "schedule",
    0xA06C0103: "set_timeslice",
    0xA06C0104: "get_timeslice",
    0xA06C0105: "preempt",
    0xA06C0106: "get_info",
    0x2080110B: "disable_channels",
    0x2080014A: "get_gid",
    0x20801210: "set_preemption_mode",
    0xD02: "handle_info",
}
ACTING = frozenset(
    {"schedule", "set_timeslice", "preempt", "disable_channels", "set_preemption_mode"}
)
_ROOTS = frozenset({0x0, 0x1, 0x41})


@dataclass(frozen=True)
class ControlCall:
    """One call. What does not apply is 0 or empty; times are CLOCK_MONOTONIC microseconds of its
    end.
    """

    t_us: float
    pid: int
    call: str
    status: int = 0
    errno: int = 0
    file: int = 0
    owner: int = 0
    client: int = 0
    parent: int = 0
    object: int = 0
    class_id: int = 0
    cmd: int = 0
    params_size: int = 0
    engine: int = 0
    params: bytes = b""
    channels: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """Of a command: schedule, preempt ...; of other calls: alloc, free, dup, other."""
        if self.call == "control":
            return COMMANDS.get(self.cmd, hex(self.cmd))
        return "alloc" if self.call == "alloc64" else self.call

    @property
    def ok(self) -> bool:
        """It was carried out."""
        return not self.status and not self.errno


def _number(value: object) -> int:
    return (
        int(value, 0)
        if isinstance(value, str)
        else int(value)
        if isinstance(value, (int, float))
        else 0
    )


def parse_call(line: str) -> ControlCall:
    """Read one line. Raises ValueError when it is none."""
    fields = json.loads(line)
    if not isinstance(fields, dict) or "call" not in fields:
        raise ValueError(f"no call of a control device: {line.strip()[:80]!r}")
    words = (
        "status",
        "errno",
        "file",
        "owner",
        "client",
        "parent",
        "object",
        "cmd",
        "params_size",
        "engine",
    )
    return ControlCall(
        t_us=float(fields.get("t_us", 0)),
        pid=_number(fields.get("pid", 0)),
        call=str(fields["call"]),
        class_id=_number(fields.get("class", 0)),
        params=bytes.fromhex(fields.get("params", "")),
        channels=tuple(
            (_number(client), _number(channel)) for client, channel in fields.get("channels", ())
        ),
        **{word: _number(fields.get(word, 0)) for word in words},
    )


def read_control_log(path: str | Path) -> list[ControlCall]:
    """All calls in the order of their answers. A line that is just being written is left out."""
    text = Path(path).read_text()
    return [parse_call(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def makers(calls: Iterable[ControlCall]) -> dict[int, int]:
    """The open file that made each client."""
    return {
        call.object: call.file
        for call in calls
        if call.name == "alloc" and call.class_id in _ROOTS and call.ok
    }


def trespasses(calls: Iterable[ControlCall]) -> Iterator[ControlCall]:
    """Calls that name a client of another open file, whether they were carried out or refused."""
    calls = list(calls)
    owner = makers(calls)
    for call in calls:
        named = {client for client, _ in call.channels} | ({call.client} if call.client else set())
        if any(owner.get(client, call.file) != call.file for client in named):
            yield call


def acts(calls: Iterable[ControlCall], pid: int | None = None) -> list[ControlCall]:
    """Commands that change what runs, of one caller or of all."""
    return [call for call in calls if call.name in ACTING and pid in (None, call.pid)]
