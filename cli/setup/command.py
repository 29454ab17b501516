"""`qgpu setup`: write this host's fragments, and list the manual steps."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from cli.setup import initial, show
from cli.setup.host import Here, look
from cli.setup.place import Done, PlaceError
from cli.setup.unread import unread
from cli.setup.work import Work, remove
from cli.site.plan import DEFAULT_CONFIG
from gres.config.site import Config, ConfigError, load_config
from gres.paths import PATHS
from gres.trusted import distrust
from slurm_plugin.site.difference import ROLES, Difference, Role, setup_command
from slurm_plugin.site.found import Site
from slurm_plugin.site.settings import Restart


def read_config(here: Here, path: str) -> Config:
    """qgpu.yaml of the host. Raises click.ClickException."""
    real = here.real(path)
    doubt = distrust(real) if os.geteuid() == 0 else None
    if doubt:
        raise click.ClickException(f"{doubt}, so others could change what root runs; {doubt.todo}")
    try:
        return load_config(real)
    except ConfigError as error:
        text = str(error).replace(str(real), path)
        hint = "" if real.exists() else "; qgpu setup --init writes a first one"
        raise click.ClickException(text + hint) from None


@click.command()
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES),
    multiple=True,
    help="What this host is; may be repeated.",
)
@click.option(
    "--init", "first", is_flag=True, help="Write a first qgpu.yaml from what is seen here."
)
@click.option(
    "--remove", "away", is_flag=True, help="Take the fragments away, once Slurm does not read them."
)
@click.option("--dry-run", "dry", is_flag=True, help="Say what would be written; write nothing.")
@click.option(
    "--replace-edited",
    "replace",
    is_flag=True,
    help="Replace fragments that were changed by hand; they are kept as NAME.site-edited.",
)
@click.option(
    "--configless/--no-configless",
    default=None,
    help="Lay fragments out for configless Slurm; by default as slurm.conf says.",
)
@click.option(
    "--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG"
)
@click.option("--slurm-conf", default=None, help="The main file, where it is not in a usual place.")
@click.option(
    "--node", default=None, help="This host's name in slurm.conf; by default its short host name."
)
@click.option(
    "--lua-dir", default=PATHS.lua_dir, show_default=True, help="Where qgpu's own Lua modules lie."
)
@click.option(
    "--root", default="/", show_default=True, help="A tree to set up instead of this machine."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@initial.options
def setup(
    roles: tuple[Role, ...],
    first: bool,
    away: bool,
    dry: bool,
    replace: bool,
    configless: bool | None,
    config_path: str,
    slurm_conf: str | None,
    node: str | None,
    lua_dir: str,
    root: str,
    as_json: bool,
    nodes: str | None,
    cards: int | None,
    model: str | None,
    memory: str | None,
) -> None:
    """Write qgpu's fragments of Slurm's configuration, and list the lines to write by hand.

    Only files of qgpu's own are written. The site's files are read, and what they lack is listed:
    one include line each, and what differs. Run it again after each change of qgpu.yaml or
    slurm.conf.

    \b
    qgpu setup --init                       a first /etc/qgpu/qgpu.yaml
    qgpu setup --role controller --dry-run
    qgpu setup --role node                  on each node
    Exit status: 0 all is in place, 1 something is left to do, 2 wrong usage.
    """
    if not (roles or first or away):
        raise click.UsageError(
            "say what this host is: --role controller, --role node or --role login"
        )
    if away and (roles or first):
        raise click.UsageError("--remove stands alone")
    root = str(Path(root).absolute())
    if os.geteuid() != 0 and root == "/" and not dry:
        raise click.ClickException(
            "only root can write Slurm's configuration; --dry-run shows what it would be"
        )
    try:
        here = look(root, slurm_conf, node)
        if away:
            _finish(here, (), remove(here, dry), None, dry, as_json)
        if first:
            initial.write(here, config_path, dry, initial.Given(nodes, cards, model, memory))
        if roles:
            if not here.found and "controller" in roles:
                raise click.ClickException(
                    f"there is no {here.places.slurm_conf}: install Slurm first, or name its file"
                    " by --slurm-conf"
                )
            config = read_config(here, config_path)
            again = setup_command(roles, config_path, node, slurm_conf)
            work = Work(here, config, roles, configless, lua_dir, dry, again)
            _set_up(work, config_path, replace, as_json)
    except PlaceError as error:
        raise click.ClickException(str(error)) from None


def _set_up(work: Work, config_path: str, replace: bool, as_json: bool) -> None:
    done = work.place(replace)
    site = work.site()
    found = work.left(site, config_path)
    left = show.Left(found, _restarts(work, found, done, site))
    _finish(work.here, work.roles, done, left, work.dry, as_json)


def _restarts(work: Work, found: list[Difference], done: list[Done], site: Site) -> list[Restart]:
    """What is to be restarted for lines that are missing, and for files that changed since."""
    if work.roles == ("login",):
        return []  # no daemon of Slurm reads files there
    here = work.here
    of_files = show.of_written(done, site)
    if here.root == "/" and not work.dry:
        of_files = unread(here, site)  # knows as well what was written before
    return show.restarts(found, of_files)


def _finish(
    here: Here,
    roles: tuple[Role, ...],
    done: list[Done],
    left: show.Left | None,
    dry: bool,
    as_json: bool,
) -> None:
    if as_json:
        click.echo(json.dumps(show.document(here, roles, done, left, dry), indent=1))
    else:
        click.echo(show.text(here, done, left, dry))
    sys.exit(1 if show.remains(done, left) else 0)
