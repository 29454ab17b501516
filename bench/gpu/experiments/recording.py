"""Recordings of the driver's control calls (docs/specs/rm-recording.md): read, checked, and
compared by their shape.

Two drivers, or a driver and its model, choose other handles; what must agree is which kind of
object hangs below which, with which sizes of parameters, and in which order things come and go.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOTS = {"0x0", "0x1", "0x41"}
DEVICE, SUBDEVICE, GROUP = "0x80", "0x2080", "0xa06c"
CHANNEL = "channel"  # any of the GPFIFO classes, whose number differs from card to card
KINDS = {DEVICE: "device", SUBDEVICE: "subdevice", GROUP: "group"}
CALLS = {"alloc", "alloc64", "control", "free", "dup", "share", "other"}
Call = Mapping[str, Any]


class RecordingError(ValueError):
    """The file is no recording; the text is a sentence."""


def kind_of(class_id: str) -> str:
    """client, device, subdevice, group, channel; else the class's number."""
    if class_id in ROOTS:
        return "client"
    number = int(class_id, 16)
    return CHANNEL if number > 0xFF and number & 0xFF == 0x6F else KINDS.get(class_id, class_id)


@dataclass(frozen=True)
class Recording:
    """One process's calls in their order."""

    calls: Sequence[Call]
    path: Path = field(default=Path("-"))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Raises RecordingError with the line that is none."""
        calls = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                call = json.loads(line)
                if call["call"] not in CALLS:
                    raise ValueError(f"the call {call['call']!r}")
            except (ValueError, KeyError, TypeError) as error:
                raise RecordingError(
                    f"{path}:{number}: this is no line of a recording: {error}"
                ) from None
            calls.append(call)
        return cls(calls, path)

    @cached_property
    def made(self) -> list[tuple[str, str, int]]:
        """Each object that was made: what it is, what it hangs below, the
        size of its parameters.
        """
        return [(kind, parent, size) for kind, parent, size, _ in self._walk()[0]]

    def _walk(self) -> tuple[list[tuple[str, str, int, int]], list[str]]:
        """What was made (with its place), and what contradicts itself."""
        alive: dict[tuple[str, str], str] = {}
        made: list[tuple[str, str, int, int]] = []
        faults: list[str] = []
        for at, call in enumerate(self.calls):
            if call.get("status") != "0x0":
                continue
            if call["call"] in ("alloc", "alloc64"):
                kind = kind_of(call["class"])
                client = call["object"] if kind == "client" else call["client"]
                parent = alive.get(
                    (client, call["parent"]), "client" if call["parent"] == client else "?"
                )
                if kind != "client" and parent == "?":
                    faults.append(
                        f"call {at}: a {kind} below {call['parent']}, which was never made"
                    )
                alive[client, call["object"]] = kind
                made.append((kind, "" if kind == "client" else parent, call["params_size"], at))
            elif (
                call["call"] == "free" and alive.pop((call["client"], call["object"]), None) is None
            ):
                faults.append(
                    f"call {at}: {call['object']} is freed, but was never made or is gone"
                )
            elif call["call"] == "dup":
                alive[call["client"], call["object"]] = "dup"
        return made, faults

    def faults(self) -> list[str]:
        """What contradicts itself: something below what is not there, something freed twice."""
        return self._walk()[1]

    def tree(self) -> Counter[tuple[str, str]]:
        """How often each kind was made below each."""
        return Counter((kind, parent) for kind, parent, _ in self.made)

    def controls(self) -> Counter[tuple[str, int]]:
        """How often each command was given, with its size."""
        return Counter((c["cmd"], c["params_size"]) for c in self.calls if c["call"] == "control")

    def words(self) -> Iterator[str]:
        """For people."""
        counts = Counter(call["call"] for call in self.calls)
        yield ", ".join(f"{count} {name}" for name, count in counts.most_common())
        for (kind, parent), count in sorted(self.tree().items()):
            yield f"{count} x {kind}{f' below {parent}' if parent else ''}"


def differences(model: Recording, real: Recording) -> list[str]:
    """What the model does that the real driver does not do so, in sentences; what qgpu relies on,
    and no more.

    Real drivers make hundreds of other objects and give other commands: those are not compared.
    """
    found = []
    known = {"client", *KINDS.values(), CHANNEL}
    theirs = {(kind, parent) for kind, parent, _ in real.made}
    for kind, parent in sorted({(k, p) for k, p, _ in model.made if k in known} - theirs):
        below = sorted({p for k, p in theirs if k == kind})
        found.append(
            f"the model makes a {kind} below a {parent or 'nothing'}; the driver below"
            f" {below or 'nothing'}"
        )
    for kind in (DEVICE, GROUP):
        name = KINDS[kind]
        sizes = [{size for k, _, size in one.made if k == name} for one in (model, real)]
        if sizes[0] and sizes[1] and not sizes[0] & sizes[1]:
            found.append(
                f"parameters of a {name} have {sizes[0]} bytes in the model, {sizes[1]} in the"
                " driver"
            )
    others: dict[str, set[int]] = {}
    for cmd, size in real.controls():
        others.setdefault(cmd, set()).add(size)
    for cmd, size in sorted(model.controls()):
        if cmd in others and size not in others[cmd]:
            found.append(
                f"command {cmd} has {size} bytes in the model, {sorted(others[cmd])} in the driver"
            )
    return found
