"""`qgpu run --start`: a private arbiter and qgpud for one command, where none runs.

They are isolated: two such commands on one card share it without governing each other. For more
than one program start qgpud and qgpu-arbiter once and leave --start out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from cli.daemon import node_name
from cli.program import python
from cli.run.command import NOT_STARTED, become, fail
from cli.run.directory import private_directory
from enforcer.fdwait import readable_within, ready
from enforcer.nvml.driver import PynvmlNvml
from enforcer.nvml.port import NvmlError
from gres.config.site import Config, ConfigError, load_config
from gres.paths import PATHS
from gres.units import Duration

READY_S = 20.0  # seconds until both daemons serve; they need less than one
PR_SET_PDEATHSIG = 1
SI_KERNEL = 0x80  # the terminal sent it to the whole process group: the command has it already
FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
}
INSTALLED = {"arbiter": PATHS.arbiter, "shim": PATHS.shim}
SIM_DIR = "/var/lib/qgpu-sim"  # SIM_DEFAULT_DIR of sim_proto.h: where qgpu-simulator has its cards
BUILT = {"arbiter": "bin/qgpu-arbiter", "shim": "shim/libcuda.so.1"}


class StartError(RuntimeError):
    """A part did not start; the text is a sentence."""


def find_part(name: str) -> str:
    """Path of an installed part, or of one that was built in this checkout. Raises StartError."""
    built = Path(__file__).resolve().parents[2] / "build" / BUILT[name]
    for path in (Path(INSTALLED[name]), built):
        if path.is_file():
            return str(path)
    raise StartError(
        f"neither {INSTALLED[name]} nor {built} is there; install qgpu, or say 'make native'"
    )


def device_files(minors: list[int]) -> str:
    """Device files of the cards as a bracket list; simulated cards have theirs in QGPU_SIM_DIR, or
    where their package (qgpu-simulator) puts them.
    """
    simulated = os.environ.get("QGPU_SIM_DIR") or (SIM_DIR if Path(SIM_DIR, "dev").is_dir() else "")
    if not simulated:
        return f"/dev/nvidia[{','.join(map(str, minors))}]"
    # Named by their places, because the minor numbers of a sandbox do not begin at 0.
    prefix = f"{simulated}/dev/qgpusim"
    files = Path(simulated, "dev").glob("qgpusim[0-9]*")
    places = {os.minor(file.stat().st_rdev): file.name.removeprefix("qgpusim") for file in files}
    return f"{prefix}[{','.join(places.get(minor, str(minor)) for minor in minors)}]"


def config_text(directory: Path) -> str:
    """A qgpu.yaml for the cards of this machine. Raises NvmlError, StartError."""
    nvml = PynvmlNvml()
    cards = nvml.cards()
    nvml.close()
    if not cards:
        raise StartError("the driver sees no card on this machine; nvidia-smi -L lists them")
    if any(card.instance for card in cards):
        raise StartError(
            "this machine has MIG instances: write qgpu.yaml (qgpu card instances helps), name it"
            " by --config"
        )
    memory = min(card.mem_total for card in cards) >> 20
    files = device_files([card.minor for card in cards])
    return (
        f"version: 1\ncluster: local\nrun_dir: {directory}/run\nstate_dir: {directory}/state\n"
        f"shim: {find_part('shim')}\nqos: {{}}\ndefault_class: offline\n"
        f"models: {{card: {{memory: {memory}MiB, reserve: 512MiB}}}}\n"
        f'nodes: [{{names: local, model: card, count: {len(cards)}, files: "{files}"}}]\n'
        f"enforcer: {{arbiter: {find_part('arbiter')}}}\n"
    )


def _private_config(given: str | None, node: str | None, directory: Path) -> tuple[Path, str]:
    """The configuration to use, and the node's name in it; its directories are always ours."""
    if given is None:
        path = directory / "qgpu.yaml"
        path.write_text(config_text(directory))
        return path, "local"
    config = load_config(given, trusted=True)
    name = node_name(node, config)
    data = load_config(given, name)
    enforcer = data.enforcer
    if not Path(enforcer.arbiter).is_file():
        enforcer = enforcer.model_copy(update={"arbiter": find_part("arbiter")})
    ours = {"run_dir": f"{directory}/run", "state_dir": f"{directory}/state", "enforcer": enforcer}
    data = data.model_copy(update=ours)
    path = directory / "qgpu.yaml"
    path.write_text(_yaml(data))
    return path, name


