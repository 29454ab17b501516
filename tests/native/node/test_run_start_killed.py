"""`qgpu run --start` that is killed: what it started ends with it, and the next one removes its
directory.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from node_support import end, until

from cli.run.directory import private_directory, remove_left

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="makes device nodes, and directories of root's in /run"
    ),
    pytest.mark.timeout(180),
]

STUBBORN = "trap '' TERM INT HUP; echo up; while :; do read -t 1 x; done"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def directories() -> set[Path]:
    return set(Path("/run").glob("qgpu-run-*"))


def test_kill_ends_daemons_and_command_and_the_next_start_removes_the_directory(start):
    chain = start()
    words = ["run", "--start", "--config", str(chain.config), "--"]
    before = directories()
    process = chain.qgpu(*words, "bash", "-c", STUBBORN)
    try:
        assert process.stdout.readline() == "up\n"
        (mine,) = directories() - before
        started = children(process.pid)
        assert len(started) == 3, "arbiter, qgpud and command"
        process.kill()
        process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 10)
        assert mine.exists()
        assert chain.said(*words, "true")[0] == 0
        assert not mine.exists() and not directories() - before
    finally:
        end(process)


def test_directory_of_a_start_that_lives_is_left_alone(start):
    chain = start()
    words = ["run", "--start", "--config", str(chain.config), "--"]
    first = chain.qgpu(*words, "sh", "-c", "echo up; read x; test -e $QGPU_GRANT", stdin=-1)
    try:
        assert first.stdout.readline() == "up\n"
        assert chain.said(*words, "true")[0] == 0
        first.communicate("go\n", timeout=60)
        assert first.returncode == 0, "its grant is where it was"
    finally:
        end(first)


def test_only_what_is_surely_left_is_removed(tmp_path: Path) -> None:
    def made(name: str) -> Path:
        path = tmp_path / name
        (path / "run").mkdir(parents=True)
        path.chmod(0o755)
        return path

    left, locked, served, foreign, loose, other, target = map(
        made,
        [
            f"qgpu-run-{word}"
            for word in ("left0000", "locked00", "served00", "foreign0", "loose000", "is-not-one")
        ]
        + ["target"],
    )
    link = tmp_path / "qgpu-run-link0000"
    link.symlink_to(target)
    (tmp_path / "qgpu-run-file0000").write_text("")
    (left / "out").symlink_to(target)
    os.chown(foreign, 65534, 65534)
    loose.chmod(0o777)
    lock = os.open(locked, os.O_RDONLY)
    daemon = os.open(served / "run/arbiter.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(daemon, fcntl.LOCK_EX)
        remove_left(tmp_path)
        assert not left.exists()
        for path in (
            locked,
            served,
            foreign,
            loose,
            other,
            target,
            link,
            tmp_path / "qgpu-run-file0000",
        ):
            assert path.exists(), path
        assert (target / "run").exists(), "not through a link"
    finally:
        os.close(lock)
        os.close(daemon)
    remove_left(tmp_path)
    assert not locked.exists() and not served.exists()


def test_own_directory_is_locked_readable_and_removed() -> None:
    with private_directory() as path:
        assert path.stat().st_mode & 0o777 == 0o755
        remove_left(path.parent)
        assert path.exists()
    assert not path.exists()
