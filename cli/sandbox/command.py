"""`qgpu sandbox`: up, down, status, exec, list."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import click

from cli.program import program
from cli.sandbox import cgroups, plan, processes
from cli.sandbox.cluster import Sandbox
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import Layout
from cli.sandbox.options import (
    CGROUP_VARIABLE,
    DEFAULT_ROOT,
    Driver,
    Placement,
    SandboxOptions,
    check_name,
    parse_memory,
)
from cli.sandbox.versions import tree
from gres.config.site import Injection

F = TypeVar("F", bound=Callable[..., Any])

_NAME = click.option(
    "--name", default="default", show_default=True, help="Which sandbox; several can run at once."
)
_STATE = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help=f"Directory for everything of the sandbox.  [default: {DEFAULT_ROOT}/NAME]",
)


def _which(command: F) -> F:
    return _NAME(_STATE(command))


class _Sentences(click.Group):
    """Converts SandboxError into `Error: ...` and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SandboxError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Sentences)
def sandbox() -> None:
    """A private, real Slurm cluster with simulated cards on this machine.

    Own munge, MariaDB, slurmdbd, slurmctld and slurmds, own ports, own directory, own user
    accounts: the machine's own Slurm, services, databases and accounts stay untouched. `down`
    leaves nothing behind. Needs root. Users inside: alice and bob. QOS: online, offline, normal.
    Partition: gpu.

    \b
    qgpu sandbox up --nodes 1 --cards 4 --memory 40GiB --model a100
    qgpu sandbox exec -u alice -- sbatch --qos=online --gres=qgpu:30 job.sh
    qgpu sandbox exec -- sacct -X
    qgpu sandbox down
    """


def _up_in_tree(version: str, state_dir: Path | None, progress: Callable[[str], None]) -> NoReturn:
    """The same command once more, with that Slurm's tree as the root directory."""
    if state_dir is not None:
        raise SandboxError(
            f"--state-dir cannot be combined with --slurm: a tree sees {DEFAULT_ROOT} only"
        )
    tree.ensure(version, progress)
    progress(f"Slurm {tree.exact(tree.trees_root() / version)}: building the native parts for it")
    tree.run_make(version, "native-live")
    words = [str(tree.CHECKOUT / ".venv/bin/qgpu"), *sys.argv[1:]]
    argv = tree.command(version, words)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@sandbox.command()
@_which
@click.option("--nodes", default=2, show_default=True, help="Number of simulated nodes.")
@click.option("--cards", default=2, show_default=True, help="Simulated cards per node.")
@click.option("--memory", default="80GiB", show_default=True, help="Memory of each card.")
@click.option(
    "--model", default="h200", show_default=True, help="Model of the cards, as the type in Slurm."
)
@click.option(
    "--keep-failed", is_flag=True, help="After a failure leave everything for reading the logs."
)
@click.option(
    "--slurm",
    metavar="VERSION",
    help=(
        "Another Slurm than the machine's, in a Debian tree of its own:"
        f" {', '.join(tree.RELEASES)}."
    ),
)
@click.option(
    "--native-gres",
    is_flag=True,
    help="With qgpu's native GRES plugins, built against this Slurm's source.",
)
@click.option(
    "--injection",
    type=click.Choice(["auto", "preload", "mount"]),
    default="auto",
    show_default=True,
    help="How tasks get the shim.",
)
@click.option(
    "--multi-card",
    is_flag=True,
    help="Jobs may have parts of several cards (Slurm 24.05 or later).",
)
@click.option(
    "--placement",
    type=click.Choice(["binpack", "spread"]),
    default="binpack",
    show_default=True,
    help="Whether shares fill a card first; spread needs Slurm 23.11 or later.",
)
@click.option(
    "--mig",
    default=0,
    help="The cards are MIG instances, so many of each card (Slurm 23.11 or later).",
)
@click.option(
    "--cgroup",
    type=click.Choice(get_args(cgroups.Choice)),
    envvar=CGROUP_VARIABLE,
    default="auto",
    show_default=True,
    help="Version of cgroups in the sandbox; auto: 2 only where the machine has no other.",
)
@click.option(
    "--cgroup-slice",
    metavar="NAME",
    default="",
    help="Slurm's CgroupSlice (Slurm 25.11 or later, cgroups version 2).",
)
@click.option(
    "--cgroup-names",
    type=click.Choice(get_args(cgroups.Names)),
    default="slurm",
    show_default=True,
    help="What a job's cgroup is named after; slurm: as that version does (26.05, version 2).",
)
@click.option(
    "--driver",
    type=click.Choice(get_args(Driver)),
    default="580",
    show_default=True,
    help="Generation of the simulated driver; 615 limits memory by cgroup (version 2).",
)
@click.option(
    "--reclaimable",
    is_flag=True,
    help="Memory of offline jobs moves to the host when others need it.",
)
@click.option(
    "--nvlinks",
    metavar="LIST",
    default="",
    help="NVLinks of each node's cards: 0-1:4 are four between cards 0 and 1 (none).",
)
def up(
    name: str,
    state_dir: Path | None,
    nodes: int,
    cards: int,
    memory: str,
    model: str,
    keep_failed: bool,
    slurm: str | None,
    native_gres: bool,
    injection: Injection,
    multi_card: bool,
    placement: Placement,
    mig: int,
    cgroup: cgroups.Choice,
    cgroup_slice: str,
    cgroup_names: cgroups.Names,
    driver: Driver,
    nvlinks: str,
    reclaimable: bool,
) -> None:
    """Bring a sandbox up and wait until its nodes are idle."""
    begin = time.monotonic()

    def progress(text: str) -> None:
        click.echo(f"{time.monotonic() - begin:5.1f} s  {text}")

    options = SandboxOptions(
        name,
        nodes,
        cards,
        parse_memory(memory),
        model,
        state_dir,
        native_gres,
        injection,
        multi_card,
        placement,
        mig,
        cgroup,
        cgroup_slice,
        cgroup_names,
        driver,
        nvlinks,
        reclaimable,
    )
    if slurm is not None and tree.release(slurm).version != tree.here():
        _up_in_tree(slurm, state_dir, progress)
    cluster = Sandbox(options, progress)
    cluster.up(keep_failed)
    progress(f"up: {', '.join(options.node_names)}, each with {cards} x {options.product_name}")
    click.echo(f"enter it with:  {program()} sandbox exec{cluster.selector} -u alice -- bash")
    click.echo(f"end it with:    {program()} sandbox down{cluster.selector}")


