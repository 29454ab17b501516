"""`qgpu simulate`: what the arbiter would do to a trace of tenants, without processes and without a
card.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from gres.units import UnitError, parse_duration
from simulator.whatif.simtrace import Trace, TraceError, load_trace
from simulator.whatif.simulate import Result, TenantResult, simulate

BLOCKS = " ▁▂▃▄▅▆▇█"
STATES = "away, idle, run, wait-share, wait-preempted, wake"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _error(tenant: TenantResult) -> str:
    return "-" if tenant.error_points is None else f"{tenant.error_points:+.2f}"


def profile_line(profile: tuple[float, ...]) -> str:
    """One character per part of the run: how much of the card the tenant had."""
    top = len(BLOCKS) - 1
    return "".join(
        BLOCKS[0 if part < 0.005 else max(1, min(top, round(part * top)))] for part in profile
    )


def _row(tenant: TenantResult) -> list[str]:
    return [
        tenant.card,
        tenant.name,
        tenant.job_class,
        tenant.policy,
        str(tenant.share),
        _number(tenant.got_percent, 2),
        _error(tenant),
        _number(tenant.busy_s, 2),
        _number(tenant.waited_share_s, 2),
        _number(tenant.waited_preempted_s, 2),
        str(tenant.preemptions),
        _number(tenant.p50_ms, 2),
        _number(tenant.p99_ms, 2),
    ]


HEAD = (
    *(
        "card",
        "tenant",
        "class",
        "policy",
        "asked %",
        "got %",
        "error",
        "busy s",
        "waited s",
        "preempted s",
    ),
    *("times", "p50 ms", "p99 ms"),
)


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(HEAD):
        table.add_column(name, justify="left" if i < 4 else "right", no_wrap=True)
    for tenant in result.tenants:
        table.add_row(*_row(tenant))
    return table


def _timeline(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    for tenant in result.tenants:
        table.add_row(tenant.card, tenant.name, f"|{profile_line(tenant.profile)}|")
    return table


def _print(result: Result, width: int | None = None) -> None:
    console = Console(highlight=False, width=width)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(_table(result))
    console.print(f"\nbusy from 0 to {result.duration_s:g} s (a full block is the whole card)")
    console.print(_timeline(result))
    for card in result.cards:
        console.print(
            f"{card.name}: busy {card.busy_percent:.1f} %, {card.switches_per_s:.0f} context"
            f" switches/s ({card.switch_lost_percent:.2f} % lost), {card.decisions_per_s:.0f}"
            " decisions/s"
        )
    console.print(
        "All figures are simulated: a model of tenants and card, the arbiter's own decision."
    )


def _changed(trace: Trace, seed: int | None, duration: str | None) -> Trace:
    """The trace with the options of the command line."""
    changes: dict[str, object] = {}
    if seed is not None:
        changes["seed"] = seed
    if duration is not None:
        try:
            changes["duration"] = parse_duration(duration)
        except UnitError as error:
            raise click.ClickException(f"--duration: {error}") from None
        if not 10**6 <= parse_duration(duration).ns <= 1000 * 3600 * 10**9:
            raise click.ClickException(f"--duration: '{duration}' is not between 1ms and 1000h")
    return trace.model_copy(update=changes)


@click.command("simulate")
@click.argument("trace_file", type=click.Path(path_type=Path), metavar="TRACE")
@click.option(
    "--seed", type=click.IntRange(0, 2**32), default=None, help="Instead of the trace's own."
)
@click.option("--duration", default=None, help="Instead of the trace's own, for example 1h.")
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help=f"Write each change of state as CSV (t_ns,card,tenant,state; states: {STATES}).",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=None, help="Threads; cards are shared out."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate_command(
    trace_file: Path,
    seed: int | None,
    duration: str | None,
    timeline: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Run a TRACE of cards and tenants (YAML or JSON) through the arbiter's own decision.

    No process is started for a tenant and no card is needed; an hour of several cards takes
    seconds. The same trace and seed give the same result. Exits 1 with a sentence where the trace
    cannot be simulated.
    """
    try:
        trace = _changed(load_trace(trace_file), seed, duration)
        result = simulate(trace, timeline=timeline, jobs=jobs)
    except TraceError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result)))
    else:
        _print(result)
