"""JOBID.grant as an enemy would write it: SPANK never starts a task on a file that it cannot
believe.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.wire.abi import GrantPage, pack_grant
from gres.grant.store import Grant, GrantCard

ROOT = Path(__file__).parents[2]
USER = 65534
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root"),
]


def grant() -> Grant:
    card = GrantCard("GPU-00000000-0000-0000-0000-000000000001", 0, 0, 30, 12 << 30, 80 << 30)
    return Grant(
        job_id=7,
        uid=USER,
        gid=USER,
        node="n1",
        state="active",
        job_class="online",
        created_ns=1,
        cards=(card,),
        run_dir="/run/qgpu",
        driver_path="/usr/lib/libcuda.so.1",
        shim_path="/bin/true",  # a file that every user can read; ld.so preloads no program
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run/grants").mkdir(parents=True, mode=0o755)
    file = tmp_path / "run/grants/7.grant"
    file.write_bytes(pack_grant(grant()))
    file.chmod(0o644)
    return file


def start(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    stage = [
        str(ROOT / "build/test/spank_stage"),
        str(ROOT / "build/lib/qgpu_spank.so"),
        "remote",
        "7",
        str(USER),
    ]
    command = [
        *stage,
        f"run_dir={path.parent.parent}",
        "--",
        "/bin/sh",
        "-c",
        "unset LD_PRELOAD; echo started",
    ]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"} | env
    )


def replaced(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def patched(field: str, value: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        page = GrantPage.from_buffer_copy(path.read_bytes())
        setattr(page, field, value)
        path.write_bytes(bytes(page))

    return change


def unterminated(field: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        place = getattr(GrantPage, field)
        raw[place.offset : place.offset + place.size] = b"/" * place.size
        path.write_bytes(bytes(raw))

    return change


def card_field(field: str, value: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        page = GrantPage.from_buffer_copy(path.read_bytes())
        setattr(page.cards[0], field, value)
        path.write_bytes(bytes(page))

    return change


def link_elsewhere(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "of another owner": (lambda p: os.chown(p, USER, USER), "written by others"),
    "writable by the group": (lambda p: p.chmod(0o664), "written by others"),
    "writable by all": (lambda p: p.chmod(0o646), "written by others"),
    "a symbolic link": (link_elsewhere, "symbolic links"),
    "a fifo": (fifo, "not a regular file"),
    "a directory": (directory, "not a regular file"),
    "empty": (lambda p: replaced(p, b""), "its length"),
    "cut": (lambda p: replaced(p, p.read_bytes()[:-1]), "its length"),
    "too long": (lambda p: replaced(p, p.read_bytes() + b"\0"), "its length"),
    "without magic": (patched("magic", 0), "QGPU"),
    "of another version": (patched("version", 2), "version"),
    "with a wrong size": (patched("size", 100), "size field"),
    "of another job": (patched("job_id", 8), "another job"),
    "of another job beyond 32 bits": (patched("job_id", 7 + 2**32), "another job"),
    "of another user": (patched("uid", 1), "another user"),
    "of no state": (patched("state", 9), "state"),
    "of no class": (patched("job_class", 0), "class"),
    "without cards": (patched("ncards", 0), "number of cards"),
    "with too many cards": (patched("ncards", 17), "number of cards"),
    "with a relative shim": (patched("shim_path", b"libcuda.so.1"), "not absolute"),
    "with two shims": (patched("shim_path", b"/a:/b"), "colon"),
    "with a path without end": (unterminated("driver_path"), "not absolute"),
    "with a message without end": (unterminated("message"), "no end"),
    "with share 0": (card_field("share", 0), "1..100"),
    "with share 101": (card_field("share", 101), "1..100"),
    "without a cap": (card_field("mem_cap", 0), "memory cap"),
    "with a cap above the card": (card_field("mem_cap", 1 << 60), "memory cap"),
    "without a UUID": (card_field("uuid", b""), "UUID"),  # type: ignore[arg-type]
}


def test_the_untouched_file_starts_the_task(path):
    done = start(path)
    assert (done.returncode, done.stdout) == (0, "started\n")


@pytest.mark.parametrize("fault", FAULTS)
def test_task_with_a_grant_that_is(path, fault):
    change, word = FAULTS[fault]
    change(path)
    done = start(path)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "qgpu: job 7 holds a GPU whose grant cannot be read" in done.stderr
    assert word in done.stderr


@pytest.mark.parametrize("which", ["run", "grants"])
def test_directory_that_others_can_write_stops_jobs_with_a_card_only(path, which):
    (path.parent if which == "grants" else path.parent.parent).chmod(0o777)
    assert start(path, SLURM_JOB_GPUS="0").returncode == 1
    done = start(path)
    assert (done.returncode, done.stdout) == (0, "started\n")


def test_no_run_dir_is_no_grant(path):
    path.unlink()
    path.parent.rmdir()
    done = start(path, SLURM_JOB_GPUS="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


def test_layout_used_here_is_the_one_of_the_plugin():
    assert ctypes.sizeof(GrantPage) == len(pack_grant(grant()))
