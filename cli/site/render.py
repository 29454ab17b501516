"""`qgpu render`: fragments of Slurm's configuration from qgpu.yaml."""

from __future__ import annotations

from pathlib import Path

import click

from cli.setup.place import PlaceError, folder
from cli.site.plan import DEFAULT_CONFIG, read_config
from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin.fragments import fragments
from slurm_plugin.render import ETC_DIR, NAMES
from slurm_plugin.render import render as render_text
from slurm_plugin.site.found import Places, Site, without_fragments
from slurm_plugin.site.sources import Disk


def _site(slurm_conf: str, etc_dir: str, config: Config) -> Site:
    """A site's own files, without our fragments in them."""
    path = str(Path(slurm_conf).absolute())
    if not Path(path).is_file():
        raise click.ClickException(f"--slurm-conf {slurm_conf}: there is no such file")
    return without_fragments(Places(path, etc_dir), Disk(), config.slurm.version)


@click.command()
@click.argument("file", type=click.Choice(NAMES), required=False)
@click.option(
    "--all", "every", is_flag=True, help="All fragments, into the directory that --output names."
)
@click.option(
    "--output", type=click.Path(file_okay=False), help="With --all: where they are written."
)
@click.option(
    "--slurm-conf",
    help="The site's slurm.conf: what it sets is left out, since Slurm takes no key twice.",
)
@click.option(
    "--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG"
)
@click.option(
    "--etc-dir",
    default=ETC_DIR,
    show_default=True,
    help="Where prolog, epilog and qgpu_tables.lua lie.",
)
@click.option(
    "--lua-dir", default=PATHS.lua_dir, show_default=True, help="Where qgpu's own Lua modules lie."
)
def render(
    file: str | None,
    every: bool,
    output: str | None,
    slurm_conf: str | None,
    config_path: str,
    etc_dir: str,
    lua_dir: str,
) -> None:
    """Print one fragment of Slurm's configuration, or write all of them into a directory.

    \b
    qgpu render slurm.conf
    qgpu render --all --output files/qgpu --slurm-conf files/slurm.conf

    The second form is for configuration management.
    """
    if every == (file is not None) or every != (output is not None):
        raise click.UsageError("name one file, or write --all --output DIR")
    config = read_config(config_path)
    site = _site(slurm_conf, etc_dir, config) if slurm_conf else None
    if file is not None:
        slurm, cgroup = (site.slurm, site.cgroup) if site else (None, None)
        text = render_text(
            file, config, slurm_site=slurm, cgroup_site=cgroup, etc_dir=etc_dir, lua_dir=lua_dir
        )
        click.echo(text, nl=False)
        return
    _write_all(config, Path(str(output)), site, etc_dir, lua_dir)


def _write_all(config: Config, output: Path, site: Site | None, etc_dir: str, lua_dir: str) -> None:
    files = fragments(config, NAMES, site, lua_dir, etc_dir)
    try:
        with folder(output, str(output), dry=False) as ours:
            done = [ours.put(file, replace_edited=False) for file in files]
    except PlaceError as error:
        raise click.ClickException(str(error)) from None
    for entry in done:
        click.echo(f"{entry.what:<8}  {entry.path}")
    refused = [entry for entry in done if entry.what == "refused"]
    if refused:
        raise click.ClickException(f"{refused[0].path}: {refused[0].why}")
