"""Runs Slurm's commands and reads the records that they print; no other module does.

Slurm prints names and comments as users wrote them, with newlines and any separator. So each call
makes a random word and has Slurm print it after each value. A value ends at that word alone, never
at a newline. `mark` makes the word; `Columns` has the fields of one call.

While the command runs, its words can be read by others. A user who is quick could put the word into
a text. So totals ask for no text of users, and `unique` drops a job that has two records.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gres.printable import printable

TIMEOUT_S = 60  # seconds for one call: a large window takes slurmdbd a while
Runner = Callable[[Sequence[str]], str]


class SlurmError(RuntimeError):
    """A command of Slurm could not be run or understood; the text is a sentence."""


def mark() -> str:
    """A word that no user knows: for one call, in front of which each value ends."""
    return f"<{secrets.token_hex(16)}>"


@dataclass(frozen=True)
class Columns:
    """What one call asks for, and the word after each value."""

    names: tuple[str, ...]
    end: str

    @classmethod
    def of(cls, *names: str) -> Columns:
        """Fields with a new word."""
        return cls(names, mark())

    @property
    def sacct(self) -> list[str]:
        """Words for sacct and sacctmgr: these fields, each with the word behind it."""
        return ["-n", "-p", f"--delimiter={self.end}", f"--format={','.join(self.names)}"]

    @property
    def short(self) -> str:
        """The value for -o of squeue and sinfo, whose fields are %A and the like."""
        return "".join(f"{name}{self.end}" for name in self.names)

    @property
    def long(self) -> str:
        """The value for -O of squeue, whose fields have a width, such as JobID:20."""
        return ",".join(f"{name}{self.end}" for name in self.names)

    def read(self, text: str, command: str) -> list[list[str]]:
        """The records of the command's output. Raises SlurmError for other text.

        Where a value holds the word, records are lost until one begins a line again.
        """
        pieces, count = text.split(self.end), len(self.names)
        if text == "":
            return []
        if pieces[-1] not in ("", "\n") or len(pieces) <= count:
            raise SlurmError(
                f"{command} did not answer with the fields it was asked for, but with"
                f" '{printable(text, 80)}'"
            )
        pieces[0], pieces[-1] = f"\n{pieces[0]}", "\n"
        found, at = [], 0
        while at + count < len(pieces):
            if pieces[at][:1] == "\n" == pieces[at + count][:1]:
                found.append([pieces[at][1:], *pieces[at + 1 : at + count]])
                at += count
            else:
                at += 1
        return found


def unique(records: Iterable[Sequence[str]]) -> dict[int, Sequence[str]]:
    """Records by the job's number, their first value; a job that has two is left out."""
    found: dict[int, Sequence[str]] = {}
    twice: set[int] = set()
    for record in records:
        number = whole(record[0])
        if number is not None:
            twice |= {number} & found.keys()
            found[number] = record
    return {number: record for number, record in found.items() if number not in twice}


def whole(text: str) -> int | None:
    """The number of a value that is one: digits, and no more than Slurm ever has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def run(arguments: Sequence[str]) -> str:
    """Output of a command of Slurm. Bytes that are no UTF-8 become U+FFFD. Raises SlurmError."""
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{arguments[0]} was not found: is Slurm's client package installed here?"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"{arguments[0]} did not answer within {TIMEOUT_S} s: is slurmdbd running?"
        ) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise SlurmError(
            f"{arguments[0]} failed: {printable(said) or f'exit status {done.returncode}'}"
        )
    return done.stdout.decode(errors="replace")
