"""Where this node's qgpud listens, for the commands that talk to it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import click

from cli.site.plan import DEFAULT_CONFIG
from enforcer.daemon.requests.protocol import AskError, ask
from gres.config.site import Config, ConfigError, load_config

config_option = click.option(
    "--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG"
)
node_option = click.option(
    "--node", help="Name of this node in Slurm. Default: the host's short name."
)


def node_name(given: str | None, config: Config) -> str:
    """The node's name as qgpud takes it; where only one node is configured, that one."""
    name = given or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    names = config.node_names()
    return names[0] if given is None and name not in names and len(names) == 1 else name


def configured_node(given: str | None, config: Config) -> str:
    """The same; raises ConfigError if none was given and this machine is not a node."""
    name, names = node_name(given, config), config.node_names()
    if given is None and name not in names:
        raise ConfigError(
            f"this machine ({name}) is not a node of {config.cluster}: name one with --node, for"
            f" example --node {names[0]}"
        )
    return name


@dataclass(frozen=True)
class Daemon:
    """A node's qgpud."""

    run_dir: str

    def ask(self, **question: object) -> dict[str, object]:
        """Its answer; a refusal ends the command with its sentence."""
        try:
            answer, _ = ask(self.run_dir, dict(question))
        except AskError as error:
            raise click.ClickException(str(error)) from None
        return answer


def find_daemon(config_path: str, node: str | None) -> Daemon:
    """The qgpud of this node by the configuration; a sentence where it cannot be read."""
    try:
        config = load_config(config_path, trusted=os.geteuid() == 0)
        return Daemon(config.node(configured_node(node, config)).run_dir)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
