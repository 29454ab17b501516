"""`python -m bench.gpu` (make gpu): runs the set on this machine's card, or --sim: what the
simulator can play.

Bounded: a call starts no item that would not end within --budget. Resumable: what is recorded as
done on this card and driver is not run again. Exit status: 0 all done, 4 time was up and the same
command goes on, 1 an item failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import click

from bench.gpu import cost, faults, memory, plots, preempt, probe, shares, works
from bench.gpu.experiments import checkpoint, hold, own, product, sharing, stops
from bench.gpu.items import Item
from bench.gpu.node import Node, wait_for
from bench.gpu.place import BUILD, ROOT, Place
from bench.gpu.record import Outcome, Results
from bench.harness.figures import Figure
from gres.version import VERSION

PARTS: dict[str, Callable[[Place], Iterable[Item]]] = {
    "probe": probe.items,
    "works": works.items,
    "memory": memory.items,
    "cost": cost.items,
    "preempt": preempt.items,
    "shares": shares.items,
    "faults": faults.items,
    "experiments": lambda place: chain.from_iterable(
        part.items(place) for part in (own, stops, hold, product, checkpoint, sharing)
    ),
}
ASKED_FOR = {"experiments"}  # runs only when it is named
AGAIN = 4


def revision() -> str:
    """Which qgpu this is; a copy without git has only its version."""
    told = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return told.stdout.strip() or f"{VERSION}, no git here"


def about(node: Node, place: Place) -> dict[str, Any]:
    """Origin of a record."""
    return {
        "card": node.card.name,
        "memory_mib": node.card.mem_total >> 20,
        "driver": node.driver,
        "simulated": place.simulated,
        "quick": place.quick,
        "machine": place.machine(),
        "qgpu": revision(),
        "command": "make gpu"
        + (" SIM=1" if place.simulated else "")
        + (" QUICK=1" if place.quick else ""),
    }


def attempt(item: Item, node: Node, told: Mapping[str, Any]) -> Outcome:
    """Run one item. Whatever goes wrong is its outcome, not the end of the set."""
    began = time.monotonic()
    figures: list[Mapping[str, Any]] = []
    notes: list[str] = []
    state = "done"
    try:
        wait_for("the end of former jobs", node.no_tenants, 10)
        for result in item.body(node):
            if isinstance(result, Figure):
                figures.append(result.record())
                click.echo(f"  {result.line()}")
            else:
                notes.append(result)
                click.echo(f"  {result}")
    except Exception as error:
        state = "failed"
        last = traceback.extract_tb(error.__traceback__)[-1]
        notes.append(f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
        click.echo(f"  FAILED {notes[-1]}")
    finally:
        node.end_programs()
    return Outcome(
        item.name, state, told, tuple(figures), tuple(notes), round(time.monotonic() - began, 1)
    )


def chosen(place: Place, parts: tuple[str, ...], only: tuple[str, ...]) -> list[Item]:
    """The items of these parts, in order."""
    default = [part for part in PARTS if part not in ASKED_FOR]
    wanted = [item for part in parts or default for item in PARTS[part](place)]
    return [item for item in wanted if not only or any(word in item.name for word in only)]


class Call:
    """One call of the command: its results, its time, its counts."""

    def __init__(self, place: Place, budget: float, again: bool) -> None:
        self.place, self.budget, self.again = place, budget, again
        self.results = Results(place.results)
        self.began = time.monotonic()
        self.failed = self.left = 0
        self.skipped: Counter[str] = Counter()

    def time_left(self) -> float:
        """Seconds until the budget is used up."""
        return self.budget - (time.monotonic() - self.began) if self.budget else 1e9

    def work(self, items: list[Item]) -> None:
        """Everything that is not done yet and fits."""
        with Node(self.place) as node:
            told = about(node, self.place)
            click.echo(
                f"{told['card']}, driver {told['driver']}; {told['machine']}; qgpu {told['qgpu']}"
            )
            done = set() if self.again else self.results.done(told)
            before = [item.name for item in items if item.name in done]
            if before:
                click.echo(f"done before: {len(before)} items (AGAIN=1 runs them once more)")
            self.place.prepare()
            for item in items:
                if item.name not in done:
                    self._one(item, node, told)

    def _one(self, item: Item, node: Node, told: Mapping[str, Any]) -> None:
        missing = [need for need in item.needs if not self.place.has(need)]
        if missing:
            self.skipped[", ".join(missing)] += 1
            self.results.add(
                Outcome(item.name, "skipped", told, notes=(f"needs {', '.join(missing)}",))
            )
            return
        if item.seconds > self.time_left():
            self.left += 1
            return
        click.echo(f"{item.name}:")
        outcome = attempt(item, node, told)
        self.results.add(outcome)
        self.results.write_summary()  # after each, so that a call that is cut off leaves a page
        self.failed += outcome.state == "failed"


def listing(place: Place, items: list[Item]) -> None:
    """What would run."""
    for item in items:
        missing = [need for need in item.needs if not place.has(need)]
        click.echo(
            f"{item.name:44} {item.seconds:5.0f}"
            f" s{'  needs ' + ', '.join(missing) if missing else ''}"
        )
    click.echo(f"{'together, at most about':44} {sum(item.seconds for item in items):5.0f} s")


def picture(results: Results) -> None:
    """The plot beside the summary, where matplotlib is there."""
    try:
        if plots.draw(results, results.path.with_name("preempt.svg")):
            click.echo(f"plot in {results.path.with_name('preempt.svg')}")
    except ImportError:
        click.echo(
            "no plot: matplotlib is not here; python -m bench.gpu.plots DIRECTORY draws it"
            " elsewhere"
        )


@click.command()
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only these parts."
)
@click.option("--only", multiple=True, help="Only items whose name contains this.")
@click.option("--sim", is_flag=True, help="On the simulator, labelled simulated.")
@click.option("--quick", is_flag=True, help="Fewer and shorter runs: for a look, not for a record.")
@click.option("--budget", type=float, default=540, show_default=True, help="Seconds; 0: no bound.")
@click.option("--again", is_flag=True, help="Also what is recorded as done.")
@click.option("--list", "only_list", is_flag=True, help="Say what would run.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=BUILD / "gpu", show_default=True
)
def main(
    parts: tuple[str, ...],
    only: tuple[str, ...],
    sim: bool,
    quick: bool,
    budget: float,
    again: bool,
    only_list: bool,
    results: Path,
) -> None:
    """Find out on this machine's card whether qgpu keeps its promises."""
    place = Place(sim, results / "simulated" if sim else results, quick)
    items = chosen(place, parts, only)
    if only_list:
        listing(place, items)
        return
    call = Call(place, budget, again)
    call.work(items)
    call.results.write_summary()
    picture(call.results)
    click.echo(f"recorded in {call.results.path}; summary in {call.results.summary_path}")
    for reason, count in call.skipped.items():
        click.echo(f"left out: {count} items that need {reason}")
    if call.left:
        click.echo(
            f"{call.left} items did not fit into {budget:g} s: the same command goes on with them"
        )
    sys.exit(1 if call.failed else AGAIN if call.left else 0)


if __name__ == "__main__":
    main()
