"""For the report of a test that failed: which daemons of its sandbox have ended by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from jobs_support import Live

from cli.sandbox.cluster import Sandbox
from cli.sandbox.ended import Core

TITLE = "daemons that ended by themselves"
MAX_FRAMES = 40


def sandboxes(values: Iterable[object]) -> list[Sandbox]:
    """The sandboxes among a test's fixtures, each once."""
    found = [value.sandbox if isinstance(value, Live) else value for value in values]
    return list({id(one): one for one in found if isinstance(one, Sandbox)}.values())


def backtrace(core: Core) -> str:
    """Of the thread that ended the process; "" without gdb or the program."""
    gdb, program = shutil.which("gdb"), shutil.which(core.program)
    if gdb is None or program is None:
        return ""
    words = [gdb, "-batch", "-nx", "-ex", f"bt {MAX_FRAMES}", program, str(core.path)]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            env={**os.environ, "DEBUGINFOD_URLS": ""},  # it would ask the network
        )
    except subprocess.TimeoutExpired:
        return ""
    frames = [line for line in done.stdout.splitlines() if line.startswith("#")]
    return "\n".join(dict.fromkeys(frames))  # gdb shows the first one twice


def report(clusters: Iterable[Sandbox]) -> str:
    """What is known of each such daemon, with backtraces of their cores; "" if all run."""
    parts = []
    for cluster in clusters:
        if words := cluster.last_words():
            parts += [words, *(backtrace(core) for core in cluster.cores())]
    return "\n".join(part for part in parts if part)
