"""`qgpu report JOBID...`: what was granted (Slurm's accounting), what was used (the nodes' ledgers)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import click

from cli.report_model import JobReport, advice, build
from cli.report_text import parsable, table
from enforcer.ledger import FILE_NAME, LedgerError, Usage, read_usage
from gres.config import Config, ConfigError, load_config
from slurm_plugin import sacct

DEFAULT_CONFIG = "/etc/qgpu/qgpu.yaml"


def ledger_paths(config: Config) -> dict[str, list[str]]:
    """Ledger files by path, with the nodes that write to each (on a real cluster one is local)."""
    paths: dict[str, list[str]] = {}
    for name in config.node_names():
        paths.setdefault(str(Path(config.node(name).state_dir) / FILE_NAME), []).append(name)
    return paths


def read_all(paths: Iterable[str], job_ids: Sequence[int]) -> tuple[list[Usage], list[str]]:
    """Rows of all ledgers that are there, and a sentence for each that cannot be read."""
    rows: list[Usage] = []
    problems: list[str] = []
    for path in paths:
        if not Path(path).exists():
            continue
        try:
            rows += read_usage(path, job_ids)
        except LedgerError as error:
            problems.append(str(error))
    return rows, problems


def missing_nodes(jobs: Sequence[JobReport], paths: dict[str, list[str]]) -> list[str]:
    """A sentence for each node of the jobs whose ledger is not on this machine."""
    absent = {name: path for path, names in paths.items() for name in names if not Path(path).exists()}
    wanted = {node for job in jobs for node in job.nodes if not any(g.node == node for g in job.grants)}
    return [
        f"no ledger of {name} here ({absent[name]}): what its cards measured is not in this report"
        for name in sorted(wanted & set(absent))
    ]


def unknown_ids(asked: Sequence[str], jobs: Sequence[sacct.SacctJob]) -> list[str]:
    """Of the asked ids, those that sacct did not answer. An array's number stands for all its tasks."""
    known = {job.job_id for job in jobs} | {str(job.raw_id) for job in jobs}
    known |= {job.job_id.partition("_")[0].partition("+")[0] for job in jobs}
    return [text for text in asked if text not in known]


@click.command()
@click.argument("job_ids", metavar="JOBID...", nargs=-1, required=True)
@click.option("--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml.")
@click.option("--ledger", "ledgers", multiple=True, help="Read this ledger instead of the configured ones.")
@click.option("--json", "as_json", is_flag=True, help="JSON; null where nothing was measured.")
@click.option("--parsable", "as_parsable", is_flag=True, help="One line per card, fields separated by |.")
def report(
    job_ids: tuple[str, ...], config: str, ledgers: tuple[str, ...], as_json: bool, as_parsable: bool
) -> None:
    """Show what jobs were granted and what they used.

    A job may be 12, an array task 12_3, or an array's number for all its tasks.
    """
    for text in job_ids:
        if not sacct.is_job_id(text):
            fail(f"'{text}' is not a job id; write for example 12, or 12_3 for a task of an array")
    try:
        paths = {path: [] for path in ledgers} if ledgers else ledger_paths(load_config(config))
        found = sacct.jobs(job_ids)
    except (ConfigError, sacct.SacctError) as error:
        fail(str(error))
    rows, problems = read_all(paths, [job.raw_id for job in found])
    reports = build(found, rows, time.time_ns())
    notes = problems + missing_nodes(reports, paths)
    show(reports, notes, as_json, as_parsable)
    unknown = unknown_ids(job_ids, found)
    for text in unknown:
        click.echo(f"qgpu report: job {text} is not known to sacct", err=True)
    sys.exit(1 if unknown else 0)


def show(reports: Sequence[JobReport], notes: Sequence[str], as_json: bool, as_parsable: bool) -> None:
    """Print in the asked form; notes go to stderr where the form has no place for them."""
    if as_json:
        body = [job.as_json() | {"advice": advice(job)} for job in reports]
        click.echo(json.dumps({"version": 1, "jobs": body, "notes": list(notes)}, indent=1))
        return
    if as_parsable:
        click.echo("\n".join(parsable(reports)))
    elif reports:
        click.echo("\n".join(table(reports)))
        for line in [line for job in reports for line in advice(job)]:
            click.echo(f"* {line}")
    for note in notes:
        click.echo(f"qgpu report: {note}", err=True)


def fail(sentence: str) -> NoReturn:
    """Say what is wrong and exit with status 2."""
    click.echo(f"qgpu report: {sentence}", err=True)
    sys.exit(2)
