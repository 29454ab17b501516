"""A node without slurmd: real qgpud, arbiter, shim and simulated cards; the test plays Slurm."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.main import main
from enforcer.daemon.injecting.elf import without
from enforcer.ledger.store import read_usage
from enforcer.wire.link import ArbiterLink, TenantStats

for module in (
    "cli.live.card",
    "cli.doctor.command",
    "cli.run.command",
    "pynvml",
):  # before users run them who cannot read this checkout
    importlib.import_module(module)

BUILD = Path(__file__).parents[3] / "build"
PARTS = [
    "bin/qgpu-hook",
    "bin/qgpu-arbiter",
    "bin/qgpu-simgpu",
    "bin/qgpu-workload",
    "lib/qgpu_spank.so",
]
USER = 65534
MIB = 1 << 20


class Chain:
    """A node without slurmd: the test runs the hooks, and the stage plays slurmstepd. `sim`:
    more words for the simulator; `within`: a command that runs the daemons, as unshare does;
    `lacks`: functions that the driver does not have.
    """

    def __init__(
        self,
        directory: Path,
        stack: contextlib.ExitStack,
        more: str = "",
        mig: int = 0,
        sim: Sequence[str] = (),
        within: Sequence[str] = (),
        lacks: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.within = list(within)
        self._stack = stack
        for name in ("run", "sim"):
            (directory / name).mkdir(mode=0o755)
        # Jobs of another user must be able to load what is built, wherever the checkout is.
        for part in (
            *PARTS,
            "sim/libcuda.so.1",
            "sim/libnvidia-ml.so.1",
            "shim/libcuda.so.1",
            "test/spank_stage",
        ):
            copy = directory / "opt" / part
            copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            copy.write_bytes((BUILD / part).read_bytes())
            copy.chmod(0o755)
        self.opt = directory / "opt"
        if lacks:
            driver = self.opt / "sim/libcuda.so.1"
            driver.write_bytes(without(driver.read_bytes(), set(lacks)))
        self.config = directory / "qgpu.yaml"
        dev = f"{directory}/sim/dev/qgpusim"
        cards = [f"{dev}-card{i // mig},{dev}-gi{i},{dev}{i}" for i in range(2)] if mig else []
        named = f"instances: {cards}" if mig else f'files: "{dev}[0-1]"'
        self.config.write_text(
            f"version: 1\ncluster: t\nrun_dir: {directory}/run\nstate_dir: {directory}/state\n"
            f"driver: {{libcuda: {self.opt}/sim/libcuda.so.1, "
            f"nvml: {self.opt}/sim/libnvidia-ml.so.1}}\n"
            f"shim: {self.opt}/shim/libcuda.so.1\ndefault_class: offline\n"
            "models: {h200: {memory: 80GiB, reserve: 2GiB, context: 300}}\n"
            "enforcer: {ledger_interval: 200ms}\n"
            f"nodes: [{{names: n1, model: h200, count: 2, {named}}}]\n{more}"
        )
        cut = ["--mig", str(mig)] if mig else []
        self.ready(
            "bin/qgpu-simgpu",
            "--dir",
            f"{directory}/sim",
            "--node",
            "n1",
            "--cards",
            "2",
            *cut,
            *sim,
        )
        self.arbiter = self.ready("bin/qgpu-arbiter", "--run-dir", f"{directory}/run")
        self.start_qgpud()

    def ready(self, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        command = [*self.within, str(self.opt / part), *arguments, "--ready-fd", str(writer)]
        process = subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.read(1), f"{part} ended before it was ready"
        return process

    def start_qgpud(self) -> None:
        log = (self.directory / "qgpud.log").open("a")
        command = [*self.within, sys.executable, "-m", "enforcer.daemon.main", "--node", "n1"]
        command += ["--config", str(self.config)]
        env = os.environ | {"QGPU_SIM_DIR": f"{self.directory}/sim"}
        self.qgpud = subprocess.Popen(command, env=env, stderr=log)
        self._stack.callback(_end, self.qgpud)

    def hook(self, kind: str, job: int, tag: str = "", gpus: str = "0") -> int:
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(USER), "SLURM_JOB_GID": str(USER)}
        env |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": gpus, "SLURM_JOB_COMMENT": tag}
        command = [str(self.opt / "bin/qgpu-hook"), kind, "--run-dir", f"{self.directory}/run"]
        if kind == "prolog":  # slurmd has the plugin's job prolog run first
            stage = [
                str(self.opt / "test/spank_stage"),
                str(self.opt / "lib/qgpu_spank.so"),
                "prolog",
                str(job),
            ]
            command = [*stage, str(USER), f"run_dir={self.directory}/run", "--", *command]
        return subprocess.run([*command, "--deadline-ms", "10000"], env=env, timeout=30).returncode

    def task(self, job: int, *options: str) -> subprocess.Popen[str]:
        stage = [
            str(self.opt / "test/spank_stage"),
            str(self.opt / "lib/qgpu_spank.so"),
            "remote",
            str(job),
        ]
        work = [str(self.opt / "bin/qgpu-workload"), "--json", *options]
        env = {
            "PATH": "/usr/bin:/bin",
            "SLURMD_NODENAME": "n1",
            "QGPU_SIM_DIR": f"{self.directory}/sim",
        }
        env |= {"LD_LIBRARY_PATH": f"{self.opt}/sim"}
        command = [*stage, str(USER), f"run_dir={self.directory}/run", "--", *work]
        return subprocess.Popen(
            command, env=env, cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def env(self, **more: str) -> dict[str, str]:
        """Environment of a program of this node without qgpu."""
        base = {"PATH": os.environ["PATH"], "QGPU_SIM_DIR": f"{self.directory}/sim"}
        return base | {"LD_LIBRARY_PATH": f"{self.opt}/sim", "QGPU_CONFIG": str(self.config)} | more

    def qgpu(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The qgpu command on this node."""
        command = [sys.executable, "-m", "cli.main", *words]
        pipes = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": self.env(),
        }
        return subprocess.Popen(command, **(pipes | options))

    def said(self, *words: str, **options: Any) -> tuple[int, str, str]:
        """Exit status, output and errors of a qgpu command."""
        process = self.qgpu(*words, **options)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def serving(self) -> None:
        """Wait until qgpud has reached the arbiter and serves."""
        until(lambda: "event=serving" in self.log())
        until(lambda: "event=arbiter-synced" in self.log())

    def log(self) -> str:
        """What qgpud logged."""
        return (self.directory / "qgpud.log").read_text()

    def tenants(self) -> list[TenantStats]:
        """The arbiter's tenants, on a separate connection."""
        with ArbiterLink(f"{self.directory}/run") as link:
            return list(link.stats())

    def usage(self, job: int):
        (row,) = read_usage(self.directory / "state/ledger.sqlite", [job])
        return row


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition; fails the test when it does not come true in time."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true in time"
        time.sleep(0.01)


