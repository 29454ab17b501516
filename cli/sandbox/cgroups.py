"""Which cgroups this machine really gives us, found by trying, and removing what Slurm leaves in
them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_V1_NEEDED = ("devices", "freezer")


def probe(tag: str) -> tuple[str, str]:
    """("v1"|"v2"|"none", sentence why). tag makes the name of the trial cgroup unique."""
    if (ROOT / "cgroup.controllers").is_file():
        return _probe_v2(tag)
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
    return "v1", "cgroup v1 with the devices and freezer controllers"


def _probe_v2(tag: str) -> tuple[str, str]:
    trial = ROOT / f"qgpu_probe_{tag}"
    try:
        trial.mkdir()
    except OSError as error:
        return "none", f"a cgroup cannot be made under {ROOT} ({error.strerror or error})"
    with contextlib.suppress(OSError):
        trial.rmdir()
    return "v2", "cgroup v2 (devices are constrained by a BPF program)"


def _belongs(name: str, nodes: set[str]) -> bool:
    """slurm_NODE is slurmd's root on v1; v2 has slurmstepd_NODE.scope or NODE_slurmstepd.scope."""
    stem = name.removesuffix(".scope").removesuffix(".slice")
    return any(
        stem in {f"slurm_{n}", f"slurmstepd_{n}", f"{n}_slurmstepd", f"{n}_slurmd"} for n in nodes
    )


def left_behind(nodes: list[str]) -> list[Path]:
    """Top directories of the cgroups that slurmd made for these nodes."""
    wanted = set(nodes)
    found: list[Path] = []
    for base, dirs, _ in os.walk(ROOT):
        depth = len(Path(base).relative_to(ROOT).parts)
        hits = [d for d in dirs if _belongs(d, wanted)]
        found += [Path(base, d) for d in hits]
        dirs[:] = [d for d in dirs if d not in hits and depth < 3]
    return found


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
    left_behind).
    """
    for top in left_behind(nodes):
        for base, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(base).rmdir()
