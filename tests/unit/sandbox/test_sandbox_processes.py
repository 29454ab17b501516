"""A process is recognised by number and start time, and only members are ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.sandbox import processes, wait
from cli.sandbox.errors import SandboxError
from cli.sandbox.processes import MARK, ProcessId


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], MARK: str(tmp_path)})
    yield child
    child.kill()
    child.wait()


def marked(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has left the moment between fork and exec, in which it has our own
    environment.
    """
    return MARK.encode() in Path(f"/proc/{child.pid}/environ").read_bytes()


def test_a_reused_number_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    who = processes.identify(sleeper.pid)
    assert who is not None and who.alive()
    impostor = ProcessId(who.pid, who.started + 1)
    assert not impostor.alive()
    assert not impostor.kill(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    who = processes.identify(sleeper.pid)
    assert who is not None
    who.kill(signal.SIGKILL)
    wait.until(lambda: not who.alive(), 5, "the end of the sleeper")
    assert Path(f"/proc/{sleeper.pid}").exists()  # not reaped yet, so it is a zombie


def test_only_the_marked_process_is_ended(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        wait.until(lambda: marked(sleeper), 5, "exec of the sleeper")
        assert processes.live_states() >= {tmp_path}
        assert processes.end_all(tmp_path / "other") == 0
        assert sleeper.poll() is None
        assert processes.end_all(tmp_path) == 1
        assert sleeper.wait(60) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_this_process_is_never_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("")
    monkeypatch.setenv(MARK, str(tmp_path))
    assert processes.members(tmp_path) == []
    assert not processes.inside(tmp_path)


def test_waiting_ends_with_a_sentence() -> None:
    with pytest.raises(SandboxError, match=r"the end of the world did not happen within 0\.05 s"):
        wait.until(lambda: False, 0.05, "the end of the world")


def test_errors_of_a_log_are_shown_before_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert wait.tail(log) == ""
    log.write_text("begins\n[ERROR] no room\n" + "a word of advice\n" * 5)
    assert wait.tail(log).splitlines() == ["  [ERROR] no room", *["  a word of advice"] * 5]
