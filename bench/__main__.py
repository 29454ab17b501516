"""`python -m bench`: runs the benchmarks, prints one line per figure and writes them to a JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from bench import (
    accounting,
    controls,
    cost,
    hardware,
    harvest,
    hook,
    overhead,
    preempt,
    release,
    shares,
    submit,
    sweep,
)
from bench.figures import Figure
from bench.rig import BUILD, Rig

SCENARIOS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "hook": hook.figures,
    "submit": submit.figures,
    "accounting": accounting.figures,
    "overhead": overhead.figures,
    "shares": shares.figures,
    "preempt": preempt.figures,
    "harvest": harvest.figures,
    "cost": cost.figures,
    "hardware": hardware.figures,
    "controls": controls.figures,
    "sweep": sweep.figures,
    "release": release.figures,
}


def machine_noise() -> dict[str, Any]:
    """How late an idle ordinary and an idle real-time thread wake on this machine now."""
    out = subprocess.run([BUILD / "test/wake-noise", "1000"], check=True, capture_output=True, text=True)
    noise: dict[str, Any] = json.loads(out.stdout)
    return noise


def arbiter_policy() -> str:
    """The scheduling policy that an arbiter obtains here now."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        return rig.scheduling_policy()


def describe(noise: dict[str, Any]) -> str:
    """The noise as one line."""
    return (
        f"machine: {os.cpu_count()} cores, kernel {platform.release()}, wake-up p99 "
        f"{noise['ordinary_p99_us']:.0f} us ordinary, {noise['realtime_p99_us']:.0f} us real-time "
        f"({noise['realtime_policy']})"
    )


@click.command()
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option("--only", multiple=True, type=click.Choice(sorted(SCENARIOS)), help="Run only these scenarios.")
@click.option("--quick", is_flag=True, help="Fewer runs: for a look, not for a record.")
def main(json_path: Path | None, only: tuple[str, ...], quick: bool) -> None:
    """Measure qgpu on this machine."""
    before = machine_noise()
    policy = arbiter_policy()
    click.echo(describe(before))
    click.echo(f"arbiter: card threads run with policy {policy}")
    figures: list[Figure] = []
    for name in only or SCENARIOS:
        for figure in SCENARIOS[name](quick):
            click.echo(figure.line())
            figures.append(figure)
    after = machine_noise()
    click.echo("afterwards " + describe(after))
    if json_path:
        record = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "quick": quick,
            "arbiter_policy": policy,
            "noise_before": before,
            "noise_after": after,
            "figures": [f.record() for f in figures],
        }
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(3 if any(f.verdict.startswith("BLIND") for f in figures) else 0)


main()
