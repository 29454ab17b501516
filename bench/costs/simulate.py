"""How long `qgpu simulate` takes for one hour of a full node: the arbiter's own decisions, without
processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.figures import Figure

CARDS, TENANTS, HOUR_S = 8, 16, 3600
PARTS, PARTS_QUICK = 4, 10
TARGET_S = 60.0  # "in seconds" of the promise: less than a minute
ENDLESS = {"class": "offline", "share": 6, "kernel": "200us"}
SERVICE = {
    "class": "online",
    "share": 15,
    "kernel": "100us",
    "load": {"per_second": 5, "kernels": 50},
}
NODES: dict[str, list[Mapping[str, Any]]] = {
    "backlogged": [{"name": "batch", "count": TENANTS, **ENDLESS}],
    "services": [
        {"name": "service", "count": 4, **SERVICE},
        {"name": "batch", "count": TENANTS - 4, **ENDLESS},
    ],
}


def trace(tenants: list[Mapping[str, Any]], seconds: int) -> dict[str, Any]:
    """The trace of that number of cards with these tenants on each."""
    return {
        "duration": f"{seconds}s",
        "cards": [{"name": "card", "count": CARDS}],
        "tenants": tenants,
    }


def took(tenants: list[Mapping[str, Any]], seconds: int) -> float:
    """Wall seconds of the whole command."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work:
        path = Path(work) / "trace.json"
        path.write_text(json.dumps(trace(tenants, seconds)), encoding="utf-8")
        began = time.monotonic()
        command = [sys.executable, "-m", "cli.main", "simulate", str(path), "--json"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        wall = time.monotonic() - began
    if len(json.loads(said.stdout)["cards"]) != CARDS:
        raise RuntimeError("qgpu simulate did not report every card")
    return wall


def figures(quick: bool) -> Iterator[Figure]:
    """A part of an hour of each node, scaled."""
    part = PARTS_QUICK if quick else PARTS
    walls = {name: part * took(tenants, HOUR_S // part) for name, tenants in NODES.items()}
    worst = max(walls, key=lambda name: walls[name])
    note = ", ".join(f"{name}: {wall:.1f}" for name, wall in walls.items())
    spread = f"({CARDS} cards x {TENANTS} tenants; {note}; one of {part} parts of it, scaled)"
    yield Figure(
        "simulate_hour_s",
        walls[worst],
        "s",
        TARGET_S,
        "<=",
        len(walls),
        spread,
        simulated=False,
        detail=walls,
    )
