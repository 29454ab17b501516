"""Hook, qgpud, arbiter, SPANK, shim and simulated card in one chain, without Slurm: from Prolog to ledger."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.ledger import read_usage

BUILD = Path(__file__).parents[2] / "build"
PARTS = ["bin/qgpu-hook", "bin/qgpu-arbiter", "bin/qgpu-simgpu", "bin/qgpu-workload", "lib/qgpu_spank.so"]
USER = 65534
MIB = 1 << 20

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes"),
    pytest.mark.timeout(120),
]


class Chain:
    """A node without slurmd: the test runs the hooks, and the stage plays slurmstepd."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.directory = directory
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
        self.config = directory / "qgpu.yaml"
        self.config.write_text(
            f"version: 1\ncluster: t\nrun_dir: {directory}/run\nstate_dir: {directory}/state\n"
            f"driver: {{libcuda: {self.opt}/sim/libcuda.so.1, nvml: {self.opt}/sim/libnvidia-ml.so.1}}\n"
            f"shim: {self.opt}/shim/libcuda.so.1\ndefault_class: offline\n"
            "models: {h200: {memory: 80GiB, reserve: 2GiB}}\nenforcer: {ledger_interval: 200ms}\n"
            f'nodes: [{{names: n1, model: h200, count: 2, files: "{directory}/sim/dev/qgpusim[0-1]"}}]\n'
        )
        self.ready("bin/qgpu-simgpu", "--dir", f"{directory}/sim", "--node", "n1", "--cards", "2")
        self.arbiter = self.ready("bin/qgpu-arbiter", "--run-dir", f"{directory}/run")
        self.start_qgpud()

    def ready(self, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        command = [str(self.opt / part), *arguments, "--ready-fd", str(writer)]
        process = subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert pipe.read(1), f"{part} ended before it was ready"
        return process

    def start_qgpud(self) -> None:
        log = (self.directory / "qgpud.log").open("a")
        command = [sys.executable, "-m", "enforcer.daemon.main", "--config", str(self.config), "--node", "n1"]
        env = os.environ | {"QGPU_SIM_DIR": f"{self.directory}/sim"}
        self.qgpud = subprocess.Popen(command, env=env, stderr=log)
        self._stack.callback(_end, self.qgpud)

    def hook(self, kind: str, job: int, tag: str = "", gpus: str = "0") -> int:
        env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(USER), "SLURM_JOB_GID": str(USER)}
        env |= {"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": gpus, "SLURM_JOB_COMMENT": tag}
        command = [str(self.opt / "bin/qgpu-hook"), kind, "--run-dir", f"{self.directory}/run"]
        return subprocess.run([*command, "--deadline-ms", "10000"], env=env, timeout=30).returncode

    def task(self, job: int, *options: str) -> subprocess.Popen[str]:
        stage = [str(self.opt / "test/spank_stage"), str(self.opt / "lib/qgpu_spank.so"), "remote", str(job)]
        work = [str(self.opt / "bin/qgpu-workload"), "--json", *options]
        env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n1", "QGPU_SIM_DIR": f"{self.directory}/sim"}
        env |= {"LD_LIBRARY_PATH": f"{self.opt}/sim"}
        command = [*stage, str(USER), f"run_dir={self.directory}/run", "--", *work]
        return subprocess.Popen(
            command, env=env, cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def usage(self, job: int):
        (row,) = read_usage(self.directory / "state/ledger.sqlite", [job])
        return row


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def chain() -> Iterator[Chain]:
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        yield Chain(Path(name), stack)


def test_cap_reaches_the_program_and_use_reaches_the_ledger(chain):
    assert chain.hook("prolog", 7, "qgpu/1 class=online share=30 mem=1024") == 0
    out, err = chain.task(7, "--length", "1", "--kernel-us", "200", "--alloc-past", "4GiB").communicate(
        timeout=60
    )
    done = json.loads(out)
    assert done["alloc"]["refused"] and done["alloc"]["bytes"] <= 1024 * MIB
    assert "qgpu: allocation of" in err and "job 7" in err
    assert chain.hook("epilog", 7) == 0
    row = chain.usage(7)
    assert row.end_reason == "epilog" and row.denied == 1
    assert row.launches is not None and row.launches >= done["kernels"]
    assert row.busy_ns is not None and 0 < row.busy_ns <= row.wall_ns(0)
    assert row.mem_peak is not None and 900 * MIB < row.mem_peak <= 1024 * MIB


def test_use_is_summed_over_the_death_of_both_daemons(chain):
    assert chain.hook("prolog", 7, "qgpu/1 class=offline share=50 mem=1024") == 0
    task = chain.task(7, "--length", "4", "--kernel-us", "200")
    until = time.monotonic() + 30
    while not chain.usage(7).busy_ns:
        assert time.monotonic() < until, "the first counters never came"
        time.sleep(0.05)
    chain.qgpud.send_signal(signal.SIGKILL)
    chain.arbiter.send_signal(signal.SIGKILL)
    chain.qgpud.wait()
    chain.arbiter.wait()
    before = chain.usage(7)
    chain.ready("bin/qgpu-arbiter", "--run-dir", f"{chain.directory}/run")
    chain.start_qgpud()
    out, _ = task.communicate(timeout=60)
    assert task.returncode == 0, "the job did not notice"
    assert chain.hook("epilog", 7) == 0
    after = chain.usage(7)
    assert after.granted_at == before.granted_at
    assert after.busy_ns > before.busy_ns > 0
    assert after.launches > before.launches
    assert after.launches <= json.loads(out)["kernels"] * 1.1 + 1000


def test_card_that_slurm_gave_but_the_node_has_not_is_a_broken_node(chain):
    assert chain.hook("prolog", 7, "qgpu/1 whole", gpus="5") == 1
    assert "names 2 card(s) for n1" in (chain.directory / "run/last-failure").read_text()
