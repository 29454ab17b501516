"""`qgpu guard`: hold or end jobs that slurmctld took without qgpu's job_submit."""

from __future__ import annotations

import sys

import click

from cli.output import fail, say
from gres.config.site import ConfigError, load_config
from gres.paths import PATHS
from gres.request.tables import tables_of
from slurm_plugin import guard as guarding
from slurm_plugin.records import SlurmError, run


@click.command()
@click.option(
    "--config",
    envvar="QGPU_CONFIG",
    default=PATHS.config_file,
    show_default=True,
    help="qgpu.yaml.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
def guard(config: str, dry_run: bool) -> None:
    """Hold or end jobs that ask for qgpu and never passed qgpu's job_submit; once, on the
    controller.

    Slurm takes them for jobs without a card. A waiting one is held, a running one gets the sentence
    on its stderr and is cancelled; both have it as AdminComment. Exit status 1 if there was one:
    job_submit is not active then.
    """
    try:
        found = guarding.bypassed(tables_of(load_config(config, trusted=True)).partitions, run)
    except (ConfigError, SlurmError, ValueError, OSError) as error:
        fail("guard", str(error))
    for action in guarding.actions(found):
        try:
            if not dry_run:
                guarding.act(action, run)
            click.echo(
                f"{'would ' if dry_run else ''}{action.kind}: {action.job.sentence}", err=True
            )
        except SlurmError as error:
            say("guard", f"job {action.job.job_id}: {error}")
    sys.exit(1 if found else 0)
