"""`qgpu doctor`: is this node fit, and what to do where it is not."""

from __future__ import annotations

import json
import sys

import click

from cli.daemon import config_option, node_option
from cli.doctor_checks import Check, examine

MARK = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def table(checks: list[Check]) -> str:
    """One line per check; what to do stands behind an arrow."""
    width = max(len(check.name) for check in checks)
    return "\n".join(
        f"{MARK[check.status]}  {check.name:<{width}}  {check.text}{f' -> {check.todo}' if check.todo else ''}"
        for check in checks
    )


@click.command()
@config_option
@node_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(config_path: str, node: str | None, as_json: bool) -> None:
    """Check this node: one line per thing, with what to do. Exit status 1 if anything fails.

    Nothing is changed and root is not needed; what only root can see is said to be so.
    """
    checks = examine(config_path, node)
    if as_json:
        click.echo(json.dumps([check.as_dict() for check in checks], indent=1))
    else:
        click.echo(table(checks))
    sys.exit(1 if any(check.status == "fail" for check in checks) else 0)
