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
    controls,
    day,
    gain,
    gain_torch,
    gaps,
    giveaway,
    hardware,
    harvest,
    preempt,
    reclaim,
    release,
    shares,
)
from bench.worlds import real, worlds

MOST_SECONDS = 15 * 60


@dataclass(frozen=True)
class Scenario:
    """Figures that judge one promise. `seconds`: what it took on two cores."""

    promise: str
    figures: Callable[[bool], Iterator[Figure]]
    seconds: int
    # A program's own time is measured: what keeps processors awake would lengthen it.
    left_alone: bool = False


SCENARIOS = {
    "hook": Scenario("Prolog and Epilog take at most 20 ms", hook.figures, 2, left_alone=True),
    "taskstart": Scenario(
        "a task starts at most 5 ms later", taskstart.figures, 4, left_alone=True
    ),
    "submit": Scenario("submissions keep 95 % of their rate", submit.figures, 30, left_alone=True),
    "accounting": Scenario(
        "samples, reports and scrapes are cheap", accounting.figures, 27, left_alone=True
    ),
    "overhead": Scenario("a launch costs at most 10 ns", overhead.figures, 55, left_alone=True),
    "framework": Scenario(
        "a training step costs at most 1 %", framework.figures, 76, left_alone=True
    ),
    "simulate": Scenario(
        "an hour of a node takes at most a minute", simulate.figures, 10, left_alone=True
    ),
    "worlds": Scenario(
        "95 of 100 random cards keep what is promised", worlds.figures, 24, left_alone=True
    ),
    "day": Scenario("no online job is refused memory", day.figures, 16, left_alone=True),
    "reclaim": Scenario(
        "memory is free in 1.2 times the bytes' time on the link", reclaim.figures, 67
    ),
    "shares": Scenario(
        "shares are kept within 1.5 points, fixed ones within 2", shares.figures, 88
    ),
    "preempt": Scenario(
        "online has the card within 1 ms, offline after 100 to 102", preempt.figures, 68
    ),
    "harvest": Scenario(
        "offline uses 95 % of pauses, online's p99 grows by 8 %", harvest.figures, 79
    ),
    "release": Scenario("online's p99 grows by 8 % with any idle_release", release.figures, 40),
    "gaps": Scenario(
        "offline fills online's gaps within online_delay", gaps.figures, 6, left_alone=True
    ),
    "gain": Scenario(
        "sharing is no worse than the better simple way", gain.figures, 60, left_alone=True
    ),
    "giveaway": Scenario(
        "a neighbour uses 95 % of what a stalled tenant leaves", giveaway.figures, 51
    ),
    "cost": Scenario("the daemons use at most 10 % of a core", daemons_cpu.figures, 74),
    "hardware": Scenario("a kernel of any length stops within 1 ms", hardware.figures, 66),
    "controls": Scenario("a mechanism that is off comes out short", controls.figures, 45),
}


def arbiter_policy() -> str:
    """The scheduling policy that an arbiter obtains here now."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work, Rig(Path(work)) as rig:
        return rig.scheduling_policy()


ON_DEMAND = {
    "worlds-real": Scenario("the engine of the worlds tells the truth", real.figures, 720),
    "gain-torch": Scenario(
        "two trainings that pause gain by sharing", gain_torch.figures, 120, left_alone=True
    ),
}


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
            with nullcontext() if scenario.left_alone else machine.kept_awake():
                for figure in scenario.figures(quick):
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
            f"-- {name}: {self.seconds[name]:.0f} s ({scenario.seconds} is usual), the"
            f" host took {self.stolen_percent[name]:.1f} % of the CPUs"
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


def whole(seconds: float) -> str:
    """The time of all scenarios, as it is printed."""
    return "-- the whole bench: {} min {} s".format(*divmod(round(seconds), 60))


def listing() -> str:
    """The scenarios, each with its promise, and how long all of them take."""
    minutes = round(sum(scenario.seconds for scenario in SCENARIOS.values()) / 60)
    each = (
        f"{name}: {scenario.promise} ({scenario.seconds} s)" for name, scenario in SCENARIOS.items()
    )
    return "\n\n".join(
        (
            "\b\n" + "\n".join(each),
            f"All of them take {minutes} minutes on two cores. Nothing else should run.",
        )
    )


@click.command(epilog=listing())
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
    began = time.monotonic()
    before = machine.noise()
    policy = arbiter_policy()
    click.echo(machine.describe(before))
    click.echo(f"arbiter: card threads run with policy {policy}")
    run = Run()
    for name in only or SCENARIOS:
        run.add(name, (SCENARIOS | ON_DEMAND)[name], quick)
    after = machine.noise()
    click.echo("afterwards " + machine.describe(after))
    click.echo(whole(time.monotonic() - began))
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
