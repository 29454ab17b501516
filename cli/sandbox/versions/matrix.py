"""The live suite on each version of Slurm: `make test-matrix`.

Each version runs in its tree (tree.py), the machine's own without one. The result names the exact
version. A version that cannot be obtained is reported as *not run* with the reason, never as
passed. Sandboxes with Slurm 24.11 and later have cgroups version 2, where the machine has it.
Results go to build/matrix.json. `--again` is for shared machines that stall at times: failed tests
run once more, alone, and the result notes it.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import click

from cli.sandbox import cgroups, services
from cli.sandbox.errors import SandboxError
from cli.sandbox.options import CGROUP_VARIABLE
from cli.sandbox.versions import tree

# What depends on the version of Slurm: the live suite, SPANK built against its headers, its Lua.
SUITE = (
    "tests/slurm",
    "tests/native/slurm/test_spank_plugin.py",
    "tests/native/slurm/test_hook_client.py",
)
# Where the time is short: what has differed from one version of Slurm to the next.
SUBSET = (
    "tests/slurm/sandbox/test_surface.py",
    "tests/slurm/jobs/test_jobs_placement.py",
    "tests/slurm/node/test_several_cards.py",
    "tests/slurm/node/test_mig.py",
    "tests/slurm/node/test_native_gres.py",
    "tests/slurm/jobs/test_api_clients.py",
    "tests/slurm/jobs/test_long_texts.py",
    "tests/slurm/node/test_spank_options.py",
    "tests/slurm/node/test_plugin_stale.py",
    "tests/slurm/jobs/test_jobs_queued_before.py",
    "tests/native/slurm/test_spank_plugin.py",
    "tests/native/slurm/test_hook_client.py",
)
RESULT = tree.CHECKOUT / "build/matrix.json"
FIRST_V2 = "24.11"  # older ones keep cgroups version 1, so that both are tried
AT_A_TIME = ("-n", "2", "--dist", "loadfile")  # each worker has a sandbox of its own
CACHE = "cache_dir=build/.pytest_cache"  # in a tree `build` is that version's own
FAILED = ("--last-failed", "--last-failed-no-failures=none")
NEEDED, NEEDED_SUBSET = (
    12 * 60,
    7 * 60,
)  # seconds for one version, its tree included (docs/sandbox.md)


@dataclass(frozen=True)
class Result:
    """What one version did. `exact` is the package version; `outcome` passed, failed or not run."""

    version: str
    exact: str
    outcome: str
    seconds: int
    said: str
    cgroup: str = ""  # the version asked for

    def line(self) -> str:
        """The result as one line of text."""
        return (
            f"Slurm {self.version:<6} {self.exact or '-':<14} cgroup {self.cgroup or '-':<5}"
            f" {self.outcome:<8} {self.seconds:>4} s  {self.said}"
        )


def cgroup_for(version: str) -> cgroups.Choice:
    """What its sandboxes are asked to have: version 2 from FIRST_V2 on, where it is mounted."""
    return "v2" if version >= FIRST_V2 and cgroups.unified() is not None else "auto"


def run(
    version: str,
    arguments: Sequence[str],
    again: bool = False,
    suite: Sequence[str] = SUITE,
    cgroup: cgroups.Choice | None = None,
) -> Result:
    """Run the suite on one version; its output goes to this program's."""
    begin = time.monotonic()
    wanted = cgroup or cgroup_for(version)

    def done(exact: str, outcome: str, said: str) -> Result:
        return Result(version, exact, outcome, round(time.monotonic() - begin), said, wanted)

    pytest = ["env", f"{CGROUP_VARIABLE}={wanted}", ".venv/bin/python", "-m", "pytest"]
    pytest += ["-q", "-o", CACHE, *suite]
    try:
        exact = _obtain(version)
    except SandboxError as error:
        return done("", "not run", str(error))
    try:
        _prepare(version)
    except SandboxError as error:
        return done(exact, "failed", str(error))
    print(f"--- Slurm {version} ({exact}), cgroup {wanted}", flush=True)
    said, status = _tee(_argv(version, [*pytest, *AT_A_TIME, *arguments]))
    if status == 1 and again:
        print(f"--- Slurm {version}: what failed is run once more, alone", flush=True)
        more, status = _tee(_argv(version, [*pytest, *arguments, *FAILED]))
        said = f"{said}; those that failed once more, alone: {more}"
    said = said if suite is SUITE else f"{said} (subset)"
    return done(exact, "passed" if status == 0 else "failed", said)


def _obtain(version: str) -> str:
    """Exact version of what is there now, a tree if need be. SandboxError when it cannot be had."""
    if version == tree.here():
        return services.slurm_version()
    return tree.exact(tree.ensure(version, print))


def _prepare(version: str) -> None:
    """Build what the suite needs. SandboxError when the product does not build for that version."""
    if version != tree.here():
        tree.run_make(version, "native-live")


def _argv(version: str, command: list[str]) -> list[str]:
    """The words that run a command of the checkout with that version."""
    return command if version == tree.here() else tree.command(version, command)


def _tee(argv: Sequence[str]) -> tuple[str, int]:
    """Run a program, pass its output on, and keep its last line."""
    last = ""
    with subprocess.Popen(
        argv, cwd=tree.CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return re.sub(r"^=+ | =+$", "", last), child.returncode


def choose(left: float, others: int) -> Sequence[str]:
    """What is run in `left` seconds when `others` versions follow: all, the subset, or nothing."""
    if left - NEEDED >= NEEDED_SUBSET * others:
        return SUITE
    return SUBSET if left >= NEEDED_SUBSET else ()


def run_all(
    versions: Sequence[str],
    arguments: Sequence[str],
    again: bool,
    seconds: float | None,
    cgroup: cgroups.Choice | None = None,
) -> list[Result]:
    """One after the other; what does not fit into the time is not begun."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    results = []
    for number, version in enumerate(versions, 1):
        left = end - time.monotonic()
        suite = choose(left, len(versions) - number)
        if not suite:
            why = f"{max(left, 0):.0f} s of the time were left, the subset needs {NEEDED_SUBSET} s"
            results.append(Result(version, "", "not run", 0, why))
            continue
        results.append(run(version, arguments, again, suite, cgroup))
    return results


@click.command()
@click.option(
    "--slurm",
    "versions",
    multiple=True,
    type=click.Choice(sorted(tree.RELEASES)),
    help="Only this version; repeatable.",
)
@click.option("--others", is_flag=True, help="Only versions other than the machine's own.")
@click.option("--again", is_flag=True, help="Run what failed once more, alone.")
@click.option("--seconds", type=float, help="Begin no version that would not end within that time.")
@click.option(
    "--cgroup",
    type=click.Choice(get_args(cgroups.Choice)),
    help=f"Version of cgroups for all; without it 2 for Slurm {FIRST_V2} and later.",
)
@click.argument("arguments", nargs=-1)
def main(
    versions: tuple[str, ...],
    others: bool,
    again: bool,
    seconds: float | None,
    cgroup: cgroups.Choice | None,
    arguments: tuple[str, ...],
) -> None:
    """Run the live suite on each version of Slurm; ARGUMENTS go to pytest."""
    os.chdir(tree.CHECKOUT)
    wanted = versions or tuple(
        name for name in sorted(tree.RELEASES) if not others or name != tree.here()
    )
    results = run_all(wanted, arguments, again, seconds, cgroup)
    Path(RESULT).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    for result in results:
        click.echo(result.line())
    sys.exit(1 if any(result.outcome == "failed" for result in results) else 0)


if __name__ == "__main__":
    main()
