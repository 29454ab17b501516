"""`qgpu top`, `jobs` and `cards` on a fake node: as a table, as lines, as JSON, live, and
without a daemon.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from cli.live.command import top
from cli.live.held import cards, jobs
from cli.live.view import Shown, bar, picture
from enforcer.clock import SystemClock
from enforcer.fdwait import readable_within
from enforcer.nvml.port import CardLoad
from enforcer.reporting.attach import NodeObserver
from enforcer.reporting.state import read
from enforcer.wire.abi import pack_grant
from simulator.fakes import GIB, FakeNode

CONFIG = """version: 1
cluster: c
run_dir: {directory}/run
state_dir: {directory}/state
default_class: offline
models: {{h200: {{memory: 80GiB, reserve: 2GiB}}}}
nodes: [{{names: n1, model: h200, count: 2, files: "/dev/qgpufake[0-1]"}}]
"""


def env(job: int, kind: str, gpus: str = "0", uid: int = 0) -> dict[str, str]:
    comment = "qgpu/1 whole" if kind == "whole" else f"qgpu/1 class={kind} share=30 mem=12288"
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_GID": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_GPUS": gpus,
    }


class Rig:
    """The fake node with an observer that ticks on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "qgpu.yaml"
        self.config.write_text(CONFIG.format(directory=directory))
        self.node = FakeNode(directory, clock=SystemClock())
        self.service = self.node.service()
        self.service.start()
        self.observer = NodeObserver.of(self.service, self.node.clock)
        self.uuids = [card.uuid for card in self.node.nvml.cards()]

    def fill(self) -> None:
        """Two tenants on card 0, a whole-card job on card 1."""
        self.service.prolog(env(7, "offline", uid=54321))
        self.service.prolog(env(9, "online"))
        self.service.prolog(env(3, "whole", "1"))
        self.node.nvml.loads[self.uuids[0]] = CardLoad(42, 5 * GIB)
        for job in (7, 9):
            self.node.arbiter.count(job, self.uuids[0], mem_used=job * GIB)
        self.observer.tick(force=True)
        self.node.arbiter.count(9, self.uuids[0], busy_ns=10**12, mem_used=9 * GIB)
        self.node.arbiter.count(7, self.uuids[0], closed_preempted_ns=10**12, mem_used=7 * GIB)
        self.observer.tick(force=True)

    def run(self, command: object, *words: str) -> Result:
        words = (*words, "--config", str(self.config))
        # A table without a width has all columns.
        return CliRunner().invoke(command, words, env={"COLUMNS": None})  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    found.fill()
    yield found
    found.node.close()


