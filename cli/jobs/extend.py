"""`qgpu extend`: give offline jobs back the time that online jobs took, or put them back into the
queue.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

import click

from cli.jobs import extensions
from cli.output import fail, say
from cli.report import ledgers
from cli.report.ledgers import Question
from cli.report.text import duration
from gres.config.site import Config, ConfigError, load_config
from gres.grant.extension import Action, Given, RunningJob, decide
from gres.paths import PATHS
from gres.units import UnitError, parse_duration
from slurm_plugin import control
from slurm_plugin.records import Runner, SlurmError, run

EARLIER_S = 30  # seconds by which a node's clock may date the job's start earlier


def suspended(jobs: Sequence[RunningJob], rows: Sequence[ledgers.Row]) -> dict[int, float]:
    """Seconds for which each job was suspended in its present run: on the card where it was
    longest.
    """
    starts = {job.job_id: (job.start - EARLIER_S) * 10**9 for job in jobs}
    found: dict[int, float] = {}
    for row in rows:
        usage = row.usage
        if usage.job_id in starts and usage.granted_at >= starts[usage.job_id]:
            lost = ((usage.closed_preempted_ns or 0) + (usage.reclaimed_ns or 0)) / 1e9
            found[usage.job_id] = max(found.get(usage.job_id, 0.0), lost)
    return found


def commit(action: Action, runner: Runner) -> str:
    """Ask slurmctld; what was done, as a sentence. Raises SlurmError."""
    if action.kind == "extend":
        runner(control.extend_command(action.job_id, action.limit_s))
        return f"job {action.job_id}: its time limit is now {duration(action.limit_s)}"
    if action.kind == "requeue":
        runner(control.requeue_command(action.job_id))
        return f"job {action.job_id}: requeued, it was suspended for too long"
    return f"job {action.job_id}: its partition allows no more time"


def one_pass(
    config: Config, before: Mapping[int, Given], ahead_s: int, runner: Runner, dry: bool = False
) -> tuple[dict[int, Given], list[str], list[str]]:
    """Handle each running job once; the new records, the actions, and the errors."""
    jobs = control.running(list(config.suspended), runner)
    found = ledgers.read(ledgers.places(config), Question(jobs=[job.job_id for job in jobs]))
    lost, known = suspended(jobs, found.rows), dict(before)
    done, problems = [], list(found.problems)
    for job in jobs:
        if job.job_id not in lost:
            continue
        rule = config.suspended[job.qos]
        action, given = decide(
            job, lost[job.job_id], before.get(job.job_id), rule, int(time.time()), ahead_s
        )
        try:
            if action is not None:
                done.append(f"job {job.job_id}: {action.kind}" if dry else commit(action, runner))
            known[job.job_id] = given
        except SlurmError as error:
            problems.append(f"job {job.job_id}: {error}")
    return known, done, problems


@click.command()
@click.option(
    "--config",
    envvar="QGPU_CONFIG",
    default=PATHS.config_file,
    show_default=True,
    help="qgpu.yaml.",
)
@click.option(
    "--ahead",
    default="5min",
    show_default=True,
    help="How long a job must last until the next look.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
def extend(config: str, ahead: str, dry_run: bool) -> None:
    """Give offline jobs back the time for which online jobs suspended them; once, on the
    controller, as SlurmUser.

    `suspended` in qgpu.yaml says for which QOS. Reads the ledgers that `qgpu report` reads.
    """
    try:
        loaded = load_config(config, trusted=True)
        ahead_s = int(parse_duration(ahead).seconds)
        if not loaded.suspended:
            fail("extend", "qgpu.yaml names no QOS under suspended, so there is nothing to do")
        path = extensions.place(loaded)
        known, done, problems = one_pass(loaded, extensions.load(path), ahead_s, run, dry_run)
        for line in done:
            click.echo(line)
        if not dry_run:
            mode = 0o600 if loaded.reports.private_data else 0o644
            extensions.save(path, known, loaded.ledger.retention.seconds, mode)
    except (ConfigError, SlurmError, UnitError, ValueError, OSError) as error:
        fail("extend", str(error))
    for problem in problems:
        say("extend", problem)
    sys.exit(1 if problems else 0)
