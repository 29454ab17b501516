"""Reads slurm.conf, gres.conf, cgroup.conf and includes as Slurm does. Pure: a Source has the
files.

`parse` never raises: what Slurm would refuse is a Fault with file and line; the rest is still read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gres.printable import printable
from slurm_plugin.site.lines import BLANKS, LogicalLine, Pair, logical_lines, next_pair, pairs

# Keys whose line holds more keys. All other keys have a line of their own.
LINE_KEYS = frozenset(
    [
        "nodename",
        "partitionname",
        "downnodes",
        "frontendname",
        "nodeset",
        "name",
        "switchname",
        "blockname",
    ]
)
MANY = frozenset(("slurmctldhost", "poweraction"))  # may be repeated, each with its value
MANY_FROM_2405 = frozenset(
    ["prolog", "epilog", "prologslurmctld", "epilogslurmctld"]
)  # so too since 24.05
MAX_DEPTH = 16  # nested includes, against loops
MAX_FILES = 256  # included files, so that a bad pattern cannot exhaust memory
MAX_LINES = 500_000  # lines of all files, for the same reason
_INCLUDE = re.compile(r"include\s+(\S+)(.*)", re.IGNORECASE | re.ASCII | re.DOTALL)


class Source(Protocol):
    """The source of files: the machine, a directory under --root, or a test's dict."""

    def read(self, path: str) -> str:
        """Text of a file. Raises OSError, whose strerror is shown, and
        ValueError with a sentence.
        """

    def glob(self, pattern: str) -> Sequence[str]:
        """Paths that match a shell pattern, sorted."""


def quoted(text: str) -> str:
    """A value as Slurm reads it: one with blanks, and an empty one, needs quotes."""
    return text if re.fullmatch(r"\S+", text) else f'"{text}"'


@dataclass(frozen=True)
class Value:
    """A value with its place."""

    key: str
    value: str
    file: str
    line: int
    operator: str = ""

    @property
    def name(self) -> str:
        """The key in small letters."""
        return self.key.lower()

    @property
    def place(self) -> str:
        """FILE:LINE."""
        return f"{self.file}:{self.line}"

    @property
    def items(self) -> list[str]:
        """The members of a comma list, without blanks and empty ones."""
        return [item.strip() for item in self.value.split(",") if item.strip()]

    def written(self, text: str | None = None) -> str:
        """KEY=VALUE as Slurm reads it, with another value if one is given."""
        return f"{self.key}{self.operator}={quoted(self.value if text is None else text)}"


@dataclass(frozen=True)
class Entry:
    """One line: its first key, and the further keys of a line such as NodeName's."""

    head: Value
    rest: tuple[Value, ...] = ()

    @property
    def words(self) -> dict[str, Value]:
        """All keys of the line in small letters; the last of a repeated key, as Slurm takes it."""
        return {value.name: value for value in (self.head, *self.rest)}

    def get(self, key: str, default: str = "") -> str:
        """The text of a key of this line."""
        found = self.words.get(key.lower())
        return default if found is None else found.value

    def written(self, changed: Mapping[str, tuple[str, str]]) -> str:
        """The whole line, with other values. `changed`: key and value by the key in small letters;
        those that the line lacks are put behind it.
        """
        words = [
            value.written(changed[value.name][1] if value.name in changed else None)
            for value in (self.head, *self.rest)
        ]
        more = [
            f"{key}={quoted(text)}"
            for name, (key, text) in changed.items()
            if name not in self.words
        ]
        return " ".join([*words, *more])


@dataclass(frozen=True)
class Fault:
    """What Slurm refuses or cannot read in a file; `text` is a sentence of printable characters.

    `line` is 0 for the file as a whole.
    """

    file: str
    line: int
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", printable(self.file))
        object.__setattr__(self, "text", printable(self.text))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(frozen=True)
class Include:
    """An include line: the word as written, and the file that it names."""

    word: str
    target: str
    file: str
    line: int


