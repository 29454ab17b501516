"""What all reading commands share: rows as a table, as lines for scripts, as JSON; names of users;
ways to fail.
"""

from __future__ import annotations

import functools
import json
import pwd
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click


def aligned(lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns under each other: the first `left` are words, the others numbers."""
    if not lines:
        return []
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return [
        "  ".join(
            text.ljust(widths[at]) if at < left else text.rjust(widths[at])
            for at, text in enumerate(line)
        ).rstrip()
        for line in lines
    ]


def parsable(lines: Sequence[Sequence[str]]) -> list[str]:
    """Fields separated by |; one within a field becomes a blank, so that no field moves."""
    return ["|".join(text.replace("|", " ").replace("\n", " ") for text in line) for line in lines]


def show(body: Mapping[str, object], lines: Sequence[Sequence[str]], form: str, left: int) -> None:
    """Print a body in the asked form (json, parsable or table)."""
    if form == "json":
        click.echo(json.dumps({"version": 1, **body}, indent=1))
    elif form == "parsable":
        click.echo("\n".join(parsable(lines)))
    else:
        click.echo("\n".join(aligned(lines, left)))


def form_of(as_json: bool, as_parsable: bool) -> str:
    """The form that two flags ask for."""
    return "json" if as_json else "parsable" if as_parsable else "table"


@functools.lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_id(name: str) -> int | None:
    """Uid of a name or a number, None if there is no such user."""
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def fail(command: str, sentence: str) -> NoReturn:
    """Print the error and exit with status 2."""
    click.echo(f"qgpu {command}: {sentence}", err=True)
    raise SystemExit(2)
