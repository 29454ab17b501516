"""Doctor's access to the machine: programs, processes, files. Tests replace it.

Doctor may run as root on a host where users can write somewhere. So root runs no program and reads
no file that another user could replace; such a file is a finding.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gres.trusted import Doubt, distrust

USUAL_PATH = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/sbin", "/bin")
TIMEOUT_S = 10.0  # seconds for one program, since a hung one must not stall doctor
MAX_FILE = 16 << 20  # bytes read of one file: configuration is far smaller


@dataclass(frozen=True)
class Said:
    """Output of a program. Code 127: no such program; 124: it did not end in time."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def last(self) -> str:
        """Its last line: of the output if it succeeded, else of the errors."""
        return (self.out if self.code == 0 else self.err or self.out).strip().split("\n")[-1]


@dataclass(frozen=True)
class Process:
    """One process. `words` is its command line, which any user can choose; `uid` is not."""

    pid: int
    name: str
    words: tuple[str, ...]
    uid: int = 0

    def option(self, letter: str, long: str = "") -> str:
        """Value of an option, "" if it is not there."""
        for place, word in enumerate(self.words):
            if word == letter or (long and word == long):
                return self.words[place + 1] if place + 1 < len(self.words) else ""
            if word.startswith(letter) and not word.startswith("--") and len(letter) == 2:
                return word[2:]
            if long and word.startswith(f"{long}="):
                return word.partition("=")[2]
        return ""


def _owner(process: Path) -> int | None:
    """The user that all four ids of a process name; None for another, and where it has a number in
    a pid namespace below ours: it belongs to another host.

    Nobody can make a reader of `status` wait. The owner of the directory says less: it is root also
    where a user forbids core dumps.
    """
    status = (process / "status").read_text(errors="replace")
    spaces = re.search(r"^NSpid:(.*)$", status, re.MULTILINE)
    uids = re.search(r"^Uid:(.*)$", status, re.MULTILINE)
    found = set(uids[1].split()) if uids else set()
    if len(found) != 1 or (spaces and len(spaces[1].split()) > 1):
        return None
    return int(found.pop())


@dataclass
class Host:
    """This machine. `trusted`: uids whose files root may believe; others are added by `trust`."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    proc: Path = Path("/proc")
    trusted: frozenset[int] = frozenset({0})
    uid: int = field(default_factory=os.geteuid)
    _said: dict[tuple[str, ...], Said] = field(default_factory=dict)
    _daemons: dict[frozenset[int], list[Process]] = field(default_factory=dict)
    _more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The host's short name."""
        return socket.gethostname().partition(".")[0]

    def search_also(self, directories: Iterable[str]) -> None:
        """More places where Slurm's programs may be."""
        self._more = tuple(dict.fromkeys([*self._more, *directories]))

    def program(self, name: str) -> str | None:
        """Absolute path of a program; None if there is none that may be run."""
        own = [entry for entry in self.environ.get("PATH", "").split(":") if entry.startswith("/")]
        for directory in dict.fromkeys([*own, *self._more, *USUAL_PATH]):
            found = shutil.which(name, path=directory)
            if found and not (self.uid == 0 and self.distrust(found)):
                return found
        return None

    def said(self, *command: str, timeout: float = TIMEOUT_S) -> Said:
        """Output of a program that changes nothing; the same question is asked once."""
        if command not in self._said:
            self._said[command] = self.ask(*command, timeout=timeout)
        return self._said[command]

    def ask(self, *command: str, timeout: float = TIMEOUT_S) -> Said:
        """Output of a program; it is run each time."""
        program = self.program(command[0])
        if program is None:
            return Said(127, err=f"{command[0]} is not installed")
        try:
            done = subprocess.run(
                [program, *command[1:]],
                capture_output=True,
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**self.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"},
            )
        except subprocess.TimeoutExpired:
            return Said(124, err=f"{command[0]} did not end within {timeout:.0f} s")
        except OSError as error:
            return Said(127, err=f"{command[0]}: {error.strerror}")
        return Said(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )

    def distrust(self, path: str | Path, *more: int) -> Doubt | None:
        """Why another user could replace that file; None if none could."""
        return distrust(path, self.trusted | set(more))

    def read(self, path: str | Path, *more: int) -> str | None:
        """Text of a regular file; None if unreadable.

        Root reads only files that no user but root and the uids `more` could replace.
        """
        data = self.read_bytes(path, *more)
        return None if data is None else data.decode(errors="replace")

    def read_bytes(self, path: str | Path, *more: int) -> bytes | None:
        """The same as bytes; at most MAX_FILE of them."""
        if self.uid == 0 and self.distrust(path, *more):
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "rb") as file:
                return file.read(MAX_FILE) if stat.S_ISREG(os.fstat(fd).st_mode) else None
        except OSError:
            return None

    def daemons(self, *owners: int) -> list[Process]:
        """Processes of root, and of the uids `owners`: a user may call a program as it likes."""
        trusted = self.trusted | set(owners)
        if trusted not in self._daemons:
            entries = [entry for entry in self.proc.iterdir() if entry.name.isdigit()]
            rows = (_daemon(entry, trusted) for entry in entries)
            self._daemons[trusted] = [row for row in rows if row is not None]
        return self._daemons[trusted]


def _daemon(entry: Path, owners: frozenset[int]) -> Process | None:
    """A process of these users; None for others, who may make a reader of their cmdline wait."""
    try:
        uid = _owner(entry)
        if uid is None or uid not in owners:
            return None
        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        name = (entry / "comm").read_text(errors="replace").strip()
        return Process(int(entry.name), name, tuple(words), uid)
    except OSError:
        return None
