"""One difference of a site's configuration from what qgpu needs."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Literal

from gres.paths import PATHS
from gres.printable import printable
from slurm_plugin.site.conf import Value
from slurm_plugin.site.settings import Restart

Role = Literal["controller", "node", "login"]
ROLES: tuple[Role, ...] = ("controller", "node", "login")
Action = Literal["add", "replace", "remove", "run"]
Severity = Literal["fail", "warn"]

AGAIN = "qgpu setup"  # differences() adds the options with which it works on this host


def setup_command(
    roles: Collection[Role], yaml: str, node: str | None = None, slurm_conf: str | None = None
) -> str:
    """`qgpu setup` as it works on a host of these roles: options that were given are repeated."""
    words = [AGAIN, *(f"--role {role}" for role in ROLES if role in roles)]
    words += [f"--config {shlex.quote(yaml)}"] if yaml != PATHS.config_file else []
    words += [f"--node {shlex.quote(node)}"] if node else []
    words += [f"--slurm-conf {shlex.quote(slurm_conf)}"] if slurm_conf else []
    return " ".join(words)


# a line that Slurm cannot read: `has` is the sentence, and only the admin knows what to write
SYNTAX = "syntax"
# a package that is not installed: `file` is of it, `needed` its name
PACKAGE = "package"


@dataclass(frozen=True)
class Difference:
    """One difference.

    * `write`: the line to add, the text for `file`:`line` (several lines if nodes of different
      kinds share one), or the command to run; empty to remove the line, or if only the
      administrator knows the text
    * `has`: the site's present text, empty for none
    * `severity`: `fail`: jobs do not start or are not governed; `warn`: something else is degraded
    """

    key: str
    file: str
    line: int
    has: str
    needed: str
    action: Action
    write: str
    why: str
    restart: Restart = ""
    severity: Severity = "fail"

    @property
    def place(self) -> str:
        """FILE:LINE, or FILE where there is no line yet."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def sentence(self) -> str:
        """The fault in one printable sentence."""
        if self.key == SYNTAX:
            return printable(f"{self.place}: {self.has}")
        if self.key == PACKAGE:
            return f"{self.file} is missing: {self.why}"
        if not self.has:
            return printable(f"{self.file} lacks {self.needed}: {self.why}")
        return printable(f"{self.place} has {self.has}, needed is {self.needed}: {self.why}")

    @property
    def todo(self) -> str:
        """What to do, in one printable sentence."""
        if self.action == "run":
            return printable(f"run: {self.write}")
        if self.action == "remove":
            return f"remove line {self.line} of {self.file}"
        if self.key == PACKAGE:
            return f"install {self.needed}"
        if not self.write:
            return f"correct {self.place}"
        lines = self.write.split("\n")
        where = (
            f"at the end of {self.file}"
            if self.action == "add"
            else f"in place of line {self.line} of {self.file}"
        )
        many = f" these {len(lines)} lines" if len(lines) > 1 else ""
        return f"write{many} {where}: {' ... '.join(map(printable, lines))}"

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence, "todo": self.todo}


def replaced(
    value: Value,
    key: str,
    write: str,
    needed: str,
    why: str,
    restart: Restart,
    severity: Severity = "fail",
) -> Difference:
    """A line to replace."""
    has = f"{value.key}={value.value}"
    return Difference(
        key, value.file, value.line, has, needed, "replace", write, why, restart, severity
    )


def removed(
    value: Value, needed: str, why: str, restart: Restart, severity: Severity = "fail"
) -> Difference:
    """A line to remove."""
    has = f"{value.key}={value.value}"
    return Difference(
        value.key, value.file, value.line, has, needed, "remove", "", why, restart, severity
    )


def stale(key: str, file: str, needed: str, why: str) -> Difference:
    """Our fragment is older than the site's files or qgpu.yaml."""
    return Difference(key, file, 0, "", needed, "run", AGAIN, why, "")