@dataclass(frozen=True)
class Conf:
    """A configuration file with its includes, in the order in which Slurm reads it."""

    path: str
    version: str
    entries: tuple[Entry, ...] = ()
    faults: tuple[Fault, ...] = ()
    includes: tuple[Include, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the file itself could be read."""
        return bool(self.files)

    def all(self, key: str) -> list[Value]:
        """Every value of a key that begins a line, in order."""
        return [entry.head for entry in self.entries if entry.head.name == key.lower()]

    def get(self, key: str) -> Value | None:
        """The effective value: Slurm takes the last one."""
        found = self.all(key)
        return found[-1] if found else None

    def text(self, key: str, default: str = "") -> str:
        """The text of the effective value."""
        found = self.get(key)
        return default if found is None else found.value

    def lines(self, *keys: str) -> list[Entry]:
        """The lines that begin with one of the keys."""
        wanted = {key.lower() for key in keys}
        return [entry for entry in self.entries if entry.head.name in wanted]

    def repeated(self) -> dict[str, list[Value]]:
        """Keys that Slurm complains of as "specified more than once", with their values."""
        many = LINE_KEYS | MANY | (MANY_FROM_2405 if self.version >= "24.05" else frozenset())
        found: dict[str, list[Value]] = {}
        for entry in self.entries:
            if entry.head.name not in many:
                found.setdefault(entry.head.name, []).append(entry.head)
        return {name: values for name, values in found.items() if len(values) > 1}


@dataclass
class _Reading:
    """The state of reading."""

    source: Source
    root: str
    version: str
    entries: list[Entry] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    includes: list[Include] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: int = 0

    def fault(self, file: str, line: int, text: str) -> None:
        self.faults.append(Fault(file, line, text))


def parse(path: str, source: Source, version: str = "23.02") -> Conf:
    """Read a configuration file with its includes. `version` is Slurm's ("22.05").

    Before 23.02 a relative include is found beside the file that holds it, later beside the main
    file.
    """
    reading = _Reading(source, path, version)
    _read_file(reading, path, ())
    return Conf(
        path,
        version,
        tuple(reading.entries),
        tuple(reading.faults),
        tuple(reading.includes),
        tuple(reading.files),
    )


def read_text(source: Source, path: str) -> tuple[str, str]:
    """Text of a file and an empty word, or nothing and a sentence."""
    try:
        return source.read(path), ""
    except FileNotFoundError:
        return "", "there is no such file"
    except OSError as error:
        return "", f"it cannot be read: {error.strerror or error}"
    except ValueError as error:
        return "", str(error)


def _read_file(reading: _Reading, path: str, above: tuple[str, ...]) -> bool:
    if len(reading.files) >= MAX_FILES:
        reading.fault(path, 0, f"more than {MAX_FILES} files are included; it is left out")
        return True
    text, wrong = read_text(reading.source, path)
    if wrong:
        if not above:
            reading.fault(path, 0, wrong)
        return not above
    reading.files.append(path)
    for line in logical_lines(text):
        reading.lines += 1
        if reading.lines > MAX_LINES:
            reading.fault(
                path, line.number, f"there are more than {MAX_LINES} lines; the rest is left out"
            )
            return True
        _read_line(reading, path, line, above)
    return True


def _read_line(reading: _Reading, path: str, line: LogicalLine, above: tuple[str, ...]) -> None:
    included = _INCLUDE.match(line.text)
    if included:
        if not included[2]:
            text = "a newline must end an include line: Slurm reads on behind it in memory"
            reading.fault(path, line.number, text)
        elif included[2].strip(BLANKS):
            reading.fault(
                path, line.number, f"Slurm does not read '{shown(included[2])}' behind the include"
            )
        _include(reading, path, line.number, included[1], above)
        return
    if _INCLUDE.match(line.text.lstrip(BLANKS)):
        reading.fault(
            path, line.number, "Slurm reads an include only at the very beginning of a line"
        )
        return
    step = next_pair(line.text)
    if step is None:
        reading.fault(path, line.number, f"'{shown(line.text)}' is not KEY=VALUE")
        return
    head, left = step
    rest, behind = pairs(left) if head.key.lower() in LINE_KEYS else ([], left.strip(BLANKS))
    if behind:
        reading.fault(
            path,
            line.number,
            f"Slurm does not read '{shown(behind)}' behind {head.key}={shown(head.value, 40)}",
        )
    reading.entries.append(
        Entry(
            _value(head, path, line.number), tuple(_value(pair, path, line.number) for pair in rest)
        )
    )


def _value(pair: Pair, path: str, line: int) -> Value:
    return Value(pair.key, pair.value, path, line, pair.operator)


def _include(reading: _Reading, path: str, line: int, word: str, above: tuple[str, ...]) -> None:
    name = _with_cluster(reading, word)
    if name is None:
        reading.fault(path, line, f"include {shown(word)} needs ClusterName in a line before it")
        return
    beside = path if reading.version < "23.02" else reading.root
    target = posixpath.normpath(posixpath.join(posixpath.dirname(beside), name))
    chain = (*above, posixpath.normpath(path))
    reading.includes.append(Include(word, target, path, line))
    if "*" in name:
        reading.fault(path, line, f"Slurm takes no pattern in an include, and skips {shown(name)}")
    elif target in chain:
        reading.fault(path, line, f"{shown(target)} includes itself")
    elif len(chain) >= MAX_DEPTH:
        reading.fault(
            path,
            line,
            f"includes are nested more than {MAX_DEPTH} deep; {shown(target)} is left out",
        )
    elif not _read_file(reading, target, chain):
        wrong = read_text(reading.source, target)[1]
        reading.fault(
            path, line, f"includes {shown(target)}: {wrong}; Slurm's daemons do not start"
        )


def _with_cluster(reading: _Reading, word: str) -> str | None:
    """The include's name with %c, the cluster in small letters; None if no cluster is named yet."""
    if "%c" not in word:
        return word
    named = [entry.head.value for entry in reading.entries if entry.head.name == "clustername"]
    return word.replace("%c", named[-1].lower()) if named else None


def shown(text: str, limit: int = 80) -> str:
    """A text of a file for a sentence."""
    return printable(text.strip(), limit)
