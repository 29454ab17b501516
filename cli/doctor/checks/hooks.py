"""Checks of Prolog and Epilog: whether a script that slurmd can run reports jobs to qgpud."""

from __future__ import annotations

import shlex
from pathlib import Path

from cli.doctor.checks import site
from cli.doctor.files import conf, setting
from cli.doctor.known import NO_SLURM, Known
from cli.doctor.result import RESTART_ALL, Check
from slurm_plugin.site.sources import Disk

# words of the shell within which an exit may be passed by
OPEN, CLOSE = {"if", "case", "for", "while", "until", "select", "{"}, {"fi", "esac", "done", "}"}
VERBS = {"Prolog": "prolog", "Epilog": "epilog"}


def hooks(known: Known) -> Check:
    """Whether Prolog and Epilog report jobs to qgpud."""
    if not known.has_slurm:
        return Check("hooks", "ok", NO_SLURM)
    client = known.need.hook.client
    if fault := client_fault(known, client):
        return Check("hooks", "fail", f"{client} {fault[0]}", fault[1])
    for key in VERBS:
        found = _hook(known, key, client)
        if found is not None:
            return found
    return _timeout(known) or Check("hooks", "ok", f"Prolog and Epilog call {client}")


def client_fault(known: Known, client: str) -> tuple[str, str] | None:
    """Why slurmd cannot run that program, and what to do; None if it can."""
    if doubt := known.host.distrust(client):
        return f"is not safe: {doubt}", doubt.todo
    try:
        info = Path(client).stat()
    except OSError:
        return "is not there", "install qgpu-node again, or correct hook.client in qgpu.yaml"
    return None if info.st_mode & 0o111 else ("is not executable", f"chmod 0755 {client}")


def scripts_of(known: Known, key: str) -> list[str]:
    """The files of Prolog or Epilog: several values and patterns are possible."""
    values = [
        value
        for name, value in sorted(known.effective.items())
        if name.partition("[")[0] == key.lower()
    ]
    if not any(values):
        values = [value.value for value in conf(known).all(key)]
    found: list[str] = []
    for value in values:
        found += Disk().glob(value) if any(char in value for char in "*?[") else [value]
    return [path for path in found if path]


def _hook(known: Known, key: str, client: str) -> Check | None:
    scripts, ours = scripts_of(known, key), site.site_of(known).places.fragment(VERBS[key])
    if not scripts:
        todo = site.settle(known, key, RESTART_ALL)
        return Check("hooks", "fail", f"slurm.conf sets no {key}", todo)
    line_ = f"{client} {VERBS[key]} --run-dir {(known.raw or known.need).run_dir}"
    todo = site.again(known, ours) if ours in scripts else f"write in {scripts[0]}: {line_}"
    called = [(script, line) for script in scripts for line in _calls(known, script, client)]
    if not called:
        unread = [script for script in scripts if known.host.read(script, known.slurm_uid) is None]
        text = (
            f"{unread[0]} cannot be read"
            if unread
            else f"{key} ({scripts[0]}) does not call {client} before it ends"
        )
        return Check("hooks", "fail", text, todo)
    script, line = called[0]
    if why := _unrunnable(known, script):
        again = todo if ours in scripts else why[1]
        return Check("hooks", "fail", f"{script} {why[0]}: each job drains the node", again)
    if not Path(script).stat().st_mode & 0o111:
        text = f"{script} is not executable: each job drains the node"
        return Check("hooks", "fail", text, f"chmod 0755 {script}")
    if VERBS[key] not in line:
        return Check("hooks", "fail", f"{script} does not call the client for '{VERBS[key]}'", todo)
    return _run_dir(known, script, line, todo)


def _calls(known: Known, script: str, client: str) -> list[list[str]]:
    """The command lines of a script that run the client."""
    text = (known.host.read(script, known.slurm_uid) or "").replace("\\\n", " ")
    found, depth = [], 0
    for line in text.split("\n"):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        if client in words and words[0] not in ("[", "test"):
            found.append(words[words.index(client) :])
        elif depth == 0 and words and _ends(words):
            break
        depth += sum((word in OPEN) - (word.rstrip(";") in CLOSE) for word in words)
    return found


def _ends(words: list[str]) -> bool:
    """Whether the shell reads no line after this one; `exec` with redirections alone goes on."""
    program = words[1:2] and words[1][0] not in "<>&0123456789"
    return words[0].rstrip(";") == "exit" or (words[0] == "exec" and bool(program))


def _unrunnable(known: Known, script: str) -> tuple[str, str] | None:
    """Why the kernel does not run a script that its mode lets run, and what to do."""
    first = (known.host.read(script, known.slurm_uid) or "").partition("\n")[0]
    program = first.removeprefix("#!").split()
    if not first.startswith("#!") or not program:
        return "has no interpreter in line 1", f"write #!/bin/sh as line 1 of {script}"
    if first.endswith("\r"):
        return "has the line ends of DOS", f"sed -i 's/\\r$//' {script}"
    if not Path(program[0]).exists():
        why = f"is for {program[0]}, which is not there"
        return why, f"install it, or correct line 1 of {script}"
    return None


def _run_dir(known: Known, script: str, line: list[str], todo: str) -> Check | None:
    told = line[line.index("--run-dir") + 1] if "--run-dir" in line[:-1] else None
    if told is not None and told not in known.run_dirs:
        text = (
            f"{script} asks at {told}, qgpud of qgpu.yaml is at {known.run_dir}: each job drains"
            " the node"
        )
        return Check("hooks", "fail", text, todo)
    return None


def _timeout(known: Known) -> Check | None:
    """slurmd kills a Prolog that is slower than PrologEpilogTimeout, and drains the node."""
    told = setting(known, "PrologEpilogTimeout").partition(" ")[0]
    deadline = known.need.prolog_deadline.seconds
    if not told.isdigit() or not 0 < int(told) <= deadline:
        return None
    text = f"PrologEpilogTimeout is {told} s, but a Prolog may wait {deadline:.0f} s for qgpud"
    todo = site.settle(known, "PrologEpilogTimeout", "scontrol reconfigure")
    return Check("hooks", "fail", text, todo)
