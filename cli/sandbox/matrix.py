"""The live suite on every version of Slurm: `make test-matrix`.

Each version runs in its tree (tree.py); the machine's own without one. The result names the exact version. One that
cannot be had is reported as *not run*, with the reason, and never as passed. Results go to build/matrix.json.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from cli.sandbox import services, tree
from cli.sandbox.errors import SandboxError

# What depends on the version of Slurm: the live suite, SPANK built against its headers, its Lua.
SUITE = ("tests/slurm", "tests/native/test_spank_plugin.py", "tests/native/test_hook_client.py")
RESULT = tree.CHECKOUT / "build/matrix.json"


@dataclass(frozen=True)
class Result:
    """What one version did. `exact` is the package version; `outcome` passed, failed or not run."""

    version: str
    exact: str
    outcome: str
    seconds: int
    said: str

    def line(self) -> str:
        """The result as one line of text."""
        return f"Slurm {self.version:<6} {self.exact or '-':<14} {self.outcome:<8} {self.seconds:>4} s  {self.said}"


def run(version: str, arguments: Sequence[str]) -> Result:
    """Run the suite on one version; its output goes to this program's."""
    begin = time.monotonic()

    def done(exact: str, outcome: str, said: str) -> Result:
        return Result(version, exact, outcome, round(time.monotonic() - begin), said)

    pytest = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE, *arguments]
    try:
        exact = _obtain(version)
    except SandboxError as error:
        return done("", "not run", str(error))
    try:
        argv = _prepared(version, pytest)
    except SandboxError as error:
        return done(exact, "failed", str(error))
    print(f"--- Slurm {version} ({exact})", flush=True)
    said, status = _tee(argv)
    return done(exact, "passed" if status == 0 else "failed", said)


def _obtain(version: str) -> str:
    """Exact version of what is there now, a tree if need be. SandboxError when it cannot be had."""
    if version == tree.here():
        return services.slurm_version()
    return tree.exact(tree.ensure(version, print))


def _prepared(version: str, pytest: list[str]) -> list[str]:
    """The words that run the suite on that version. SandboxError when the product does not build for it."""
    if version == tree.here():
        return pytest
    tree.run_make(version, "native")
    return tree.command(version, pytest)


def _tee(argv: Sequence[str]) -> tuple[str, int]:
    """Run a program, pass its output on, and keep its last line."""
    last = ""
    with subprocess.Popen(
        argv, cwd=tree.CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            sys.stdout.write(line)
            last = line.strip() or last
    return re.sub(r"^=+ | =+$", "", last), child.returncode


@click.command()
@click.option(
    "--slurm",
    "versions",
    multiple=True,
    type=click.Choice(sorted(tree.RELEASES)),
    help="Only this version; repeatable.",
)
@click.argument("arguments", nargs=-1)
def main(versions: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Run the live suite on each version of Slurm; ARGUMENTS go to pytest."""
    os.chdir(tree.CHECKOUT)
    results = [run(version, arguments) for version in versions or tuple(sorted(tree.RELEASES))]
    Path(RESULT).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    for result in results:
        click.echo(result.line())
    sys.exit(1 if any(result.outcome == "failed" for result in results) else 0)


if __name__ == "__main__":
    main()