@sandbox.command()
@_which
def down(name: str, state_dir: Path | None) -> None:
    """End every process of a sandbox and remove everything of it.

    It works whatever state the sandbox is in: running, half up after a crash, some daemons or all
    of them killed, left over from before a reboot. Running jobs are killed. Nothing else is
    touched.
    """
    begin = time.monotonic()
    check_name(name)
    cluster = Sandbox(SandboxOptions(name, state_dir=state_dir))
    if os.geteuid() != 0:
        raise SandboxError("ending a sandbox needs root")
    if cluster.down():
        click.echo(
            f"{time.monotonic() - begin:5.1f} s  the sandbox in {cluster.layout.state} is gone"
        )
    else:
        click.echo(f"there is no sandbox in {cluster.layout.state}")


@sandbox.command()
@_which
def status(name: str, state_dir: Path | None) -> None:
    """Print what runs; exit status 0 only if all parts do."""
    cluster = Sandbox.existing(name, state_dir)
    chosen = cluster.plan
    running = cluster.services()
    click.echo(
        f"sandbox {chosen.name} in {cluster.layout.state}: {chosen.phase}, Slurm {chosen.slurm}"
    )
    click.echo(
        f"  nodes {', '.join(chosen.nodes)}, each with {chosen.cards} x {chosen.product_name}, "
        f"{chosen.memory_mib} MiB"
    )
    words = "cards are NOT constrained: " if chosen.cgroup == "none" else "cards are constrained: "
    click.echo(f"  {words}{chosen.cgroup_why}")
    for service, alive in running.items():
        click.echo(f"  {service:<16} {'runs' if alive else 'does not run'}")
    # without its namespace the whole sandbox has ended, as after a reboot
    if running.get("namespace") and (words := cluster.last_words()):
        click.echo(words)
    if chosen.phase != "up" or not all(running.values()):
        raise click.exceptions.Exit(1)


@sandbox.command(
    "exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_which
@click.option("-u", "--user", default="root", show_default=True, help="alice, bob or root.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, state_dir: Path | None, user: str, command: tuple[str, ...]) -> None:
    """Run COMMAND inside a sandbox, where Slurm's commands speak to its cluster.

    Users start in their home, root in the current directory. The exit status is COMMAND's.

    \b
    qgpu sandbox exec -u alice -- sbatch --gres=qgpu:30 job.sh
    qgpu sandbox exec -u bob -- bash
    """
    cluster = Sandbox.existing(name, state_dir)
    who = None if user == "root" else user
    argv = cluster.argv(command, who)
    os.execvpe(argv[0], argv, cluster.env(who))


@sandbox.command("list")
def list_() -> None:
    """Name the sandboxes of this machine."""
    states = processes.live_states()
    if DEFAULT_ROOT.is_dir():
        states |= set(DEFAULT_ROOT.iterdir())
    for state in sorted(states):
        try:
            found = plan.load(Layout(state))
        except SandboxError as error:
            click.echo(f"{'?':<17} {'unreadable':<9} {state} ({error})")
            continue
        if found is not None:
            phase = found.phase if processes.members(state) else "dead"
            click.echo(f"{found.name:<17} {phase:<9} {state}")
