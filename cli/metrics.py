"""`qgpu metrics`: what a scrape of this node gets, and a dashboard and alert rules made for these
metrics.
"""

from __future__ import annotations

import time
from importlib.resources import files

import click
import jinja2

from cli.live import states as live
from cli.output import fail, user_name
from cli.report.command import DEFAULT_CONFIG
from enforcer.reporting.metrics import NodeCollector, Publisher
from enforcer.reporting.state import StateError
from gres.config.site import Config, ConfigError, load_config

TEMPLATES = {"dashboard": "grafana/dashboard.json.j2", "alerts": "grafana/alerts.yml.j2"}


def render(what: str, config: Config) -> str:
    """The dashboard (JSON) or the alert rules (YAML) of this cluster."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    text = files("configs").joinpath(TEMPLATES[what]).read_text(encoding="utf-8")
    return environment.from_string(text).render(cluster=config.cluster, lease=config.enforcer.lease)


def scrape(config: Config, node: str | None) -> str:
    """The metrics of nodes here, from their live state. Counters per class start at zero: qgpud
    keeps them.
    """
    parts = []
    for name in live.nodes_here(config, node, cluster=False):
        state = live.read_node(config, name)
        collector = NodeCollector(lambda s=state: s, True, time.time, user_name)  # type: ignore[misc]
        parts.append(Publisher(collector).text().decode())
    return "".join(parts)


@click.command()
@click.argument("what", type=click.Choice(["show", *TEMPLATES]), default="show")
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option("--node", help="With show: this node instead of the one we are on.")
def metrics(what: str, config: str, node: str | None) -> None:
    """Print this node's metrics per job (show), a Grafana dashboard, or Prometheus alert rules."""
    try:
        loaded = load_config(config)
        click.echo(scrape(loaded, node) if what == "show" else render(what, loaded), nl=False)
    except (ConfigError, StateError) as error:
        fail("metrics", str(error))
