"""`qgpu plan`: what sbatch would do with a command, without submitting it.

Where this host has a Slurm, `sbatch --test-only` is asked (plan_slurm.py). Elsewhere, and with
--config, only qgpu's own rules are (planned.py).
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import click

from cli.site import slurm_answer
from cli.site.plan_slurm import by_slurm
from cli.site.plan_view import show
from cli.site.planned import Plan, RefusedError, by_rules
from cli.site.sbatch_line import Line, LineError, asked, read_line
from gres.config.site import Config, ConfigError, load_config
from gres.paths import PATHS
from slurm_plugin.submission import LuaMissingError

DEFAULT_CONFIG = PATHS.config_file
ONLY_RULES = (
    "only qgpu's own rules were asked, because {why}; whether Slurm has the CPUs, memory, nodes and"
    " partition, and takes each other word, is not known"
)


def read_config(path: str) -> Config:
    """The configuration, or an error for the command line."""
    try:
        return load_config(Path(path))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def plans_of(line: Line, config: Config) -> list[Plan]:
    """The plan of each part of the job. Raises RefusedError, LineError, LuaMissingError,
    click.UsageError.
    """
    why = "--config names another configuration than the cluster's"
    if "config" not in line.own:
        plans = by_slurm(line, config) if slurm_answer.reachable() else None
        if plans:
            return plans
        why = "no slurmctld answers here"
    found = asked(line, os.environ)
    if not any(name in found for name in _ASKS):
        raise click.UsageError("say what the job asks for, for example --gres=qgpu:30")
    plan = by_rules(found, config)
    return [replace(plan, notes=(*plan.notes, ONLY_RULES.format(why=why)))]


_ASKS = (
    *("gres", "tres-per-task", "vram", "gpus", "gpus-per-node", "gpus-per-task"),
    *("gpus-per-socket", "exclusive"),
)


class _UnknownError(click.ClickException):
    """Neither accepted nor refused."""

    exit_code = 2


class _Words(click.Command):
    """A command whose words are sbatch's: click does not know which of them have a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[--json] [--config PATH] [SBATCH'S OPTIONS] [SCRIPT [ARGUMENTS]]"]


@click.command(cls=_Words)
@click.pass_context
def plan(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Say what sbatch would do with the same words: the rewrite, the reservation, when and where
    the job starts, and what would start sooner.

    Put it in front of any sbatch command: options, script, #SBATCH lines and SBATCH_* variables
    count as there. Nothing is submitted, and nothing of the script is run. Slurm itself is asked
    (sbatch --test-only), so its answer is that of a submission at this moment.

    --json prints one JSON object. --config PATH (or QGPU_CONFIG) names qgpu.yaml; with --config
    only qgpu's own rules are asked, so that a configuration can be tried before it is used.

    Exits 0 if sbatch takes the job. Exits 1 with the sentence if sbatch refuses it, or takes it and
    it can never start; 2 with a sentence where that is not known.
    """
    try:
        line = read_line(words)
    except LineError as error:
        raise click.UsageError(str(error)) from None
    if any(name in ("help", "usage", "?", "version", "V") for name, _ in line.options):
        click.echo(ctx.get_help())
        return
    if not line.options and line.script is None:
        raise click.UsageError("say what the job asks for, for example --gres=qgpu:30")
    as_json = "json" in line.own
    config = read_config(line.own.get("config") or os.environ.get("QGPU_CONFIG") or DEFAULT_CONFIG)
    try:
        plans = plans_of(line, config)
    except LineError as error:
        raise click.UsageError(str(error)) from None
    except (LuaMissingError, slurm_answer.NoAnswerError) as error:
        raise _UnknownError(str(error)) from None
    except RefusedError as error:
        if as_json:
            click.echo(json.dumps({"accepted": False, "rule": error.rule, "message": str(error)}))
            raise click.exceptions.Exit(1) from None
        raise click.ClickException(str(error)) from None
    if as_json:
        more = {"parts": [plan.as_dict() for plan in plans]} if len(plans) > 1 else {}
        click.echo(json.dumps(plans[0].as_dict() | more))
    else:
        show(plans)
