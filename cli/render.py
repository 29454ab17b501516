"""`qgpu render`: fragments of Slurm's configuration from qgpu.yaml."""

from __future__ import annotations

import click

from cli.plan import DEFAULT_CONFIG, read_config
from gres.paths import PATHS
from slurm_plugin.render import ETC_DIR, NAMES
from slurm_plugin.render import render as render_text


@click.command()
@click.argument("file", type=click.Choice(NAMES))
@click.option("--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG")
@click.option(
    "--etc-dir", default=ETC_DIR, show_default=True, help="Where prolog, epilog and qgpu_tables.lua lie."
)
@click.option("--lua-dir", default=PATHS.lua_dir, show_default=True, help="Where qgpu's own Lua modules lie.")
def render(file: str, config_path: str, etc_dir: str, lua_dir: str) -> None:
    """Print one fragment of Slurm's configuration to standard output; nothing is changed."""
    config = read_config(config_path)
    click.echo(render_text(file, config, etc_dir=etc_dir, lua_dir=lua_dir), nl=False)
