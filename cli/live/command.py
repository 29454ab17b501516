"""`qgpu top`: cards and tenants, live."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.live import Live

from cli.live import states as live
from cli.live import view as top_view
from cli.output import fail, form_of, say, show
from cli.report.command import DEFAULT_CONFIG
from enforcer.reporting.state import NodeState
from gres.config.site import Config, ConfigError, load_config


def look(config: Config, node: str | None, cluster: bool) -> tuple[list[NodeState], list[str]]:
    """The states now, and notes about them. Raises ConfigError."""
    return live.read_all(config, live.nodes_here(config, node, cluster))


def watch(config: Config, node: str | None, cluster: bool, interval: float) -> None:
    """Redraw until interrupted."""
    console = Console()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as screen:
        while True:
            began = time.monotonic()
            screen.update(
                top_view.picture(*look(config, node, cluster), height=console.height), refresh=True
            )
            time.sleep(max(0.0, interval - (time.monotonic() - began)))


@click.command()
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option("--node", help="This node instead of the one we are on.")
@click.option(
    "--cluster", is_flag=True, help="All nodes whose qgpud runs on this machine (a sandbox)."
)
@click.option("--once", is_flag=True, help="Print once and end; so it does without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds."
)
@click.option("--json", "as_json", is_flag=True, help="JSON; null where nothing was measured.")
@click.option(
    "--parsable", "as_parsable", is_flag=True, help="One line per tenant, fields separated by |."
)
def top(
    config: str,
    node: str | None,
    cluster: bool,
    once: bool,
    interval: float,
    as_json: bool,
    as_parsable: bool,
) -> None:
    """Show cards and the jobs on them, once a second."""
    try:
        loaded = load_config(config)
        if not (once or as_json or as_parsable) and sys.stdout.isatty():
            watch(loaded, node, cluster, interval)
        states, notes = look(loaded, node, cluster)
    except ConfigError as error:
        fail("top", str(error))
    except KeyboardInterrupt:
        return
    lines = [list(top_view.HEADER), *top_view.rows(states)]
    form = form_of(as_json, as_parsable)
    show(top_view.as_json(states, notes), lines, form, top_view.LEFT)
    if form != "json":
        for note in notes:
            say("top", note)
    sys.exit(0 if states else 1)
