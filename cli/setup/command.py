"""`qgpu setup`: write this host's fragments, and say what is left to do by hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from pathlib import Path

import click

from cli.doctor.host import distrust
from cli.plan import DEFAULT_CONFIG
from cli.setup import initial, show
from cli.setup.host import Here, look
from cli.setup.place import Done, PlaceError, folder, link, unlink
from gres.config import Config, ConfigError, load_config
from slurm_plugin.fragments import LINKED, NEEDED, fragments, names_for
from slurm_plugin.site.difference import ROLES, Role
from slurm_plugin.site.differences import differences
from slurm_plugin.site.found import FLAT, INCLUDED, Overlay, Site, read_site, without_fragments

SHIPPED = ("slurm.conf", "gres.conf", "cgroup.conf")


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


def link_target(here: Here, name: str) -> str:
    """What a link beside slurm.conf to one of our fragments holds: relative, so that it holds under another root."""
    return os.path.relpath(here.places.fragment(name), here.places.directory)


def _links(here: Here, names: Collection[str], flat: bool) -> list[tuple[str, str]]:
    """Name beside slurm.conf and target of each link."""
    if here.configless:
        return []
    found = [(name, link_target(here, name)) for name in LINKED if name in names]
    if flat:
        found += [(f"{FLAT}{name}", link_target(here, name)) for name in SHIPPED if name in names]
    return found


def place(here: Here, config: Config, names: list[str], flat: bool, dry: bool, replace: bool) -> list[Done]:
    """Write the fragments and links. Raises PlaceError."""
    bare = without_fragments(here.places, here.disk, config.slurm.version)
    files = fragments(config, names, bare, etc_dir=here.places.fragments)
    done: list[Done] = []
    with folder(here.real(here.places.fragments), here.places.fragments, dry) as ours:
        done += [ours.put(file, replace) for file in files]
    for name, target in _links(here, names, flat):
        path = f"{here.places.directory}/{name}"
        made = link(here.real(path), path, target, dry)
        done += [made] if made else []
    return done


def after(here: Here, config: Config, names: list[str], flat: bool) -> Site:
    """The site as it is once the fragments are written; a dry run has not written them."""
    bare = without_fragments(here.places, here.disk, config.slurm.version)
    overlay: dict[str, str | None] = {}
    for file in fragments(config, names, bare, etc_dir=here.places.fragments):
        overlay[here.places.fragment(file.name)] = file.text
        if flat and file.name in INCLUDED:
            overlay[here.places.flat(file.name)] = file.text
        beside = here.places.main(file.name)
        if file.name in LINKED and not here.configless and not here.real(beside).exists():
            overlay[beside] = file.text
    return read_site(here.places, Overlay(here.disk, overlay), config.slurm.version)


def remove(here: Here, dry: bool) -> list[Done]:
    """Take our fragments and links away, unless Slurm still reads them. Raises PlaceError."""
    site = read_site(here.places, here.disk, "23.02")
    read = [
        f"{site.places.main(n) if n != 'plugstack.conf' else site.plugstack.path}"
        for n in INCLUDED
        if site.includes(n)
    ]
    if read:
        raise PlaceError(
            f"Slurm would not start: take the include of qgpu's fragment out of {', '.join(read)}, restart slurmctld"
            " and slurmd, then run this again"
        )
    done: list[Done | None] = []
    if here.real(here.places.fragments).is_dir():
        with folder(here.real(here.places.fragments), here.places.fragments, dry) as ours:
            done += [ours.remove(name) for name in NEEDED]
    for name, target in _links(here, list(NEEDED), True):
        path = f"{here.places.directory}/{name}"
        done.append(unlink(here.real(path), path, target, dry))
    return [entry for entry in done if entry]


@click.command()
@click.option(
    "--role", "roles", type=click.Choice(ROLES), multiple=True, help="What this host is; may be repeated."
)
@click.option("--init", "first", is_flag=True, help="Write a first qgpu.yaml from what is seen here.")
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
@click.option("--config", "config_path", default=DEFAULT_CONFIG, show_default=True, envvar="QGPU_CONFIG")
@click.option("--slurm-conf", default=None, help="The main file, where it is not in a usual place.")
@click.option("--node", default=None, help="This host's name in slurm.conf; by default its short host name.")
@click.option("--root", default="/", show_default=True, help="A tree to set up instead of this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@initial.options
def setup(
    roles: tuple[Role, ...], first: bool, away: bool, dry: bool, replace: bool, configless: bool | None,
    config_path: str, slurm_conf: str | None, node: str | None, root: str, as_json: bool,
    nodes: str | None, cards: int | None, model: str | None, memory: str | None,
) -> None:  # fmt: skip
    """Write qgpu's fragments of Slurm's configuration, and say which lines are left to write by hand.

    Only files of qgpu's own are written. The site's files are read, and what they lack is said: one include
    line each, and what differs. Run it again after each change of qgpu.yaml or slurm.conf.

    \b
    qgpu setup --init                       a first /etc/qgpu/qgpu.yaml
    qgpu setup --role controller --dry-run
    qgpu setup --role node                  on each node
    Exit status: 0 all is in place, 1 something is left to do, 2 wrong usage.
    """
    if not (roles or first or away):
        raise click.UsageError("say what this host is: --role controller, --role node or --role login")
    if away and (roles or first):
        raise click.UsageError("--remove stands alone")
    root = str(Path(root).absolute())
    if os.geteuid() != 0 and root == "/" and not dry:
        raise click.ClickException(
            "only root can write Slurm's configuration; --dry-run shows what it would be"
        )
    here = look(root, slurm_conf, node)
    try:
        if away:
            _finish(here, (), remove(here, dry), None, dry, as_json)
        if first:
            initial.write(here, config_path, dry, initial.Given(nodes, cards, model, memory))
        if roles:
            _set_up(here, roles, config_path, configless, dry, replace, as_json)
    except PlaceError as error:
        raise click.ClickException(str(error)) from None


def _set_up(
    here: Here, roles: tuple[Role, ...], config_path: str, configless: bool | None, dry: bool, replace: bool,
    as_json: bool,
) -> None:  # fmt: skip
    config = read_config(here, config_path)
    bare = without_fragments(here.places, here.disk, config.slurm.version)
    flat = bare.configless if configless is None else configless
    names = names_for(config, roles, here.configless)
    done = place(here, config, names, flat, dry, replace)
    site = (
        after(here, config, names, flat) if dry else read_site(here.places, here.disk, config.slurm.version)
    )
    version = here.version if here.root == "/" else None
    found = differences(
        config, site, roles, node=here.node(config), slurm_version=version, flat=flat, yaml=config_path
    )
    _finish(here, roles, done, show.Left(found, show.restarts(found, done, site)), dry, as_json)


def _finish(
    here: Here, roles: tuple[Role, ...], done: list[Done], left: show.Left | None, dry: bool, as_json: bool
) -> None:
    if as_json:
        click.echo(json.dumps(show.document(here, roles, done, left, dry), indent=1))
    else:
        click.echo(show.text(here, done, left, dry))
    sys.exit(1 if show.remains(done, left) else 0)
