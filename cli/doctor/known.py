"""What doctor has found out so far; later checks use it."""

from __future__ import annotations

import pwd
import re
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cli.doctor.host import Host, Process
from enforcer.nvml.port import CardInfo
from gres.config.site import Config
from gres.paths import PATHS
from slurm_plugin import releases
from slurm_plugin.site.conf import Conf
from slurm_plugin.site.difference import Difference, Role
from slurm_plugin.site.found import Site

USUAL = (
    f"{PATHS.slurm_config_dir}/slurm.conf",
    "/etc/slurm/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
# What slurmd and sackd fetched on a configless host.
CACHES = ("/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf")
NO_SLURM = "no Slurm on this machine"


@dataclass
class Known:
    """The facts of one run. `node` is this host's name in qgpu.yaml, "" if it has none there."""

    host: Host = field(default_factory=Host)
    path: str = ""
    config: Config | None = None  # %n is this node's name
    raw: Config | None = None  # as it is written
    digest: str = ""  # SHA-256 of the file
    node: str = ""
    given: bool = False  # whether --node was given
    cards: tuple[CardInfo, ...] | None = None
    shim: bool = False
    daemon: dict[str, object] = field(default_factory=dict)
    asked_at: float | None = None  # when slurmctld was asked for its configuration
    roles: tuple[Role, ...] = ()
    site: Site | None = None  # Slurm's files, once they are read
    differences: list[Difference] | None = None  # of them, once they are compared
    files: dict[str, Conf] = field(default_factory=dict)  # Slurm's, once they are read

    @property
    def need(self) -> Config:
        """The configuration, for checks that run only where there is one."""
        if self.config is None:
            raise RuntimeError("this check needs qgpu.yaml")
        return self.config

    @cached_property
    def slurm_conf(self) -> Path | None:
        """slurm.conf of this machine: SLURM_CONF, the usual places,
        slurmd's copy, or by slurmctld.
        """
        named = self.host.environ.get("SLURM_CONF")
        if named:
            return Path(named) if Path(named).is_file() else None
        found = next((Path(path) for path in (*USUAL, *CACHES) if Path(path).is_file()), None)
        told = "" if found else self.effective.get("slurm_conf", "")
        return Path(told) if told and Path(told).is_file() else found

    @property
    def configless(self) -> bool:
        """Whether slurm.conf is a copy that came from the controller."""
        return str(self.slurm_conf) in CACHES

    def slurm_processes(self, name: str) -> list[Process]:
        """Running daemons of that name that belong to this installation: none with another
        slurm.conf.
        """
        mine = ("", str(self.slurm_conf))
        return [
            process
            for process in self.host.daemons(self.slurm_uid)
            if process.name == name and process.option("-f") in mine
        ]

    @cached_property
    def answers(self) -> bool:
        """Whether slurmctld answers this host."""
        named = self.host.environ.get("SLURM_CONF")
        if named and not Path(named).is_file():
            return False  # scontrol would ask the network for a controller
        return "is UP" in self.host.said("scontrol", "ping").out

    @cached_property
    def effective(self) -> dict[str, str]:
        """What slurmctld has in effect, keys in small letters; empty if it does not answer."""
        if not self.answers:
            return {}
        self.asked_at = time.time()
        return parse_config_text(self.host.said("scontrol", "show", "config").out)

    @cached_property
    def slurm_version(self) -> releases.Version | None:
        """The version of the Slurm that is installed here."""
        for command in (("slurmd", "-V"), ("slurmctld", "-V"), ("scontrol", "-V")):
            if found := releases.parse(self.host.said(*command).out):
                return found
        return None

    @property
    def controller_read_at(self) -> float | None:
        """When slurmctld last read its configuration (seconds since 1970), by BOOT_TIME."""
        try:
            return time.mktime(
                time.strptime(self.effective.get("boot_time", ""), "%Y-%m-%dT%H:%M:%S")
            )
        except (ValueError, OverflowError):
            return None

    @property
    def has_slurm(self) -> bool:
        """Whether this host has Slurm at all; `qgpu run` needs none."""
        return self.slurm_conf is not None

    @cached_property
    def slurm_uid(self) -> int:
        """SlurmUser's uid, whose files root may trust: by slurmctld, else of the account slurm,
        else 0.
        """
        found = re.search(r"\(([0-9]+)\)", self.effective.get("slurmuser", ""))
        if found:
            return int(found[1])
        try:
            return pwd.getpwnam("slurm").pw_uid
        except KeyError:
            return 0

    @property
    def run_dir(self) -> str:
        """qgpu's run_dir on this node."""
        return self.need.run_dir

    @property
    def run_dirs(self) -> set[str]:
        """How files may spell it: with the node's name, or with %n."""
        return {self.need.run_dir} | ({self.raw.run_dir} if self.raw else set())

    @property
    def state_dir(self) -> str:
        """qgpu's state_dir on this node."""
        return self.need.state_dir

    def trust_program_directories(self) -> None:
        """Search Slurm's directories for its programs too."""
        found = [str(Path(self.config.hook.scontrol).parent)] if self.config else []
        for process in self.host.daemons():
            if (
                process.name in ("slurmd", "slurmctld")
                and process.words
                and process.words[0].startswith("/")
            ):
                found.append(str(Path(process.words[0]).parent))
        self.host.search_also(found)


def parse_config_text(text: str) -> dict[str, str]:
    """Keys and values of `scontrol show config`; "(null)" is empty."""
    found = {}
    for line in text.split("\n"):
        match = re.match(r"([A-Za-z_]+(?:\[[0-9]+\])?)\s*= ?(.*)$", line)
        if match:
            found[match[1].lower()] = "" if match[2].strip() == "(null)" else match[2].strip()
    return found


def words(value: str) -> set[str]:
    """Members of a comma list in small letters."""
    return {word.strip().lower() for word in value.split(",") if word.strip()}
