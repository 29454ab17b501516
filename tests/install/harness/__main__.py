"""`make test-install`: qgpu's packages on hosts with a real systemd, for each suite of Debian.

Trees and packages are made first; then pytest runs in a network and mount namespace of its own, so
nothing of what it makes is seen outside and nothing stays. A suite that cannot be had here is
reported as *not run*, with the reason.

`--again` is for shared machines that stall now and then: a suite that failed is run once more as a
whole, where the time is left, and the result says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from harness import machine, packages, page, trees

STATE = Path("/var/lib/qgpu-install")
NEEDED = 15 * 60  # seconds for one suite, its tree and packages included
_TESTS = ["-m", "pytest", "-m", "install", "-p", "no:cacheprovider", "-v", "--durations=10"]
_TESTS += ["--timeout=900", "tests/install"]
# All that the tests start ends with them, however they end.
_ENTER = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--net", "--pid", "--fork"]
_ENTER += ["--kill-child=KILL", "--mount-proc", "--propagation", "private", "--"]


def clear() -> None:
    """Remove what a run that was killed has left on the disk and of control groups."""
    for state in STATE.glob("*-*"):
        if not Path("/proc", state.name.rpartition("-")[2]).exists():
            for group in machine.CGROUPS.glob(f"**/{machine.GROUP}{state.name}-*"):
                machine.removed(group)
            shutil.rmtree(state, ignore_errors=True)


def run(suite: str, arguments: Sequence[str]) -> tuple[str, str]:
    """What came out (passed, failed or not run) and what there is to say about it."""
    try:
        trees.need()
        clear()
        tree = trees.tree(suite)
        first, second = (packages.built(suite, revision, _build_command()) for revision in (1, 2))
    except trees.Unavailable as error:
        return "not run", str(error)
    except RuntimeError as error:
        return "failed", str(error)
    environment = {**os.environ, "QGPU_INSTALL_SUITE": suite, "QGPU_INSTALL_TREE": str(tree)}
    environment["QGPU_INSTALL_STATE"] = str(STATE / f"{suite}-{os.getpid()}")
    environment |= {"QGPU_INSTALL_PACKAGES": str(first), "QGPU_INSTALL_UPDATE": str(second)}
    argv = [*_ENTER, sys.executable, *_TESTS, *arguments]
    print(f"--- Debian {trees.SUITES[suite]} ({suite})", flush=True)
    last = ""
    with subprocess.Popen(
        argv,
        cwd=trees.CHECKOUT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return "passed" if child.returncode == 0 else "failed", re.sub(r"^=+ | =+$", "", last)


def attempt(suite: str, arguments: Sequence[str], again: bool, end: float) -> tuple[str, str]:
    """`run`, and once more if that failed and another run ends before `end` (of
    time.monotonic()).
    """
    outcome, said = run(suite, arguments)
    if outcome != "failed" or not again or end - time.monotonic() < NEEDED:
        return outcome, said
    print(
        f"--- Debian {trees.SUITES[suite]} ({suite}): {said}; it is run once more, as a whole",
        flush=True,
    )
    outcome, more = run(suite, arguments)
    return outcome, f"{said}; once more: {more}"


def _build_command() -> str:
    """What docs/install.md says on a build host."""
    (block,) = (block for block in page.blocks() if block.on == "build")
    (command,) = block.commands()
    return command


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--suites", default=" ".join(trees.SUITES), help="Debian's names, with spaces between."
)
@click.option(
    "--seconds", type=float, default=float("inf"), help="Begin no suite that would take longer."
)
@click.option(
    "--again", is_flag=True, help="Run a suite that failed once more, if the time is left."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(suites: str, seconds: float, again: bool, arguments: tuple[str, ...]) -> None:
    """Run the tests of the packages; ARGUMENTS are pytest's."""
    end, results = time.monotonic() + seconds, []
    for suite in suites.split():
        if suite not in trees.SUITES:
            raise click.UsageError(
                f"'{suite}' is no suite of these tests: choose of {', '.join(trees.SUITES)}"
            )
        start = time.monotonic()
        outcome, said = "not run", f"{end - start:.0f} s are left"
        if end - start >= NEEDED:
            outcome, said = attempt(suite, arguments, again, end)
        results.append((suite, outcome, time.monotonic() - start, said))
    print("--- packages under systemd")
    for suite, outcome, took, said in results:
        print(f"Debian {trees.SUITES[suite]:<3} {suite:<9} {outcome:<8} {took:>5.0f} s  {said}")
    sys.exit(any(outcome == "failed" for _, outcome, _, _ in results))


if __name__ == "__main__":
    main()
