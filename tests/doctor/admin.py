"""An admin who knows nothing of qgpu: types what doctor, lint and setup say behind the arrow, and
nothing else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from site_support import SLURM_CONF, Site

from cli.main import main
from slurm_plugin.site.conf import parse
from slurm_plugin.site.nodes import node_lines, partitions
from slurm_plugin.site.sources import Disk

# What Slurm says of itself that follows from its files once its daemons have read them.
READ = {
    ("scontrol", "show", "config"): "config.txt",
    ("scontrol", "-o", "show", "node"): "nodes.txt",
    ("scontrol", "-o", "show", "partition"): "partitions.txt",
    ("sacctmgr", "-nP", "show", "tres"): "tres.txt",
}
SHELL = ("chown ", "chmod ", "ln ", "mkdir ", "touch ")


class StuckError(AssertionError):
    """A remedy is none that can be typed."""


class Admin:
    """Types remedies on a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.healthy = _keys(SLURM_CONF.format(root=site.root), site)
        self.steps: tuple[tuple[str, Callable[[re.Match[str]], object]], ...] = (
            (r"run: ((?:qgpu|ln|mkdir) [^;]*)", lambda m: self.type(m[1])),
            (r"((?:chown|chmod|touch|sacctmgr|mkdir) [^;,]*)", lambda m: self.type(m[1])),
            (r"systemctl (?:start|restart) ([\w-]+)", lambda m: self.start(m[1])),
            (r"write(?: these \d+ lines)? at the end of ([^\s;]+): ([^;]*)", self.add),
            (
                r"write(?: these \d+ lines)? in place of line (\d+) of ([^\s;]+): ([^;]*)",
                self.replace,
            ),
            (r"remove line (\d+) of ([^\s;]+)", lambda m: self.edit(m[2], int(m[1]), [])),
            (r'write version: "([\d.]+)" under slurm in ([^\s;]+)', self.version),
            (r"restart (?:slurmctld|slurmd)|scontrol reconfigure", lambda m: self.slurm()),
            (r"restart qgpud", lambda m: self.start("qgpud")),
        )

    def follow(self, todo: str) -> None:
        """Do what one remedy says, from left to right."""
        found = []
        for order, (pattern, step) in enumerate(self.steps):
            for match in re.finditer(pattern, todo):
                found.append((match.start(), order, match, step))
        done = 0
        for start, _, match, step in sorted(found, key=lambda row: row[:2]):
            if start >= done:
                step(match)
                done = match.end()
        if not found:
            raise StuckError(f"no command and no edit: {todo}")

    def type(self, command: str) -> None:
        """A command in a shell."""
        command = command.strip()
        if command.startswith("qgpu "):
            self.qgpu(command)
        elif command.startswith("sacctmgr -i add qos "):
            said = self.site.host.answers[("sacctmgr", "-nP", "show", "qos")].out
            name = command.split()[4]
            self.site.answer("sacctmgr", "-nP", "show", "qos", out=f"{said}{name}\n")
        elif command.startswith(SHELL):
            subprocess.run(["sh", "-ec", command], check=True)
        else:
            raise StuckError(command)

    def qgpu(self, command: str) -> None:
        """A command of ours. On the host the modules lie at their usual place."""
        root = self.site.root
        done = CliRunner(env={"SLURM_CONF": str(root / "etc/slurm.conf")}).invoke(
            main,
            command.split()[1:],
            default_map={"setup": {"lua_dir": str(root / "opt/lua")}},
        )
        if done.exit_code not in (0, 1) or "Error:" in done.output or "Usage:" in done.output:
            raise StuckError(f"{command}: {done.output}")

    def start(self, unit: str) -> None:
        """A daemon that was down, or that reads its files anew."""
        site = self.site
        site.host._daemons.clear()  # doctor is another process each time
        if unit == "qgpud":
            site.reread()
        elif unit == "qgpu-arbiter":
            site.daemon["arbiter"] = True
        elif unit == "slurmdbd":
            site.answer("sacctmgr", "-nP", "show", "cluster", out=site.captured("cluster.txt"))
        elif unit == "munge":
            site.answer("munge", out="MUNGE:AwQDAAD:")
        elif unit == "slurmctld":
            site.answer("scontrol", "ping", out=site.captured("ping.txt"))
        elif unit == "slurmd":
            site.process(11, "slurmd", "slurmd", "-D")
        else:
            raise StuckError(f"there is no unit {unit}")

    def add(self, match: re.Match[str]) -> None:
        """Lines at the end of a file."""
        path = Path(match[1])
        text = path.read_text() if path.exists() else ""
        path.write_text(text + "".join(f"{line}\n" for line in match[2].split(" ... ")))

    def replace(self, match: re.Match[str]) -> None:
        """Lines instead of one."""
        self.edit(match[2], int(match[1]), match[3].split(" ... "))

    def edit(self, file: str, line: int, lines: list[str]) -> None:
        """Other lines in the place of one, which is written as it stands in the file."""
        path = Path(file)
        before = _lines_of(path)
        have = path.read_text().splitlines()
        have[line - 1 : line] = lines
        path.write_text("".join(f"{each}\n" for each in have))
        # Slurm ends at a word of such a line that stands alone, which our parser reads.
        if lost := before - _lines_of(path):
            raise StuckError(f"line {line} of {file} was {sorted(lost)}, and is now: {lines}")

    def version(self, match: re.Match[str]) -> None:
        """Slurm's version in qgpu.yaml."""
        path = Path(match[2])
        text = path.read_text()
        path.write_text(
            re.sub(r'slurm: \{version: "[^"]*"', f'slurm: {{version: "{match[1]}"', text)
        )

    def slurm(self) -> None:
        """Slurm's daemons read their files: what they say then follows from these."""
        site = self.site
        for command, case in READ.items():
            site.answer(*command, out=site.captured(case))
        site.answer("slurmd", "-G", err=site.captured("gres.txt"))
        site.clock()
        now = _keys((site.etc / "slurm.conf").read_text(), site)
        for key in now.keys() | self.healthy.keys():
            shown = f"\n{key} " in site.host.answers[("scontrol", "show", "config")].out
            if shown and now.get(key) != self.healthy.get(key):
                site.effective(key, now.get(key) or "(null)")


def _lines_of(path: Path) -> set[str]:
    """The nodes and partitions of a slurm.conf."""
    conf = parse(str(path), Disk(), "24.11")
    found = [*node_lines(conf)[0], *partitions(conf)] if path.name == "slurm.conf" else []
    return {f"{line.entry.head.key}={name}" for line in found for name in line.names}


def _keys(text: str, site: Site) -> dict[str, str]:
    """What slurm.conf sets, with our fragment."""
    path = site.etc / "slurm.conf"
    old = path.read_text()
    path.write_text(text)
    try:
        conf = parse(str(path), Disk(), "24.11")
    finally:
        path.write_text(old)
    heads = [entry.head for entry in conf.entries]
    return {
        head.key: head.value for head in heads if head.name not in ("nodename", "partitionname")
    }
