"""`qgpu job`: changing what a running job was granted on this node."""

from __future__ import annotations

import time
from typing import cast

import click

from cli.daemon import Daemon, config_option, find_daemon, node_option

POLL_S = 0.2  # period of questions to qgpud, which has no event for it


@click.group()
def job() -> None:
    """Change a running job on this node."""


@job.command("class")
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@click.argument("job_class", metavar="CLASS", type=click.Choice(["online", "offline"]))
@click.option("--force", is_flag=True, help="Also to a class that promises more than Slurm booked.")
@config_option
@node_option
def class_(job_id: int, job_class: str, force: bool, config_path: str, node: str | None) -> None:
    """Count the running job JOBID as CLASS from now on, on this node. Root only.

    Slurm does not change the QOS of a running job; its accounting keeps the class that was granted.
    A job on several nodes is changed on each of them.
    """
    answer = find_daemon(config_path, node).ask(
        op="job-class", job=job_id, job_class=job_class, force=force
    )
    before, after = answer["before"], answer["after"]
    click.echo(
        f"job {job_id} is {after} already"
        if before == after
        else f"job {job_id} was {before}, is {after}"
    )
    if not answer["reached"]:
        click.echo("qgpu-arbiter is not there; it gets this when it starts", err=True)


@job.command()
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@config_option
@node_option
def pardon(job_id: int, config_path: str, node: str | None) -> None:
    """Exempt JOBID from the audit's actions on this node; its stopped processes continue. Root
    only.

    It counts until the job's grant ends, or qgpud restarts. What the audit finds is still logged.
    """
    pids = cast(
        "list[int]", find_daemon(config_path, node).ask(op="job-pardon", job=job_id)["continued"]
    )
    went = f", {len(pids)} process{'es' if len(pids) != 1 else ''} went on" if pids else ""
    click.echo(f"the audit leaves job {job_id} alone from now on{went}")


@job.command()
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@config_option
@node_option
def release(job_id: int, config_path: str, node: str | None) -> None:
    """End the grant that job JOBID left on this node. Root only.

    For a job that Slurm has no more and whose Epilog did not run. qgpud does this by itself where
    it can ask slurmctld. It is refused while a slurmstepd of the job runs here.
    """
    find_daemon(config_path, node).ask(op="job-release", job=job_id)
    click.echo(f"the grant of job {job_id} has ended")


@job.command()
@click.argument("job_id", metavar="JOBID", type=click.IntRange(min=1))
@click.option("--card", required=True, metavar="N", help="Index or UUID of the card.")
@click.option("--no-wait", is_flag=True, help="Only begin, and do not wait until the job is there.")
@config_option
@node_option
def move(job_id: int, card: str, no_wait: bool, config_path: str, node: str | None) -> None:
    """Move the running job JOBID to card N of this node. Root only.

    For a job whose memory may be taken back (memory: reclaimable), with one card. Its memory goes
    through host memory, and it goes on where it stopped. Slurm's booking stays as it is.
    """
    daemon = find_daemon(config_path, node)
    answer = daemon.ask(op="job-move", job=job_id, card=card)
    target = cast("int", answer["card"])
    if answer["there"]:
        click.echo(f"job {job_id} is on card {target} already")
        return
    if no_wait:
        click.echo(f"job {job_id} is on its way to card {target}")
        return
    found = _arrived(daemon, job_id)
    where, state = cast("int", found["card"]), cast("str", found["state"])
    if state != "unable" and where != target:
        raise click.ClickException(
            f"job {job_id} is on card {where}: it could not be moved to card {target}. The log of"
            " qgpud has the reason"
        )
    if state == "unable":
        raise click.ClickException(
            f"job {job_id} cannot be moved, and it is ended. The log of qgpud has the reason"
        )
    waits = "" if state == "resident" else "; its memory is away until there is room for it"
    click.echo(f"job {job_id} is on card {target}{waits}")


def _arrived(daemon: Daemon, job_id: int) -> dict[str, object]:
    """Where a job is that was ordered elsewhere, once it is there or was given up."""
    while True:
        found = daemon.ask(op="job-where", job=job_id)
        if not found["wanted"]:
            return found
        time.sleep(POLL_S)
