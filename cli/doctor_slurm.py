"""Checks of Slurm's side. Without Slurm on the machine they say so, and nothing fails: `qgpu run` needs none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from cli.doctor_result import Check
from gres.config import Config
from slurm_plugin.site.conf import Conf, parse
from slurm_plugin.site.plugstack import parse_plugstack
from slurm_plugin.site.sources import Disk

USUAL = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf")
NONE = "no Slurm on this machine"


def slurm_conf() -> Path | None:
    """slurm.conf of this machine: SLURM_CONF, what slurmd fetched, or the usual places."""
    named = os.environ.get("SLURM_CONF")
    cached = "/run/slurm/conf/slurm.conf"
    for path in [named] if named else [*USUAL, cached]:
        if Path(path).is_file():
            return Path(path)
    return None


def read(config: Config, path: Path) -> Conf:
    """slurm.conf, or another file of that kind, with what it includes."""
    return parse(str(path), Disk(), config.slurm.version)


def _glob(name: str) -> list[Path]:
    return [Path(name), *map(Path, Disk().glob(name))]


def _mentions(path: Path, word: str) -> bool:
    """Whether a script holds a word; one that cannot be read does not."""
    try:
        return word in Disk().read(str(path))
    except (OSError, ValueError):
        return False


def plugstack(config: Config) -> Check:
    """Whether tasks get their grant."""
    conf = slurm_conf()
    if conf is None:
        return Check("spank", "ok", NONE)
    plugin = Path(config.spank)
    if not plugin.is_file():
        return Check(
            "spank", "fail", f"{plugin} is not there", "install the package, or correct spank in qgpu.yaml"
        )
    stack = read(config, conf).text("PlugStackConfig") or str(conf.with_name("plugstack.conf"))
    if str(plugin) not in [line.plugin for line in parse_plugstack(stack, Disk()).plugins]:
        todo = "add what 'qgpu render plugstack.conf' prints: without it jobs run without limits"
        return Check("spank", "fail", f"{stack} does not name {plugin}", todo)
    return Check("spank", "ok", f"{plugin} is in {stack}")


def hooks(config: Config) -> Check:
    """Whether qgpud is told of jobs."""
    conf = slurm_conf()
    if conf is None:
        return Check("hooks", "ok", NONE)
    settings = read(config, conf)
    if not Path(config.hook.client).is_file():
        return Check(
            "hooks",
            "fail",
            f"{config.hook.client} is not there",
            "install the package, or correct hook.client",
        )
    for key in ("Prolog", "Epilog"):
        scripts = [value.value for value in settings.all(key)]
        if not scripts:
            return Check("hooks", "fail", f"{conf} sets no {key}", "add what 'qgpu render slurm.conf' prints")
        if not any(_mentions(file, config.hook.client) for script in scripts for file in _glob(script)):
            todo = f"call what 'qgpu render {key.lower()}' prints from it"
            text = f"{key} ({', '.join(scripts)}) does not call {config.hook.client}"
            return Check("hooks", "fail", text, todo)
    return Check("hooks", "ok", f"Prolog and Epilog call {config.hook.client}")


def said(*command: str) -> tuple[int, str]:
    """Exit status of a program and the last line that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""


def said_all(*command: str) -> str:
    """Everything that a program said; empty if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def shown(text: str, key: str) -> str:
    """A value of what `scontrol show config` prints; empty if it is not there."""
    found = re.search(rf"^{key}\s*= (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def private_data(config: Config) -> Check:
    """Whether what slurm.conf hides from other users is hidden in reports as well."""
    conf = slurm_conf()
    if conf is None:
        return Check("privacy", "ok", NONE)
    hidden = set(read(config, conf).text("PrivateData").lower().split(",")) & {"jobs", "usage"}
    missing = sorted(hidden - set(config.reports.private_data))
    if missing:
        todo = f"write reports: {{private_data: [{', '.join(sorted(hidden))}]}} in qgpu.yaml"
        return Check(
            "privacy", "warn", f"slurm.conf hides {' and '.join(missing)} of others, qgpu shows them", todo
        )
    return Check("privacy", "ok", "reports hide what slurm.conf hides")


def slurm() -> Check:
    """Which Slurm there is."""
    program = shutil.which("slurmd") or shutil.which("scontrol")
    if program is None:
        return Check("slurm", "ok", f"{NONE}; qgpu run works without it")
    return Check("slurm", "ok", said(program, "-V")[1] or program)


def munge() -> Check:
    """Whether munge, which Slurm needs, answers."""
    program = shutil.which("munge")
    if program is None:
        return Check("munge", "ok", "not installed; only Slurm needs it")
    code, text = said(program, "-n")
    if code == 0:
        return Check("munge", "ok", "answers")
    return Check("munge", "warn", text or "does not answer", "systemctl start munge, if Slurm is used")
