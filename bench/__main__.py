"""`python -m bench`: runs the benchmarks, prints one line per figure and writes them to a JSON
file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click

from bench.costs import (
    accounting,
    daemons_cpu,
    framework,
    hook,
    overhead,
    simulate,
    submit,
    taskstart,
)
from bench.harness import machine
from bench.harness.figures import Figure, NotRun
from bench.harness.node import Rig
from bench.promises import (
    ahead,
    controls,
    giveaway,
    hardware,
    harvest,
    mixes,
    preempt,
    release,
    shares,
)
from bench.sweep import sweep
from bench.tuning import window
from bench.worlds import worlds

Scenario = Callable[[bool], Iterator[Figure]]
SCENARIOS: dict[str, Scenario] = {
    "hook": hook.figures,
    "taskstart": taskstart.figures,
    "submit": submit.figures,
    "accounting": accounting.figures,
    "overhead": overhead.figures,
    "framework": framework.figures,
    "shares": shares.figures,
    "mixes": mixes.figures,
    "preempt": preempt.figures,
    "harvest": harvest.figures,
    "cost": daemons_cpu.figures,
    "giveaway": giveaway.figures,
    "ahead": ahead.figures,
    "hardware": hardware.figures,
    "simulate": simulate.figures,
    "controls": controls.figures,
    "sweep": sweep.figures,
    "worlds": worlds.figures,
    "release": release.figures,
}
# What is measured in them is a program's own time, which a neighbour on the same core would
# lengthen.
LEFT_ALONE = frozenset(
    {"hook", "taskstart", "submit", "accounting", "overhead", "framework", "simulate", "worlds"}
)
ON_DEMAND: dict[str, Scenario] = {"window": window.figures}
LENGTHS = (
    "All scenarios take 60 minutes on two quiet cores, with --quick 10; `window` takes 8. Nothing"
    " else should run."
)


def arbiter_policy() -> str:
    """The scheduling policy that an arbiter obtains here now."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        return rig.scheduling_policy()


@dataclass
class Run:
    """Everything that one call of this program measured."""

    figures: list[Figure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    stolen_percent: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, scenario: Scenario, quick: bool) -> None:
        """Run a scenario. One that failed or could not run is reported, and the others' results
        stay.
        """
        began, before = time.monotonic(), machine.CpuTime.now()
        try:
            with nullcontext() if name in LEFT_ALONE else machine.kept_awake():
                for figure in scenario(quick):
                    click.echo(figure.line())
                    self.figures.append(figure)
        except NotRun as reason:
            self.not_run[name] = str(reason)
            click.echo(f"not run {name}: {reason}")
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            click.echo(f"FAILED {name}: {self.failed[name]}")
            traceback.print_exc()
        self.seconds[name] = round(time.monotonic() - began, 1)
        self.stolen_percent[name] = round(before.stolen_percent(machine.CpuTime.now()), 2)
        click.echo(
            f"-- {name}: {self.seconds[name]:.0f} s, the host took {self.stolen_percent[name]:.1f}"
            " % of the CPUs"
        )

    @property
    def blind(self) -> bool:
        """Whether a control met its target."""
        return any(figure.verdict.startswith("BLIND") for figure in self.figures)

    @property
    def status(self) -> int:
        """Exit status: a figure that is short is a result, no failure."""
        return 3 if self.blind else 1 if self.failed else 0

    def summary(self) -> str:
        """How many figures are short, by name."""
        short = [figure.name for figure in self.figures if figure.verdict == "short"]
        judged = sum(figure.target is not None and not figure.control for figure in self.figures)
        return (
            f"{len(short)} of {judged} judged figures"
            f" short{': ' if short else ''}{', '.join(short)}"
        )


@click.command(epilog=LENGTHS)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write all figures to this file."
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(sorted(SCENARIOS | ON_DEMAND)),
    help="Run only these scenarios. " + ", ".join(ON_DEMAND) + ": only when named.",
)
@click.option("--quick", is_flag=True, help="Fewer and shorter runs: for a look, not for a record.")
def main(json_path: Path | None, only: tuple[str, ...], quick: bool) -> None:
    """Measure qgpu on this machine, without a card.

    docs/measurements/README.md explains each figure. Exit status: 0, whatever the figures are; 1, a
    scenario failed; 3, a control met its target: the bench is blind.
    """
    before = machine.noise()
    policy = arbiter_policy()
    click.echo(machine.describe(before))
    click.echo(f"arbiter: card threads run with policy {policy}")
    run = Run()
    for name in only or SCENARIOS:
        run.add(name, (SCENARIOS | ON_DEMAND)[name], quick)
    after = machine.noise()
    click.echo("afterwards " + machine.describe(after))
    click.echo(run.summary())
    if json_path:
        record = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "quick": quick,
            "arbiter_policy": policy,
            "noise_before": before,
            "noise_after": after,
            "figures": [f.record() for f in run.figures],
            "seconds": run.seconds,
            "stolen_percent": run.stolen_percent,
            "failed": run.failed,
            "not_run": run.not_run,
        }
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(run.status)


if __name__ == "__main__":
    main()
