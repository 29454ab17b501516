"""The `qgpu` command. A subcommand is imported when it is used, so each needs only its own code."""

from __future__ import annotations

import importlib
import importlib.util

import click

from gres.version import VERSION

# Subcommand -> (module, attribute, one line for `qgpu --help`).
COMMANDS = {
    "metrics": (
        "cli.metrics",
        "metrics",
        "Metrics of this node, and rules and dashboard for them.",
    ),
    "collect": ("cli.report.collect", "collect", "Merge the nodes' usage ledgers into one."),
    "cards": ("cli.live.held", "cards", "This node's cards and how much of each is granted."),
    "jobs": ("cli.live.held", "jobs", "Which jobs hold cards here."),
    "top": ("cli.live.command", "top", "Cards and the jobs on them, live."),
    "card": ("cli.live.card", "card", "Show and change how cards are shared."),
    "job": ("cli.live.job", "job", "Change a running job on this node."),
    "demo": ("cli.demo.command", "demo", "Run the main job on a sandbox and check every promise."),
    "extend": ("cli.jobs.extend", "extend", "Give suspended offline jobs their time back."),
    "guard": (
        "cli.jobs.guard",
        "guard",
        "Hold jobs that slurmctld took without qgpu's job_submit.",
    ),
    "doctor": ("cli.doctor.command", "doctor", "Check this host, one line per thing."),
    "lint": (
        "cli.site.lint",
        "lint",
        "Check a site's configuration repository, without a cluster.",
    ),
    "plan": ("cli.site.plan", "plan", "Explain what a request would become."),
    "render": ("cli.site.render", "render", "Write Slurm's configuration from qgpu.yaml."),
    "report": ("cli.report.command", "report", "What jobs were granted and what they used."),
    "run": ("cli.run.command", "run", "Run a program with a share of a card, without Slurm."),
    "sandbox": ("cli.sandbox.command", "sandbox", "A private Slurm cluster with simulated cards."),
    "setup": ("cli.setup.command", "setup", "Write qgpu's part of Slurm's configuration here."),
    "simulate": (
        "cli.simulate",
        "simulate_command",
        "What the arbiter would do to a trace of tenants.",
    ),
}


def present(name: str) -> bool:
    """Whether the code of a subcommand is installed: sandbox and demo
    are in a source tree alone.
    """
    package = COMMANDS[name][0].rpartition(".")[0]
    return importlib.util.find_spec(package) is not None


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*filter(present, COMMANDS), *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS or not present(cmd_name):
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str() for name, command in self.commands.items()}
        rows = {name: text for name, (_, _, text) in COMMANDS.items() if present(name)} | own
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="qgpu", message="%(prog)s %(version)s")
def main() -> None:
    """Fractional NVIDIA GPUs under Slurm."""


@main.command("version")
def version_() -> None:
    """Print the version."""
    click.echo(f"qgpu {VERSION}")


if __name__ == "__main__":
    main(prog_name="qgpu")