@contextlib.contextmanager
def chains() -> Iterator[Callable[..., Chain]]:
    """Makes one node, ready to serve, with more lines of qgpu.yaml; ends it."""
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)

        def make(more: str = "", mig: int = 0, **options: Sequence[str]) -> Chain:
            chain = Chain(Path(name), stack, more, mig, **options)
            chain.serving()
            return chain

        yield make


def work(chain: Chain, *options: str) -> list[str]:
    return [str(chain.opt / "bin/qgpu-workload"), "--json", *options]


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    """End a workload and return what it reports. A test ends it when it has seen what it needs: a
    fixed length would be too short on a busy machine. It must have launched something: a signal
    that comes before the program has started kills it.
    """
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def grants(chain: Chain) -> set[str]:
    return {path.name for path in (chain.directory / "run/grants").iterdir()}


def as_nobody(chain: Chain, *words: str, **environment: str) -> tuple[int, str, str]:
    """A qgpu command as another user, who may not be able to read this checkout: forked, not
    executed.
    """
    out, err = os.memfd_create("out"), os.memfd_create("err")
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.chdir("/")
            fresh = chain.env(**environment)
            os.environ.clear()
            os.environ.update(fresh)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            main(list(words), prog_name="qgpu")
        except SystemExit as error:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = [os.pread(fd, 1 << 20, 0).decode() for fd in (out, err)]
    os.close(out)
    os.close(err)
    return code, texts[0], texts[1]