def _yaml(config: Config) -> str:
    import yaml

    text: str = yaml.safe_dump(_plain(config.model_dump(exclude_none=True)), sort_keys=False)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"ns"}:
        return str(Duration(value["ns"]))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _die_with(parent: int) -> None:
    """Have the kernel end this process by SIGKILL if its parent is killed.

    Else the command would go on ungated, since its daemons end. Its own children are not reached.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was killed before
        os._exit(NOT_STARTED)


@contextlib.contextmanager
def _running(command: list[str], log: Path, **extra: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of ours, in a session of its own so that the terminal's signals do not reach it."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=functools.partial(_die_with, os.getpid()),
            **extra,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(
    ready: Callable[[float], bool], process: subprocess.Popen[bytes], log: Path, what: str
) -> None:
    if not ready(READY_S) or process.poll() is not None:
        last = log.read_text(errors="replace").strip().split("\n")[-1]
        raise StartError(f"{what} did not start: {last or 'it said nothing'}")


@contextlib.contextmanager
def daemons(config: Path, name: str, directory: Path) -> Iterator[str]:
    """Both daemons, ready; gives their run_dir. Raises StartError."""
    settings = load_config(config, name)
    (directory / "run").mkdir(mode=0o755, exist_ok=True)
    with contextlib.ExitStack() as stack:
        reader, writer = os.pipe()
        command = [
            settings.enforcer.arbiter,
            "--run-dir",
            settings.run_dir,
            "--ready-fd",
            str(writer),
        ]
        log = directory / "arbiter.log"
        arbiter = stack.enter_context(_running(command, log, pass_fds=[writer]))
        os.close(writer)
        stack.callback(os.close, reader)
        _await(
            lambda s: readable_within(reader, s) and os.read(reader, 16) != b"",
            arbiter,
            log,
            "qgpu-arbiter",
        )
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.bind(str(directory / "notify"))
        command = [*python(), "-m", "enforcer.daemon.main", "--config", str(config), "--node", name]
        env = os.environ | {"NOTIFY_SOCKET": str(directory / "notify")}
        log = directory / "qgpud.log"
        qgpud = stack.enter_context(_running(command, log, env=env))
        _await(lambda s: _ready(notify, qgpud, s), qgpud, log, "qgpud")
        yield settings.run_dir


def _ready(notify: socket.socket, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """READY=1 from qgpud, or its end."""
    ended = os.pidfd_open(process.pid)
    try:
        found = ready([notify.fileno(), ended], seconds)
    finally:
        os.close(ended)
    return notify.fileno() in found and notify.recv(1000).startswith(b"READY=1")


def _wait(child: int) -> int:
    """Pass signals on until the child ended; its wait status."""
    while True:
        info = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
        if info.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
        elif info.si_code != SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, info.si_signo)


def _end_as(status: int) -> NoReturn:
    """End as the command did: with its exit status, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def run_private(
    given: str | None, node: str | None, question: dict[str, Any], command: tuple[str, ...]
) -> NoReturn:
    """Start both daemons, run the command under them, end them, and end as the command did."""
    if os.geteuid() != 0:
        fail(
            "--start is for root: what it starts decides what programs may do. Ask qgpud without"
            " --start"
        )
    try:
        with private_directory() as directory:
            path, name = _private_config(given, node, directory)
            with daemons(path, name, directory) as run_dir:
                status = _child(run_dir, question, command)
    except (StartError, NvmlError, ConfigError, OSError) as error:
        fail(str(error))
    _end_as(status)


def _child(run_dir: str, question: dict[str, Any], command: tuple[str, ...]) -> int:
    old = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _die_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, old)
            become(run_dir, question, command)
        except SystemExit as error:
            sys.stderr.flush()
            os._exit(error.code if isinstance(error.code, int) else NOT_STARTED)
        except BaseException:  # whatever it is, the child must not go on as a second parent
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(NOT_STARTED)
    try:
        return _wait(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
