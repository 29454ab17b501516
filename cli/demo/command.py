"""`qgpu demo`: bring a private cluster up, run the main job, tear it down."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from cli.demo.jobs import Cluster, Timeout
from cli.demo.memory import MemoryStory
from cli.demo.promises import Promises
from cli.demo.release import ReleaseStory
from cli.demo.story import Story
from cli.program import program
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import SandboxOptions

LOGS = Path("build/demo-logs").resolve()
Play = Callable[[Sandbox, Promises, Console], None]


def _main_job(sandbox: Sandbox, promises: Promises, console: Console) -> None:
    """The acts of a cluster in which each job reserves its memory."""
    story = Story(Cluster(sandbox), promises, console)
    story.placement()
    story.alternation()
    story.cap()
    story.sudden_death()
    story.refusals()
    story.accounts()
    ReleaseStory(story.cluster, promises, console).play()


def _memory(sandbox: Sandbox, promises: Promises, console: Console) -> None:
    """The act of a cluster in which offline memory is reclaimable."""
    MemoryStory(Cluster(sandbox), promises, console).play()


def _verdict(promises: Promises, console: Console) -> int:
    total, broken = len(promises.made), promises.broken
    if not broken:
        console.print(f"\n[bold green]All {total} promises held.[/]")
        return 0
    console.print(f"\n[bold red]{len(broken)} of {total} promises did not hold:[/]")
    for promise in broken:
        console.print(f"  {promise.text}: {promise.seen}", highlight=False)
    return 1


def _save_logs(sandbox: Sandbox) -> None:
    """Copy the cluster's logs to where they outlive it."""
    shutil.rmtree(LOGS, ignore_errors=True)
    shutil.copytree(sandbox.layout.state / "log", LOGS, ignore=shutil.ignore_patterns("*.bin"))
    for output in (sandbox.layout.state / "home").glob("*/*"):
        if output.suffix in (".out", ".err") and output.is_file() and not output.is_symlink():
            shutil.copy(output, LOGS / output.name)


def _is_up(sandbox: Sandbox) -> bool:
    """Whether there is a whole cluster to enter (an interrupted `up` leaves only pieces)."""
    try:
        return sandbox.plan.phase == "up"
    except SandboxError:
        return False


def _leave(sandbox: Sandbox, console: Console, keep: bool, failed: bool) -> None:
    """Tear the cluster down, or print how to enter it; after a failure its logs stay."""
    if failed and (sandbox.layout.state / "log").is_dir():
        _save_logs(sandbox)
        console.print(
            f"Logs of all daemons and jobs: {LOGS} (begin with slurmctld.log)", highlight=False
        )
    if keep and _is_up(sandbox):
        console.print(_enter_hint(sandbox), highlight=False, markup=False)
    else:
        sandbox.down()


def _enter_hint(sandbox: Sandbox) -> str:
    qgpu = program()
    return (
        f"The cluster stays up in {sandbox.layout.state}. Enter it:\n"
        f"  {qgpu} sandbox exec{sandbox.selector} -u alice -- bash\n"
        f"and end it:\n  {qgpu} sandbox down{sandbox.selector}"
    )


def _perform(
    options: SandboxOptions, play: Play, promises: Promises, console: Console, keep: bool
) -> bool:
    """Bring a cluster up, play on it, tear it down; whether it came to its end."""
    sandbox = Sandbox(options, lambda text: console.print(f"  {text}", style="dim"))
    if sandbox.down():
        console.print(f"Ended the cluster {options.name!r} that an earlier run left.", style="dim")
    shape = f"{options.nodes} node(s), {options.cards} simulated card(s) each"
    console.print(f"[bold]Bringing up a private Slurm: {shape}[/]", highlight=False)
    done = False
    try:
        sandbox.up(keep_failed=True)
        play(sandbox, promises, console)
        done = True
    except (SandboxError, Timeout) as error:
        console.print(f"[bold red]The demo stopped:[/] {error}", highlight=False)
    finally:
        _leave(sandbox, console, keep, not done or bool(promises.broken))
    return done


@click.command()
@click.option("--keep", is_flag=True, help="Leave the main job's cluster up afterwards.")
@click.option("--name", default="demo", show_default=True, help="Name of the sandbox to use.")
def demo(keep: bool, name: str) -> None:
    """Run the main job on a real Slurm with simulated cards and check every promise."""
    console = Console(soft_wrap=True)
    began = time.monotonic()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that the cluster goes down then as well
    promises = Promises(console)
    small = SandboxOptions(name=f"{name[:12]}mem", nodes=1, cards=1, reclaimable=True)
    done = _perform(SandboxOptions(name=name), _main_job, promises, console, keep)
    done = done and _perform(small, _memory, promises, console, keep=False)
    status = _verdict(promises, console) if done else 1
    console.print(f"{time.monotonic() - began:.0f} s in all.", style="dim")
    sys.exit(status)