def table(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    header, *rest = [line.split("|") for line in result.stdout.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in rest]


def test_top_in_lines(rig):
    first, second, third = table(rig.run(top, "--parsable"))
    assert (first["JOBID"], first["USER"], first["CLASS"], first["STATE"]) == (
        "9",
        "root",
        "online",
        "running",
    )
    assert (first["SHARE%"], first["NOW%"], first["MEM_GIB"], first["CAP_GIB"]) == (
        "30",
        "100",
        "9.0",
        "12.0",
    )
    assert (second["JOBID"], second["USER"], second["STATE"], second["NOW%"]) == (
        "7",
        "54321",
        "preempted",
        "0",
    )
    assert (second["HELD%"], second["BY"], first["HELD%"], first["BY"]) == ("100", "9", "-", "-")
    assert (third["CARD"], third["CLASS"], third["MEM_GIB"], third["NOW%"]) == (
        "1",
        "whole",
        "-",
        "-",
    )


def test_top_without_a_terminal_prints_once(rig):
    result = rig.run(top)
    assert result.exit_code == 0
    assert re.search(
        r"^n1 +0 +9 +root +online +running +30 +100 +- +- +9\.0 +12\.0 +1 +00:\S+$",
        result.stdout,
        re.MULTILINE,
    )


def test_top_as_json(rig):
    body = json.loads(rig.run(top, "--json", "--once").stdout)
    (node,) = body["nodes"]
    assert body["version"] == 1 and node["node"] == "n1" and node["cards"][0]["util"] == 42
    assert node["cards"][0]["tenants"][0]["user"] == "root" and node["cards"][1]["util"] is None


def test_the_picture_has_card_use_beside_the_drivers_figure(rig):
    out = io.StringIO()
    states = [read(rig.directory / "run/state.json")]
    Console(file=out, width=200).print(picture(states, [], Shown()))
    first, second = [line for line in out.getvalue().splitlines() if line.startswith("  card")]
    assert "driver 42 %  use 100 %" in first and "driver - %    use - %" in second


def test_jobs_of_one_user(rig):
    assert [row["JOBID"] for row in table(rig.run(top, "--parsable", "-u", "54321"))] == ["7"]
    mine = json.loads(rig.run(top, "--json", "--user", "me").stdout)["nodes"][0]["cards"]
    wanted = [[9], [3]] if os.geteuid() == 0 else [[], []]  # root has them in this rig
    assert [[t["job_id"] for t in card["tenants"]] for card in mine] == wanted
    assert mine[0]["use"] == 100
    none = rig.run(top, "-u", "nobody-of-that-name")
    assert none.exit_code == 2 and "there is no user 'nobody-of-that-name' here" in none.stderr


def test_card_without_jobs_is_a_line_of_dashes(rig):
    rig.service.epilog(env(3, "whole"))
    rig.observer.tick(force=True)
    assert table(rig.run(top, "--parsable"))[2]["JOBID"] == "-"


def test_old_state_is_said(rig):
    path = rig.directory / "run/state.json"
    path.write_text(re.sub(r'"at":[0-9.]+', '"at":5.0', path.read_text()))
    assert "qgpud is not running there" in rig.run(top, "--once").stderr
    path.unlink()
    gone = rig.run(top, "--once", "--node", "n1")
    assert gone.exit_code == 1 and "no live state" in gone.stderr


def test_wrong_node_is_a_sentence(rig):
    for command in (top, jobs, cards):
        result = rig.run(command, "--node", "nix")
        assert result.exit_code == 2 and "node 'nix' is not configured" in result.stderr


def test_jobs_from_the_files_alone(rig):
    rig.node.arbiter.running = False
    (rig.directory / "run/grants/5.grant").write_bytes(b"broken")
    found = table(rig.run(jobs, "--parsable", "--node", "n1"))
    assert [(row["JOBID"], row["CARD"], row["CLASS"], row["SHARE%"]) for row in found] == [
        ("9", "0", "online", "30"),
        ("7", "0", "offline", "30"),
        ("3", "1", "whole", "100"),
    ]
    body = json.loads(rig.run(jobs, "--json", "--node", "n1").stdout)
    assert body["jobs"][0]["mem_cap"] == 12 * GIB and body["jobs"][0]["user"] == "root"


def test_cards_from_the_files_alone(rig):
    rows = table(rig.run(cards, "--parsable", "--node", "n1"))
    assert rows[0] == {
        "NODE": "n1",
        "CARD": "0",
        "MODEL": "h200",
        "USE": "shared",
        "ONLINE%": "30",
        "OFFLINE%": "30",
        "JOBS": "2",
        "GRANTED_GIB": "24.0",
        "USABLE_GIB": "78.0",
        "RECLAIMABLE_GIB": "0.0",
    }
    assert (rows[1]["USE"], rows[1]["JOBS"], rows[1]["GRANTED_GIB"]) == ("whole", "1", "78.0")
    rig.service.epilog(env(3, "whole"))
    assert table(rig.run(cards, "--parsable", "--node", "n1"))[1]["USE"] == "free"


def test_memory_that_may_be_taken_back_is_counted_apart(rig):
    grant = replace(rig.service.grants[7], reclaimable=True)
    rig.service.store.write_both(grant, pack_grant(grant))
    found = table(rig.run(jobs, "--parsable", "--node", "n1"))
    assert [row["MEMORY"] for row in found] == ["reserved", "reclaimable", "reserved"]
    row = table(rig.run(cards, "--parsable", "--node", "n1"))[0]
    assert (row["GRANTED_GIB"], row["RECLAIMABLE_GIB"]) == ("12.0", "12.0")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="qgpu-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to play")
@pytest.mark.parametrize(("private", "seen"), [("[]", ["9", "7", "3"]), ("[jobs]", ["7"])])
def test_users_see_what_privatedata_lets_them(open_directory, private, seen):
    rig = Rig(open_directory)
    rig.fill()
    rig.config.write_text(rig.config.read_text() + f"reports: {{private_data: {private}}}\n")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(54321)
        os.setuid(54321)
        ids = [row["JOBID"] for row in table(rig.run(jobs, "--parsable", "--node", "n1"))]
        os.write(writer, ",".join(ids).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        assert pipe.read().split(",") == seen
    rig.node.close()


def test_live_view_redraws_on_a_terminal_and_ends_on_interrupt(rig):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "top", "--config", str(rig.config), "--interval", "0.2"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        # Where the tests were started in the background of a shell, interrupts are ignored, and
        # that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(follower)
    seen = b""
    try:
        until = time.monotonic() + 30
        while seen.count(b"online") < 6 and time.monotonic() < until:
            if readable_within(leader, 1):
                seen += os.read(leader, 65536)
        process.send_signal(signal.SIGINT)
        drained = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < drained:
            if readable_within(leader, 0.2):
                try:
                    seen += os.read(leader, 65536)
                except OSError:
                    break
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(leader)
    assert "running" in seen.decode(errors="replace") and "█" in seen.decode(errors="replace")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, "····"),
        (0, "    "),
        (0.5, "██  "),
        (1, "████"),
        (7, "████"),
        (-1, "    "),
        (0.03, "▏   "),
    ],
)
def test_bar(part, text):
    assert bar(part, 4) == text
