"""`qgpu plan`: what a request would become, without submitting it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from cli.setup.host import find_slurm_conf
from gres.config.hostlist import expand
from gres.config.levels import LONG_RELEASE, plan_card
from gres.config.sentences import shown
from gres.config.site import Config, ConfigError, NodeGroup, load_config
from gres.grant.tag import Tag
from gres.paths import PATHS
from gres.request.tables import HostDefault, tables_of
from gres.units import MIB, UnitError, parse_mib
from slurm_plugin.render import host_default
from slurm_plugin.site.conf import parse
from slurm_plugin.site.sources import Disk
from slurm_plugin.submission import (
    Decision,
    Exclusive,
    JobSubmit,
    LuaMissingError,
    RequestError,
    Submission,
)

DEFAULT_CONFIG = PATHS.config_file
MAX_OPTION_BYTES = 32  # of an option of the SPANK plugin; slurmctld does not read a longer one


@dataclass(frozen=True)
class Plan:
    """An accepted request in full; `nodes` are bracket lists of where it could run."""

    decision: Decision
    gres: str
    field: str
    nodes: tuple[str, ...]
    node_count: int
    class_note: str = ""
    releases: tuple[tuple[str, str], ...] = ()  # idle_release and online_delay of these nodes

    def as_dict(self) -> dict[str, Any]:
        """The plan for --json; memory also in bytes."""
        tag = self.decision.tag
        shared = tag is not None and not tag.whole
        return {
            "accepted": True,
            "gres": self.gres,
            "tag": str(tag) if tag else None,
            "tag_field": self.field if tag else None,
            "class": tag.job_class if tag else None,
            "share_percent": tag.share if tag and shared else None,
            "mem_mib": tag.mem if tag and shared else None,
            "mem_bytes": tag.mem * MIB if tag and shared else None,
            "shards": self.decision.shards or None,
            "cards_per_node": tag.cards if tag and shared else None,
            "reclaimable": tag.host is not None if tag and shared else None,
            "host_memory": asdict(self.decision.host) if self.decision.host else None,
            "tres_per_task": self.decision.tres_per_task,
            "tasks_per_node": self.decision.tasks_per_node or None,
            "whole_cards": self.decision.cards or None,
            "model": self.decision.model,
            "nodes": list(self.nodes),
            "node_count": self.node_count,
            "idle_release": [value for value, _ in self.releases] if shared else None,
        }


def _fits(group: NodeGroup, decision: Decision, config: Config) -> bool:
    """Whether an empty node of this group could take the request."""
    cards = max(decision.cards, decision.tag.cards if decision.tag else 0)
    if decision.model not in (None, group.model) or cards > group.count:
        return False
    mem = decision.tag.mem if decision.tag else 0
    return mem <= config.models[group.model].usable


def make_plan(job: Submission, config: Config, memory: HostDefault | None = None) -> Plan:
    """Decide a submission and find its nodes. Raises RequestError with the sentence for the user,
    LuaMissingError.

    `memory`: the host memory of a job that asks for none.
    """
    tables = tables_of(config)
    decision = JobSubmit(config, memory=memory).decide(job)
    groups = [group for group in config.nodes if _fits(group, decision, config)]
    count = sum(len(expand(group.names)) for group in groups)
    gres = job.gres or "" if decision.gres is None else decision.gres
    note = ""
    if job.qos is not None and job.qos.lower() not in tables.qos:
        note = (
            f" (by default: qgpu.yaml maps no QOS {job.qos!r}; whether Slurm has it is not known"
            " here)"
        )
    names = tuple(group.names for group in groups)
    return Plan(decision, gres, tables.tag_field, names, count, note, _releases(config, groups))


def _releases(config: Config, groups: Iterable[NodeGroup]) -> tuple[tuple[str, str], ...]:
    """The values on the cards of each group's first node."""
    nodes = [config.node(expand(group.names)[0]) for group in groups]
    plans = [plan_card(config, node, card.index, "") for node in nodes for card in node.cards]
    return tuple(sorted({(str(p.idle_release), str(p.online_delay)) for p in plans}))


def _release_text(release: str, delay: str) -> str:
    """When offline comes after online's work, with this value and with auto."""
    if release == "auto":
        return (
            f"auto: after online's work offline comes at once if it leaves the card within {delay},"
            f" else after {LONG_RELEASE}"
        )
    return (
        f"{release}: offline comes so long after online's work; with auto it comes at once if it"
        f" leaves the card within {delay}"
    )


def _cards(count: int) -> str:
    return "one card's" if count == 1 else f"each of {count} cards'"


def _unbooked(tag: Tag) -> str:
    return "" if tag.host is None else "; no memory, which may be taken back"


def _host_rows(found: Decision, tag: Tag) -> list[tuple[str, str]]:
    """Where the card's memory goes when it is taken back."""
    if tag.host is None:
        return []
    if found.host is None:
        return [("host memory", "all of the node, by --mem=0 or without a default in slurm.conf")]
    host, what = found.host, "CPU" if found.host.per == "cpu" else "node"
    text = f"{host.mib} MiB per {what} in place of {host.own}, as {tag.host} MiB more must fit"
    return [("host memory", text)]


