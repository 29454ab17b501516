"""`qgpu doctor`: is this host fit for its roles, and what to do where it is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import click

from cli.daemon import config_option, node_option
from cli.doctor import probe_task as task
from cli.doctor.examine import examine
from cli.doctor.probe import Wanted, probe
from cli.doctor.result import Check
from cli.doctor.roles import ROLES, Role
from gres.printable import printable

MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def table(checks: list[Check]) -> str:
    """One line per check, with the remedy behind an arrow. A line names each role before its
    checks.
    """
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for before, check in zip([None, *checks], checks, strict=False):
        if check.group != "host" and (before is None or before.group != check.group):
            lines.append(f"{check.group}:")
        todo = f" -> {check.todo}" if check.todo else ""
        lines.append(f"{MARK[check.status]}  {check.name:<{width}}  {check.text}{todo}")
    return "\n".join(map(printable, lines))


@click.command()
@config_option
@node_option
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(ROLES),
    help=(
        "What this host is; may be given more than once. Default: what runs here, and what"
        " qgpu.yaml names."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option(
    "--probe",
    "probing",
    is_flag=True,
    help="Submit a one-second job and check that it is governed.",
)
@click.option("--partition", help="With --probe: submit there.")
@click.option("--account", help="With --probe: on that account.")
@click.option("--qos", help="With --probe: with that QOS.")
@click.option(
    "--timeout",
    type=click.FloatRange(5, 3600),
    default=60,
    show_default=True,
    help="With --probe: seconds until the job must have ended.",
)
@click.option("--probe-task", hidden=True, help="What the probe runs in its job.")
def doctor(
    config_path: str,
    node: str | None,
    roles: tuple[Role, ...],
    as_json: bool,
    probing: bool,
    partition: str | None,
    account: str | None,
    qos: str | None,
    timeout: float,
    probe_task: str | None,
) -> None:
    """Check this host: one line per item, with its remedy. Exit status 1 if a check fails.

    Nothing is changed and root is not needed; checks that need root are marked. With --probe a job
    of the smallest share runs as the calling user (--node chooses where) and is checked instead;
    nothing of it stays.
    """
    if probe_task is not None:
        sys.exit(task.run(config_path, probe_task))
    if probing:
        wanted = Wanted(partition, account, qos, node, timeout)
        report(probe(config_path, wanted), as_json)
    report(examine(config_path, node, roles), as_json)


def report(checks: Iterable[Check], as_json: bool) -> None:
    """Print the checks, and end with status 1 if one failed."""
    found = list(checks)
    if as_json:
        click.echo(json.dumps([check.as_dict() for check in found], indent=1))
    else:
        click.echo(table(found))
    sys.exit(1 if any(check.status == "fail" for check in found) else 0)
