"""`qgpu job`: changing what a running job was granted on this node."""

from __future__ import annotations

from typing import cast

import click

from cli.daemon import config_option, find_daemon, node_option


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
