"""`qgpu demo`: bring a private cluster up, run the main job, tear it down."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console

from cli.demo.jobs import Cluster, Timeout
from cli.demo.promises import Promises
from cli.demo.story import Story
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions


def _play(sandbox: Sandbox, console: Console) -> Promises:
    """All acts in order."""
    promises = Promises(console)
    story = Story(Cluster(sandbox), promises, console)
    story.placement()
    story.alternation()
    story.cap()
    story.sudden_death()
    story.refusals()
    story.accounts()
    return promises


def _verdict(promises: Promises, console: Console) -> int:
    total, broken = len(promises.made), promises.broken
    if not broken:
        console.print(f"\n[bold green]All {total} promises held.[/]")
        return 0
    console.print(f"\n[bold red]{len(broken)} of {total} promises did not hold:[/]")
    for promise in broken:
        console.print(f"  {promise.text}: {promise.seen}", highlight=False)
    return 1


def _enter_hint(sandbox: Sandbox) -> str:
    return (
        f"The cluster stays up in {sandbox.layout.state}. Enter it:\n"
        f"  {sys.executable} -m cli.main sandbox exec{sandbox.selector} -u alice -- bash\n"
        f"and end it:\n  {sys.executable} -m cli.main sandbox down{sandbox.selector}"
    )


@click.command()
@click.option("--keep", is_flag=True, help="Leave the cluster up afterwards.")
@click.option("--name", default="demo", show_default=True, help="Name of the sandbox to use.")
def demo(keep: bool, name: str) -> None:
    """Run the main job on a real Slurm with simulated cards and check every promise."""
    console = Console(soft_wrap=True)
    began = time.monotonic()
    sandbox = Sandbox(SandboxOptions(name=name), lambda text: console.print(f"  {text}", style="dim"))
    console.print("[bold]Bringing up a private Slurm: 2 nodes, 2 simulated cards each[/]")
    status = 1
    try:
        sandbox.up()
        status = _verdict(_play(sandbox, console), console)
    except (SandboxError, Timeout) as error:
        console.print(f"[bold red]The demo stopped:[/] {error}", highlight=False)
        console.print(f"Logs are in {sandbox.layout.state}/log as long as the cluster is up (KEEP=1).")
    finally:
        if keep:
            console.print(_enter_hint(sandbox), highlight=False, markup=False)
        else:
            sandbox.down()
    console.print(f"{time.monotonic() - began:.0f} s in all.", style="dim")
    sys.exit(status)
