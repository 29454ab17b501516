"""`qgpu card`: settings of the cards of this node, and changing them while jobs run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from cli.daemon import config_option, find_daemon, node_option
from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import CardInfo, NvmlError
from gres.config.levels import CardPlanError, parse_words
from gres.config.mig import Capability, MigError, files_of, read_minors
from gres.units import format_mib

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")

ISOLATION_LATER = (
    "isolation holds for jobs that start from now on; running jobs keep their gate and their cap"
)


@click.group()
def card() -> None:
    """Show and change how the cards of this node are shared."""


def _cards(config_path: str, node: str | None) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", find_daemon(config_path, node).ask(op="cards")["cards"])


def _sharing(settings: dict[str, str]) -> str:
    parts = []
    for job_class in ("online", "offline"):
        free = settings[f"isolation.{job_class}"] == "none"
        parts.append(f"{job_class} {'not isolated' if free else settings[f'policy.{job_class}']}")
    return ", ".join(parts)


def instance_lines(cards: Sequence[CardInfo], minors: Mapping[int, Capability]) -> list[str]:
    """The MIG instances as a list for `nodes[].instances`, ordered as gres.conf then has them.
    Raises MigError.
    """
    found = sorted(
        (card for card in cards if card.instance is not None), key=lambda card: card.place
    )
    return [
        f'  - "{files_of(minors, card.place)}"  # {card.name}, {format_mib(card.mem_total >> 20)},'
        f" {card.uuid}"
        for card in found
    ]


@card.command()
@click.option(
    "--nvml", "library", default="auto", show_default=True, help="Path of libnvidia-ml.so.1."
)
def instances(library: str) -> None:
    """Print the MIG instances of this machine as `instances` of a node in qgpu.yaml."""
    try:
        nvml = PynvmlNvml(library)
        cards = nvml.cards()
        nvml.close()
        lines = instance_lines(cards, read_minors() if any(card.instance for card in cards) else {})
    except (NvmlError, MigError) as error:
        raise click.ClickException(str(error)) from None
    if not lines:
        raise click.ClickException(
            "this machine has no MIG instance; nvidia-smi mig -lgi lists them"
        )
    click.echo("\n".join(["instances:", *lines]))


@card.command("list")
@config_option
@node_option
@json_option
def list_(config_path: str, node: str | None, as_json: bool) -> None:
    """One line per card: what is granted, and how it is shared."""
    cards = _cards(config_path, node)
    if as_json:
        click.echo(json.dumps(cards, indent=1))
        return
    for one in cards:
        left = "whole card given" if one["whole"] else f"{format_mib(one['mem_left'])} left"
        changed = " (changed)" if "qgpu card set" in one["sources"].values() else ""
        click.echo(
            f"{one['index']}  {one['uuid']}  {one['model']}  {format_mib(one['mem_usable'])},"
            f" {left}, {one['grants']} grant(s); {_sharing(one['settings'])}{changed}"
        )


def hardware_words(told: dict[str, Any]) -> str:
    """What holds for one card, and what each of its tenants came to, in words."""
    if not told["enabled"]:
        return f"off because {told['why']}"
    if not told["tenants"]:
        return "on; no tenant has been tried yet"
    rows = [_tenant_words(row) for row in told["tenants"]]
    if told.get("tenants_left"):
        rows.append(f"{told['tenants_left']} more tenant(s) are not listed")
    return "on; " + "; ".join(rows)


def _tenant_words(row: dict[str, Any]) -> str:
    how = f"by {row['method']} through the {row['actor']}"
    words = {
        "none": "has no channel group yet",
        "ready": f"ready {how}",
        "stopped": f"stopped {how}",
        "failed": f"gating alone because {row['why'] or 'the driver refused'}",
    }
    return f"job {row['job']} {words.get(row['state'], row['state'])}, {row['stops']} stop(s)"


def _show(one: dict[str, Any]) -> None:
    click.echo(f"card {one['index']}  {one['uuid']}  {one['name']}")
    for key, value in one["settings"].items():
        source = one["sources"][key]
        if source == "qgpu card set":
            source += ", saved" if key in one["saved"] else ", until qgpud restarts"
        click.echo(f"  {key:<18} {value:<12} {source}")
    if one.get("hardware"):
        click.echo(f"  hardware preemption: {hardware_words(one['hardware'])}")


@card.command()
@click.argument("card_name", metavar="CARD")
@config_option
@node_option
@json_option
def show(card_name: str, config_path: str, node: str | None, as_json: bool) -> None:
    """All settings of CARD (index or UUID), and where each comes from."""
    cards = _cards(config_path, node)
    found = [one for one in cards if card_name in (str(one["index"]), one["uuid"])]
    if not found:
        known = ", ".join(f"{one['index']} ({one['uuid']})" for one in cards) or "none that answers"
        raise click.ClickException(f"'{card_name}' is no card of this node; it has {known}")
    if as_json:
        click.echo(json.dumps(found[0], indent=1))
    else:
        _show(found[0])


def _changed(answer: dict[str, Any], what: str) -> None:
    one = answer["card"]
    if not answer["changed"]:
        click.echo(f"card {one['index']}: nothing changed, {what} already")
    for row in answer["changed"]:
        click.echo(f"card {one['index']}: {row['key']} was {row['before']}, is {row['after']}")
    if any(row["key"].startswith("isolation") for row in answer["changed"]):
        click.echo(ISOLATION_LATER)
    if not answer["reached"]:
        click.echo("qgpu-arbiter is not there; it gets this when it starts", err=True)


@card.command("set")
@click.argument("card_name", metavar="CARD")
@click.argument("words", metavar="KEY=VALUE...", nargs=-1)
@click.option("--save", is_flag=True, help="Keep it over restarts of qgpud, until it is reset.")
@config_option
@node_option
def set_(
    card_name: str, words: tuple[str, ...], save: bool, config_path: str, node: str | None
) -> None:
    """Change settings of CARD at once, for running jobs as well. Root only.

    Keys: slice, window, idle_release (auto, or a time), online_delay, online_share (off, or for
    example 5%), hardware, policy, isolation; the last two with .online or .offline for one class.
    Isolation holds for jobs that start after the change; running jobs keep their gate and their
    cap. Without --save a change counts until qgpud restarts, also through restarts of the
    arbiter.
    """
    try:
        values = parse_words(list(words))
    except CardPlanError as error:
        raise click.ClickException(str(error)) from None
    daemon = find_daemon(config_path, node)
    answer = daemon.ask(op="card-set", card=card_name, values=values, save=save)
    _changed(answer, "the values are so")


@card.command()
@click.argument("card_name", metavar="CARD")
@config_option
@node_option
def reset(card_name: str, config_path: str, node: str | None) -> None:
    """Forget what was set on CARD: qgpu.yaml holds again. Root only."""
    answer = find_daemon(config_path, node).ask(op="card-reset", card=card_name)
    _changed(answer, "it follows qgpu.yaml")
