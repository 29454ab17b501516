"""`qgpu top`: cards and tenants, live."""

from __future__ import annotations

import os
import sys
import time

import click

from cli.live import states as live
from cli.live import view
from cli.live.view import SORTS, Shown
from cli.output import fail, form_of, say, show_columns, user_id
from cli.report.command import DEFAULT_CONFIG
from enforcer.reporting.state import NodeState
from gres.config.site import Config, ConfigError, load_config


def look(config: Config, node: str | None, cluster: bool) -> tuple[list[NodeState], list[str]]:
    """The states now, and notes about them. Raises ConfigError."""
    return live.read_all(config, live.nodes_here(config, node, cluster))


def watch(config: Config, node: str | None, cluster: bool, interval: float, shown: Shown) -> None:
    """Redraw until q is pressed, or an interrupt comes."""
    from cli.live.terminal import Terminal  # needs a terminal, and is not free to import

    with Terminal() as terminal:
        while True:
            began = time.monotonic()
            states, notes = look(config, node, cluster)
            shown.history.note(states)
            left = interval
            while left > 0:
                size = terminal.size
                terminal.draw(view.picture(states, notes, shown, size.columns, size.lines))
                pressed = terminal.keys(began + interval - time.monotonic())
                if "q" in pressed:
                    return
                shown.sort = next((key for key in reversed(pressed) if key in SORTS), shown.sort)
                left = began + interval - time.monotonic()


def _uid_of(name: str | None) -> int | None:
    """The user whose jobs are to be shown; None is everybody."""
    if name is None:
        return None
    uid = os.geteuid() if name == "me" else user_id(name)
    if uid is None:
        fail("top", f"there is no user {name!r} here: --user takes a name, a number, or me")
    return uid


@click.command()
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option("--node", help="This node instead of the one we are on.")
@click.option(
    "--cluster", is_flag=True, help="All nodes whose qgpud runs on this machine (a sandbox)."
)
@click.option("-u", "--user", metavar="NAME", help="Jobs of this user alone; me: your own.")
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
    user: str | None,
    once: bool,
    interval: float,
    as_json: bool,
    as_parsable: bool,
) -> None:
    """Show cards and the jobs on them, once a second.

    Keys: q ends it; n, c, m, t, j and u sort by node and card, use of the card, memory, running
    time, job and user.
    """
    shown = Shown(_uid_of(user))
    once = once or as_json or as_parsable or os.environ.get("TERM", "dumb") == "dumb"
    try:
        loaded = load_config(config)
        if not once and sys.stdout.isatty():
            watch(loaded, node, cluster, interval, shown)
            return
        states, notes = look(loaded, node, cluster)
    except ConfigError as error:
        fail("top", str(error))
    except KeyboardInterrupt:
        return
    shown.history.note(states)
    rows = [view.cells_of(row, shown.history) for row in view.rows_of(states, shown)]
    form = form_of(as_json, as_parsable)
    show_columns(view.as_json(states, notes, shown), view.columns_of(states), rows, form)
    if form != "json":
        for note in notes:
            say("top", note)
    sys.exit(0 if states else 1)