def _rows(plan: Plan) -> list[tuple[str, str]]:
    tag = plan.decision.tag
    found = plan.decision
    rows = [("Slurm is asked for", plan.gres or "(nothing)")]
    if found.tres_per_task:
        rows.append(("for each task", f"{found.tres_per_task}, one task for each card"))
        rows.append(("tasks", f"{found.tasks_per_node} per node, {found.tasks} in all"))
    if tag is None:
        return [*rows, ("qgpu", "has no part in this request")]
    if tag.whole:
        rows.append(("cards", "whole, without sharing"))
    else:
        rows += [
            ("class", f"{tag.job_class}{plan.class_note}"),
            ("share", f"{tag.share} % of {_cards(tag.cards)} compute"),
            (
                "memory cap",
                f"{tag.mem} MiB ({tag.mem * MIB} bytes) of {'one' if tag.cards == 1 else 'each'}"
                " card",
            ),
            ("reserved", f"{plan.decision.shards} of the card's 100 shards{_unbooked(tag)}"),
            *_host_rows(plan.decision, tag),
            *(("idle_release", _release_text(*each)) for each in plan.releases),
        ]
    names = ",".join(plan.nodes)
    nodes = (
        f"{names} ({plan.node_count} node{'s' if plan.node_count != 1 else ''})"
        if names
        else "none"
    )
    return [
        *rows,
        ("card model", plan.decision.model or "any"),
        ("tag", f"{tag} (in {plan.field})"),
        ("could run on", nodes),
    ]


def _print(plan: Plan) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(plan):
        table.add_row(name, value)
    Console(highlight=False).print(table)


def read_config(path: str) -> Config:
    """The configuration, or an error for the command line."""
    try:
        return load_config(Path(path))
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _check_length(option: str, value: str | None, example: str) -> None:
    if value and len(value.encode("utf-8", "surrogateescape")) > MAX_OPTION_BYTES:
        raise click.UsageError(
            f"{option}={shown(value)} has more than {MAX_OPTION_BYTES} bytes: write for example"
            f" {option}={example}"
        )


def _mib(option: str, value: str | None) -> int | None:
    """MiB of an amount as sbatch takes it; a bare number counts MiB."""
    try:
        return None if value is None else parse_mib(value, up=True)
    except UnitError as error:
        raise click.UsageError(f"{option}: {error}") from None


def _default_memory(config: Config) -> HostDefault:
    """What slurm.conf of this host gives a job that asks for no memory, if there is one."""
    path = find_slurm_conf("/", os.environ)
    return host_default(parse(path, Disk(), config.slurm.version).text) if path else HostDefault()


@click.command()
@click.option(
    "--gres",
    default=None,
    help="What --gres of sbatch would say, for example qgpu:30,vram:12G.",
)
@click.option("--vram", default=None, help="Memory on each card, as the option of sbatch.")
@click.option("--qgpu-cards", default=None, help="Cards of each node, as the option of sbatch.")
@click.option(
    "--tres-per-task",
    default=None,
    help="The native spelling of several cards, for example gres/qgpu:30.",
)
@click.option("-N", "--nodes", type=click.IntRange(1), default=None, help="Nodes of the job.")
@click.option("-n", "--ntasks", type=click.IntRange(1), default=None, help="Tasks of the job.")
@click.option("--ntasks-per-node", type=click.IntRange(1), default=None, help="Tasks on each node.")
@click.option(
    "-c", "--cpus-per-task", type=click.IntRange(1), default=None, help="CPUs of each task."
)
@click.option("--mem", default=None, help="Host memory of each node, as the option of sbatch.")
@click.option("--mem-per-cpu", default=None, help="Host memory of each CPU.")
@click.option("--qos", default=None, help="The job's QOS, which decides the class.")
@click.option(
    "--partition", default=None, help="The job's partition; by default one that is managed."
)
@click.option(
    "--exclusive",
    is_flag=False,
    flag_value="node",
    type=click.Choice(get_args(Exclusive)),
    help="As the option of sbatch; alone it means the node.",
)
@click.option("--gres-flags", default=None, help="As the option of sbatch.")
@click.option("--comment", default=None, help="The job's own comment.")
@click.option(
    "--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    gres: str | None,
    vram: str | None,
    qgpu_cards: str | None,
    tres_per_task: str | None,
    nodes: int | None,
    ntasks: int | None,
    ntasks_per_node: int | None,
    cpus_per_task: int | None,
    mem: str | None,
    mem_per_cpu: str | None,
    qos: str | None,
    partition: str | None,
    exclusive: Exclusive | None,
    gres_flags: str | None,
    comment: str | None,
    config_path: str,
    as_json: bool,
) -> None:
    """Show what a request becomes: rewrite, reservation, memory, class, and the nodes it could ever
    run on.

    Nothing is submitted. Exits 1 with the sentence that sbatch would print where the request is
    refused.
    """
    if not gres and not tres_per_task and not vram:
        raise click.UsageError("say what the job asks for, for example --gres=qgpu:30")
    _check_length("--vram", vram, "12G")
    _check_length("--qgpu-cards", qgpu_cards, "2")
    config = read_config(config_path)
    if partition is None:
        partition = next(iter(tables_of(config).partitions), None)
    try:
        job = Submission(
            gres=gres,
            qos=qos,
            partition=partition,
            exclusive=exclusive,
            gres_flags=gres_flags,
            comment=comment,
            tres_per_task=tres_per_task,
            vram=vram,
            cards=qgpu_cards,
            nodes=nodes,
            tasks=ntasks,
            tasks_per_node=ntasks_per_node,
            cpus_per_task=cpus_per_task,
            mem=_mib("--mem", mem),
            mem_per_cpu=_mib("--mem-per-cpu", mem_per_cpu),
        )
        found = make_plan(job, config, _default_memory(config))
    except RequestError as error:
        if as_json:
            click.echo(json.dumps({"accepted": False, "rule": error.key, "message": str(error)}))
            raise click.exceptions.Exit(1) from None
        raise click.ClickException(str(error)) from None
    except LuaMissingError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        _print(found)
