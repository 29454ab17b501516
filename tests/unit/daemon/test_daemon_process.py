"""The real qgpud as a process: readiness, one per node, SIGTERM, kill -9 and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="qgpud runs as root")


class Qgpud:
    """One qgpud on a directory without any card; `start` returns when systemd would call it
    ready.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "qgpu.yaml"
        self.config.write_text(
            f"version: 1\ncluster: t\nrun_dir: {directory}/run/%n\nstate_dir: "
            f"{directory}/state/%n\n"
            "default_class: offline\nmodels: {h200: {memory: 80GiB}}\n"
            'nodes: [{names: "n[1-2]", model: h200, count: 1, files: /dev/qgpu-test-none}]\n'
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self, node: str = "n1") -> None:
        address = str(self.directory / "notify")
        Path(address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(address)
            notify.settimeout(20)
            self.process = subprocess.Popen(
                [*self.command(), "--node", node],
                env=os.environ | {"NOTIFY_SOCKET": address},
                stderr=subprocess.PIPE,
                text=True,
            )
            while not notify.recv(1000).startswith(b"READY=1\n"):
                pass  # a watchdog's word of another one that this test has running

    def command(self) -> list[str]:
        return [sys.executable, "-m", "enforcer.daemon.main", "--config", str(self.config)]

    def end(self, number: int) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def ask(self, kind: str, node: str = "n1", gpus: str = "") -> bytes:
        text = f"qgpu-hook/1 {kind}\0SLURM_JOB_ID=5\0SLURM_JOB_UID=1000\0SLURM_JOB_GID=1000\0"
        text += f"SLURMD_NODENAME={node}\0SLURM_JOB_GPUS={gpus}\0SLURM_JOB_COMMENT=\0"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(10)
            sock.connect(str(self.directory / f"run/{node}/hook.sock"))
            sock.send(text.encode())
            return sock.recv(70000)


@pytest.fixture
def qgpud(tmp_path: Path) -> Iterator[Qgpud]:
    daemon = Qgpud(tmp_path)
    yield daemon
    if daemon.process is not None and daemon.process.poll() is None:
        daemon.process.kill()
        daemon.process.communicate()


def test_ready_serving_and_a_clean_end(qgpud):
    qgpud.start()
    assert qgpud.ask("prolog") == b"qgpu-hook/1 0\0"
    code, said = qgpud.end(signal.SIGTERM)
    assert code == 0
    assert "event=started node=n1 grants=0" in said and said.splitlines()[-1].endswith(
        "event=stopped grants=0"
    )
    assert not (qgpud.directory / "run/n1/hook.sock").exists()


def test_refused_grant_survives_kill_9_and_the_next_start_serves(qgpud):
    qgpud.start()
    assert qgpud.ask("prolog", gpus="0") == b"qgpu-hook/1 0\0"
    assert qgpud.end(signal.SIGKILL)[0] == -signal.SIGKILL
    assert (qgpud.directory / "run/n1/hook.sock").exists(), (
        "left behind, and in the way of the next"
    )
    qgpud.start()
    assert qgpud.ask("epilog") == b"qgpu-hook/1 0\0"
    _, said = qgpud.end(signal.SIGTERM)
    assert "event=started node=n1 grants=1" in said
    assert "event=end job=5 reason=epilog" in said
    assert {path.suffix for path in (qgpud.directory / "run/n1/grants").iterdir()} <= {".over"}


def test_second_daemon_of_the_node_is_refused_and_of_another_node_is_not(qgpud):
    qgpud.start()
    second = subprocess.run(
        [*qgpud.command(), "--node", "n1"], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 1 and "another qgpud serves" in second.stderr
    assert qgpud.ask("prolog") == b"qgpu-hook/1 0\0"
    other = Qgpud(qgpud.directory)
    other.start("n2")
    assert other.ask("prolog", "n2") == b"qgpu-hook/1 0\0"
    assert other.end(signal.SIGTERM)[0] == 0


def test_connection_that_says_nothing_does_not_stop_the_end(qgpud):
    qgpud.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as idle:
        idle.connect(str(qgpud.directory / "run/n1/hook.sock"))
        began = time.monotonic()
        assert qgpud.end(signal.SIGTERM)[0] == 0
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nodse: 1\n", "nodse"),
        ("", "node 'n9' is not configured"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said_in_one_line(qgpud, change, words):
    qgpud.config.write_text(qgpud.config.read_text() + change)
    done = subprocess.run(
        [*qgpud.command(), "--node", "n9" if not change else "n1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert (
        done.stderr.startswith("qgpud: ")
        and words in done.stderr
        and "Traceback" not in done.stderr
    )


def test_directory_that_others_can_write_is_refused(qgpud):
    (qgpud.directory / "run/n1").mkdir(parents=True)
    (qgpud.directory / "run/n1").chmod(0o777)
    done = subprocess.run(
        [*qgpud.command(), "--node", "n1"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1 and "writable by it alone" in done.stderr
