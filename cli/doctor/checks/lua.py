"""Checks of the Lua scripts that slurmctld and the clients read: whether they call our modules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from cli.doctor.checks import site
from cli.doctor.checks.site import Kind
from cli.doctor.files import setting
from cli.doctor.known import Known, words
from cli.doctor.result import Check
from slurm_plugin.render import host_default, render

_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_DOFILE = re.compile(r'dofile\s*\(\s*(?:"([^"\n]*)"|(here))(?:\s*\.\.\s*"([^"\n]*)")?\s*\)')
_TABLES = re.compile(r'"(/[^"\n]*qgpu_tables\.lua)"')
MAX_SCRIPTS = 32  # scripts followed by dofile, against loops


@dataclass
class Loaded:
    """What a script loads, directly or not. `tables`: the table files named in it."""

    scripts: dict[str, str | None] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Scripts that cannot be read."""
        return [path for path, text in self.scripts.items() if text is None]


def loaded_by(known: Known, script: str) -> Loaded:
    """Follow the `dofile` calls of a script, in the forms that qgpu's fragments use."""
    found, todo = Loaded(), [script]
    while todo and len(found.scripts) < MAX_SCRIPTS:
        path = todo.pop(0)
        if path in found.scripts:
            continue
        text = found.scripts[path] = known.host.read(path, known.slurm_uid)
        code = _COMMENT.sub("", text or "")
        found.tables += _TABLES.findall(code)
        for first, here, second in _DOFILE.findall(code):
            todo.append((str(Path(path).parent) if here else first) + second)
    return found


def _script(known: Known, name: str, module: str) -> tuple[Check, Loaded]:
    """Whether a script of Slurm's calls our module, and whether
    everything that it loads is there.
    """
    path = str(known.slurm_conf.with_name(f"{name}.lua")) if known.slurm_conf else f"{name}.lua"
    found = loaded_by(known, path)
    if found.scripts[path] is None:
        doubt = known.host.distrust(path, known.slurm_uid)
        todo = doubt.todo if doubt else site.again(known)
        return Check(name, "fail", f"{path} cannot be read: {doubt or 'is it there?'}", todo), found
    ours = [script for script in found.scripts if script.endswith(f"/{module}")]
    if not ours:
        return Check(name, "fail", f"{path} does not load {module}", _call(known, name)), found
    if found.missing:
        text = f"{found.missing[0]}, which {path} loads, cannot be read"
        package = "qgpu-controller" if name == "job_submit" else "qgpu"
        return Check(name, "fail", text, f"install {package} again, or correct the path"), found
    kind: Kind = "job_submit.lua" if name == "job_submit" else "cli_filter.lua"
    ok = Check(name, "ok", f"{path} loads {ours[0]}")
    return site.fault(known, name, kind) or ok, found


def _call(known: Known, name: str) -> str:
    """What to do where a script of the site does not call ours."""
    kind: Kind = "job_submit.lua" if name == "job_submit" else "cli_filter.lua"
    mine = site.found(known, kind)
    return site.todo_of(mine[0]) if mine else f"add what 'qgpu render {name}.lua' prints"


def cli_filter(known: Known) -> Check:
    """Whether the script of the lua filter is here: without it each sbatch and srun fails."""
    if "lua" not in words(setting(known, "CliFilterPlugins")):
        return Check("cli_filter", "ok", "not used")
    check, _ = _script(known, "cli_filter", "qgpu_cli_filter.lua")
    if check.status == "fail" and "cannot be read" in check.text:
        todo = f"{check.todo}; until then take CliFilterPlugins=lua out of slurm.conf"
        return Check(
            "cli_filter", "fail", f"{check.text}; sbatch and srun of everybody fail here", todo
        )
    return check


def job_submit(known: Known) -> Check:
    """Without our job_submit a share is booked as a plain number, and its job gets no card."""
    plugins = setting(known, "JobSubmitPlugins")
    if "lua" not in words(plugins):
        todo = site.settle(known, "JobSubmitPlugins")
        text = f"JobSubmitPlugins is {plugins or 'not set'}: jobs with --gres=qgpu:N get no card"
        return Check("job_submit", "fail", text, todo)
    return _script(known, "job_submit", "qgpu_job_submit.lua")[0]


def tables(known: Known) -> Check:
    """Whether job_submit uses this qgpu.yaml. It reads changed tables by itself."""
    found = _script(known, "job_submit", "qgpu_job_submit.lua")[1]
    if not found.tables:
        text = "job_submit.lua names no qgpu_tables.lua"
        return Check("tables", "fail", text, _call(known, "job_submit"))
    path = found.tables[0]
    text_ = known.host.read(path, known.slurm_uid)
    if text_ is None:
        text = f"{path} cannot be read: every share is refused"
        return Check("tables", "fail", text, site.again(known, path))
    if code_of(path, text_) != code_of(path, rendered(known)):
        beside = " beside DefMemPerNode and DefMemPerCPU" if known.need.reclaiming else ""
        text = f"{path} is not what this qgpu.yaml renders{beside}"
        return Check("tables", "fail", text, site.again(known, path))
    return _read_since(known, found) or Check("tables", "ok", f"{path} is what qgpu.yaml renders")


def rendered(known: Known) -> str:
    """The tables of this qgpu.yaml, with the host memory that slurmctld gives by default."""
    memory = host_default(lambda key: setting(known, key))
    return render("qgpu_tables.lua", known.need, memory=memory)


def code_of(name: str, text: str) -> str:
    """A Lua script, or another file of ours, without comments, blanks
    around lines and empty lines.
    """
    if name.endswith(".lua"):
        lines = [line.strip() for line in _COMMENT.sub("", text).split("\n")]
    else:
        lines = [line.partition("#")[0].strip() for line in text.split("\n")]
    return "\n".join(filter(None, lines))


def _read_since(known: Known, found: Loaded) -> Check | None:
    """slurmctld reads job_submit.lua with its modules at its start, and when that script itself
    changes.
    """
    script, *modules = found.scripts
    started = known.controller_read_at
    try:
        read_at = max(started or 0.0, Path(script).stat().st_mtime)
        newer = [path for path in modules if Path(path).stat().st_ctime > read_at + 1]
    except OSError:
        return None
    if started is None or not newer:
        return None
    text = f"{newer[0]} was installed after slurmctld read it"
    return Check("tables", "warn", text, f"touch {script}, or restart slurmctld")
