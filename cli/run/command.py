"""`qgpu run`: a program under a grant, without Slurm."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from cli.daemon import config_option, find_daemon, node_option
from cli.output import say
from enforcer.daemon.requests.protocol import AskError, ask
from enforcer.wire.abi import ENV_GRANT, ENV_GRANT_FD
from gres.units import MAX_BYTES, MIB, TooLargeError, UnitError, format_mib, parse_size

FIRST_FD = 100  # out of the way of programs that expect 3, 4, 5
# ignored here; the command would inherit it, and `yes | head` never end
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
NOT_STARTED = 125  # as env(1) and timeout(1): the command itself was never tried


def preload(shim: str, old: str) -> str:
    """LD_PRELOAD with the shim in front, once, and the job's NVML where it lies beside it."""
    nvml = Path(shim).with_name("libnvidia-ml.so.1")
    rest = [
        entry
        for entry in old.replace(" ", ":").split(":")
        if entry and entry not in (shim, str(nvml))
    ]
    return ":".join([shim, *([str(nvml)] if nvml.exists() else []), *rest])


def environment(answer: dict[str, Any], fd: int, old: dict[str, str]) -> dict[str, str]:
    """What SPANK sets in a task, and the one card that the program sees."""
    return old | {
        ENV_GRANT_FD: str(fd),
        ENV_GRANT: str(answer["path"]),
        "LD_PRELOAD": preload(str(answer["shim"]), old.get("LD_PRELOAD", "")),
        "CUDA_VISIBLE_DEVICES": str(answer["uuid"]),
    }


def fail(text: str, status: int = NOT_STARTED) -> NoReturn:
    """Print why the command was not started, and end."""
    say("run", text)
    sys.exit(status)


def inherited(fd: int) -> int:
    """The descriptor without close-on-exec: the command inherits it. High, where the limit of open
    files allows.
    """
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FD)
    except OSError:
        os.set_inheritable(fd, True)
        return fd
    os.close(fd)
    return high


def become(run_dir: str, question: dict[str, Any], command: tuple[str, ...]) -> NoReturn:
    """Ask for the grant and become the command: same process, so signals and exit status are its
    own.
    """
    if not command[0]:
        fail("the command is empty; write for example -- ./train.py", 127)
    try:
        answer, fds = ask(run_dir, {"op": "run", **question})
    except AskError as error:
        fail(str(error))
    if len(fds) != 1:
        fail("qgpud sent no grant along; is it of another version?")
    execute(command, environment(answer, inherited(fds[0]), dict(os.environ)))


def execute(command: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """Become the command as env(1) does: a script without a first line is the shell's."""
    for number in PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, env)
    except FileNotFoundError:
        fail(f"{command[0]}: there is no such program", 127)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            os.execve(
                "/bin/sh", ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]], env
            )
        fail(f"{command[0]}: {error.strerror}", 126)


def mib_of(text: str | None) -> int | None:
    """MiB of --mem. A sentence where it cannot be read."""
    if text is None:
        return None
    try:
        size = parse_size(text)
    except TooLargeError as error:
        fail(
            f"--mem: {error}, the limit is {format_mib(MAX_BYTES // MIB)}; write for example --mem"
            " 8G"
        )
    except UnitError as error:
        fail(f"--mem: {error}")
    if size < 1 << 20:
        fail(
            f"--mem {text} is less than 1M; a number without a unit counts bytes, write for example"
            " --mem 8G"
        )
    return size >> 20


class RunCommand(click.Command):
    """As env(1): whatever is wrong before the command starts ends with NOT_STARTED, never with a
    status of its own.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Read the command line."""
        with _not_started():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        with _not_started():
            return super().invoke(ctx)


@contextlib.contextmanager
def _not_started() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.show()
        sys.exit(NOT_STARTED)
    except (KeyboardInterrupt, click.Abort):
        fail("interrupted before the command was started")


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--share", type=int, default=100, show_default=True, help="Percent of the card's compute."
)
@click.option(
    "--class",
    "job_class",
    type=click.Choice(["online", "offline"]),
    default="offline",
    show_default=True,
    help="Whether it owns the card when it has work, or takes what is left.",
)
@click.option("--mem", help="Memory cap, such as 8G. Default: the share of the card's memory.")
@click.option(
    "--card", "card_name", help="Index or UUID. Default: the card with the most memory left."
)
@click.option(
    "--start", is_flag=True, help="Start an arbiter and a qgpud for this command alone (root)."
)
@config_option
@node_option
@click.argument("command", metavar="-- COMMAND [ARG]...", nargs=-1, required=True)
@click.pass_context
def run(
    ctx: click.Context,
    share: int,
    job_class: str,
    mem: str | None,
    card_name: str | None,
    start: bool,
    config_path: str,
    node: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with a share of a card, without Slurm.

    Allowed for root and for run.allow_users and run.allow_groups in qgpu.yaml. The exit status is
    COMMAND's; 125 if it was not started.
    """
    question = {"share": share, "class": job_class, "mem": mib_of(mem), "card": card_name}
    if start:
        from cli.run.private import run_private

        given = ctx.get_parameter_source("config_path") != click.core.ParameterSource.DEFAULT
        run_private(config_path if given else None, node, question, command)
    become(find_daemon(config_path, node).run_dir, question, command)
