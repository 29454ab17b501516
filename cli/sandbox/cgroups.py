"""Which cgroups this machine really gives us, found by trying; where a sandbox's are, and removing
what Slurm leaves in them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from cli.sandbox.errors import SandboxError
from enforcer.daemon.devices import bpf

Choice = Literal["auto", "v1", "v2"]
Names = Literal["slurm", "job", "sluid"]  # of jobs' cgroups; slurm: as that version does by itself
ROOT = Path("/sys/fs/cgroup")
SLICE = "system.slice"  # Slurm's default on version 2
_V1_NEEDED = ("devices", "freezer")
_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")


def _mounted() -> Iterator[tuple[str, Path]]:
    """("cgroup"|"cgroup2", place) of each hierarchy that this process sees, each once."""
    seen = set()
    for line in _MOUNTS.read_text().rstrip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        device, place = (before.split()[i] for i in (2, 4))
        kind = after.split()[0]
        if kind in ("cgroup", "cgroup2") and device not in seen:
            seen.add(device)
            yield kind, Path(place)


def unified() -> Path | None:
    """Where version 2 is mounted; None if it is not."""
    return next((place for kind, place in _mounted() if kind == "cgroup2"), None)


def modern() -> bool:
    """Whether version 2 is the only one here, at its usual place."""
    return list(_mounted()) == [("cgroup2", ROOT)]


def hybrid() -> bool:
    """Whether the kernel has hierarchies of version 1 too, mounted for us or not: it names them in
    /proc/PID/cgroup.
    """
    return _OWN.read_text().count("\n") > 1


def choose(tag: str, wanted: Choice) -> tuple[str, str]:
    """("v1"|"v2"|"none", sentence why). tag makes the names of the trial cgroups unique.

    SandboxError if the wanted one cannot be used.
    """
    if wanted == "auto":
        return _probe_v2(tag, "the only version here") if modern() else _probe_v1(tag, "")
    asked = f"asked for by --cgroup {wanted}"
    kind, why = _probe_v1(tag, asked) if wanted == "v1" else _probe_v2(tag, asked)
    if kind == "none":
        raise SandboxError(f"--cgroup {wanted} cannot be had on this machine: {why}")
    return kind, why


def _probe_v1(tag: str, because: str) -> tuple[str, str]:
    missing = [c for c in _V1_NEEDED if not (ROOT / c / "cgroup.procs").exists()]
    if missing:
        return "none", f"the cgroup controllers {', '.join(missing)} are not mounted under {ROOT}"
    for controller in _V1_NEEDED:
        trial = ROOT / controller / f"qgpu_probe_{tag}"
        try:
            trial.mkdir()
            if controller == "devices":
                (trial / "devices.deny").write_text("c 245:0 rwm")
        except OSError as error:
            return (
                "none",
                f"the {controller} cgroup cannot be used here ({error.strerror or error})",
            )
        finally:
            with contextlib.suppress(OSError):
                trial.rmdir()
    because = because or f"its devices and freezer controllers are mounted under {ROOT}"
    return "v1", f"cgroup v1 ({because})"


def _probe_v2(tag: str, because: str) -> tuple[str, str]:
    root = unified()
    if root is None:
        return "none", "no cgroup2 file system is mounted"
    trial = root / f"qgpu_probe_{tag}"
    try:
        trial.mkdir()
    except OSError as error:
        return "none", f"a cgroup cannot be made under {root} ({error.strerror or error})"
    try:
        bpf.constrain(trial)
    except OSError as error:
        return "none", f"a BPF program for devices cannot be attached ({error.strerror or error})"
    finally:
        _rmdir(trial)
    return "v2", f"cgroup v2 ({because}; devices by BPF programs)"


def make_scopes(nodes: list[str], cgroup_slice: str) -> None:
    """Make the nodes' scopes on version 2, as systemd does for slurmd. Call it with machine_lock():
    `remove` takes an empty slice away.
    """
    root = unified()
    if root is None:
        raise SandboxError("no cgroup2 file system is mounted any more")
    for node in nodes:
        (root / cgroup_slice / f"{node}_slurmstepd.scope").mkdir(parents=True, exist_ok=True)


def _belongs(name: str, nodes: set[str]) -> bool:
    """slurm_NODE is slurmd's root on v1, NODE_slurmstepd.scope on v2."""
    return any(name in (f"slurm_{node}", f"{node}_slurmstepd.scope") for node in nodes)


def _tops(nodes: list[str]) -> Iterator[tuple[Path, Path]]:
    """(hierarchy, directory) of each top directory that slurmd made for these nodes."""
    wanted = set(nodes)
    for _, tree in _mounted():
        for base, dirs, _ in os.walk(tree):
            depth = len(Path(base).relative_to(tree).parts)
            hits = [d for d in dirs if _belongs(d, wanted)]
            yield from ((tree, Path(base, d)) for d in hits)
            dirs[:] = [d for d in dirs if d not in hits and depth < 3]


def left_behind(nodes: list[str]) -> list[Path]:
    """Top directories of the cgroups that slurmd made for these nodes."""
    return [top for _, top in _tops(nodes)]


def in_use(nodes: list[str]) -> bool:
    """Whether a process lives in one of the nodes' cgroups."""
    return any(
        procs.read_text().strip()
        for top in left_behind(nodes)
        for procs in top.rglob("cgroup.procs")
        if procs.is_file()
    )


def remove(nodes: list[str]) -> None:
    """Remove the nodes' cgroups, deepest first; those that still hold a process stay (see
    left_behind). A slice that is empty then goes too.
    """
    for tree, top in list(_tops(nodes)):
        for base, _, _ in os.walk(top, topdown=False):
            _rmdir(Path(base))
        if top.parent != tree:
            _rmdir(top.parent)


def _rmdir(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()
