"""What all reading commands share: rows as a table, as lines for scripts, as CSV, as JSON; names of
users; ways to fail.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import pwd
import re
import select
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import click

from cli.columns import Column, table
from gres.printable import printable


def aligned(lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns under each other: the first `left` are words, the others numbers."""
    if not lines:
        return []
    header, *rows = lines
    columns = [Column(printable(name), left=at < left) for at, name in enumerate(header)]
    return table(columns, rows)


def room() -> int | None:
    """Places of a line on the terminal, or COLUMNS; None where stdout is neither."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def parsable(lines: Sequence[Sequence[str]]) -> list[str]:
    """Fields separated by |; one within a field becomes a blank, so that no field moves."""
    return ["|".join(printable(text).replace("|", " ") for text in line) for line in lines]


def as_csv(lines: Sequence[Sequence[str]]) -> str:
    """A record per line (RFC 4180, but with the newlines of here); not measured is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(_csv_cell, line) for line in lines)
    return out.getvalue()


def _csv_cell(text: str) -> str:
    """With an apostrophe in front where a spreadsheet would take the text for a formula."""
    if text == "-":
        return ""
    formula = text[:1] in {*"=+-@\t\r"} and not re.fullmatch(r"[+-][0-9]+(\.[0-9]+)?", text)
    return "'" * formula + printable(text)


def show(body: Mapping[str, object], lines: Sequence[Sequence[str]], form: str, left: int) -> None:
    """Print a body in the asked form (json, parsable, csv or table)."""
    if form == "json":
        click.echo(json.dumps({"version": 1, **body}, indent=1))
    elif form == "parsable":
        click.echo("\n".join(parsable(lines)))
    elif form == "csv":
        click.echo(as_csv(lines), nl=False)
    else:
        click.echo("\n".join(aligned(lines, left)))


def show_columns(
    body: Mapping[str, object], columns: Sequence[Column], rows: Sequence[Sequence[str]], form: str
) -> None:
    """The same; a table has the columns that fit into the terminal."""
    if form == "table":
        click.echo("\n".join(table(columns, rows, room())))
    else:
        show(body, [[column.name for column in columns], *rows], form, 0)


def form_of(as_json: bool, as_parsable: bool, as_csv: bool = False) -> str:
    """The form that the flags ask for."""
    return "json" if as_json else "parsable" if as_parsable else "csv" if as_csv else "table"


@functools.lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The user's name, printable; the number where there is none."""
    try:
        return printable(pwd.getpwuid(uid).pw_name)
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


def say(command: str, sentence: str) -> None:
    """A sentence on stderr, which may quote what others wrote."""
    click.echo(f"qgpu {command}: {printable(sentence)}", err=True)


def _reader_left() -> bool:
    """Whether stdout is a pipe whose reading end is closed, as behind `| head -2`."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def fail(command: str, sentence: str) -> NoReturn:
    """Print the error and exit with status 2. Errors of a file have several lines."""
    error = sys.exc_info()[1]
    if isinstance(error, BrokenPipeError) and _reader_left():
        raise error  # click ends the program without a word
    click.echo(f"qgpu {command}: " + "\n".join(map(printable, sentence.split("\n"))), err=True)
    raise SystemExit(2)
