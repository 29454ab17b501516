"""Doctor as root on a host where a user tries to lead it: it runs, reads and believes nothing of
the user's.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from site_support import Site

from cli.doctor import examine as examining
from cli.doctor.checks import gres
from cli.doctor.command import table
from cli.doctor.host import Host, distrust
from cli.doctor.result import Check

USER = 4711
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory of the user's; everything above it is root's."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "user"
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


def given_away(path: Path, text: str = "", mode: int = 0o755) -> Path:
    """A file of the user's."""
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, USER, USER)
    return path


def test_a_users_program_in_path_is_not_run(mine: Path) -> None:
    proof = mine / "proof"
    given_away(mine / "scontrol", f"#!/bin/sh\ntouch {proof}\n")
    roots = mine / "roots"
    roots.write_text("#!/bin/sh\ntouch {proof}\n")
    roots.chmod(0o755)
    host = Host({"PATH": str(mine)})
    assert host.program("scontrol") != str(mine / "scontrol") and host.program("roots") is None
    host.said("scontrol", "ping")
    host.said("roots")
    assert not proof.exists()


@pytest.mark.parametrize("kind", ["file", "link", "directory", "group"])
def test_what_a_user_could_exchange_is_not_read(mine: Path, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "roots"
    secret.write_text("root's")
    path = {
        "file": mine / "a",
        "link": mine / "b",
        "directory": mine / "c",
        "group": tmp_path / "d",
    }[kind]
    if kind == "file":
        given_away(path, "user's")
    elif kind == "link":
        path.symlink_to(secret)
        os.lchown(path, USER, USER)
    else:
        path.write_text("x")
        path.chmod(0o664 if kind == "group" else 0o644)
    assert Host().read(path) is None and distrust(path) is not None
    assert Host().read(secret) == "root's" and distrust(secret) is None


def test_a_loop_of_links_a_queue_and_a_device_end_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    os.mkfifo(tmp_path / "queue")
    began = time.monotonic()
    assert [Host().read(tmp_path / name) for name in ("a", "queue")] == [None, None]
    assert Host().read("/dev/zero") is None and distrust(tmp_path / "a") is not None
    assert time.monotonic() - began < 60


def test_a_users_processes_are_no_daemons(site: Site) -> None:
    for pid, name, words in (
        (80, "slurmctld", ("slurmctld",)),
        (81, "slurmstepd", ("slurmstepd: [9.batch]",)),
        (82, "qgpud", ("/usr/sbin/qgpud",)),
    ):
        site.process(pid, name, *words, uid=USER)
        (site.root / f"proc/{pid}/cmdline").unlink()
        os.mkfifo(site.root / f"proc/{pid}/cmdline")  # whose reader waits
    site.process(83, "qgpud", "/usr/sbin/qgpud")  # a user's that runs a setuid program
    (site.root / "proc/83/status").write_text(f"Uid:\t{USER}\t0\t0\t0\n")
    for pid in (82, 83):
        (site.root / f"proc/{pid}/root").symlink_to("/nonexistent")
    site.end(10)
    assert not any(check.status == "fail" for check in site.checks()), table(site.checks())
    assert [p.pid for p in site.host.daemons() if p.pid >= 80] == []


@pytest.mark.parametrize("inside", ["etc/qgpu/slurm.conf", "etc/gres.conf", "etc/plugstack.conf"])
def test_a_users_queue_in_the_place_of_a_file_does_not_hang(site: Site, inside: str) -> None:
    (site.root / inside).unlink()
    os.mkfifo(site.root / inside)
    os.chown(site.root / inside, USER, USER)
    began = time.monotonic()
    failed = {check.name for check in site.checks() if check.status == "fail"}
    assert "files" in failed and time.monotonic() - began < 60


def test_a_users_shim_is_not_loaded(site: Site, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    source = site.root / "shim.c"
    source.write_text(
        "#include <fcntl.h>\nint cuInit(unsigned f) { return (int)f; }\n"
        f'__attribute__((constructor)) static void tell(void) {{ (void)creat("{proof}", 0600); }}\n'
    )
    shim = site.root / "opt/2/libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    assert not any(check.status == "fail" for check in site.checks()) and proof.exists()
    proof.unlink()
    os.chown(shim, USER, USER)
    found = {check.name: check for check in site.checks()}["shim"]
    assert found.status == "fail" and "belongs to uid 4711" in found.text and not proof.exists()


def test_files_of_slurms_own_user_are_believed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on many sites; also while slurmctld, which knows that user, is down. qgpu's own files
    are root's.
    """
    monkeypatch.setattr("cli.doctor.known.pwd.getpwnam", lambda name: SimpleNamespace(pw_uid=USER))
    for path in (site.etc / "slurm.conf", site.etc / "qgpu", *(site.etc / "qgpu").iterdir()):
        os.chown(path, USER, USER)
    site.says("root(0)", f"slurm({USER})", "scontrol", "show", "config")
    assert not [check for check in site.checks() if check.status == "fail"]
    site.answer("scontrol", "ping", out="Slurmctld(primary) at vm is DOWN")
    failed = {check.name for check in site.checks() if check.status == "fail"}
    assert failed == {"slurmctld", "nodes", "partitions"}, failed
    os.chown(site.root / "opt/qgpu_spank.so", USER, USER)
    assert "files" in {check.name for check in site.checks() if check.status == "fail"}


def test_texts_of_others_do_not_steer_the_terminal(site: Site) -> None:
    nasty = "\x1b]0;owned\x07\u2028\r"
    site.answer("scontrol", "ping", out=f"Slurmctld(primary) at {nasty} is DOWN")
    site.answer("munge", code=1, err=nasty)
    site.edit("etc/slurm.conf", "ClusterName=doc\n", f"ClusterName=doc\nTaskPlugin {nasty}\n")
    text = table(site.checks())
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "\\x1b" in text


def test_a_check_that_breaks_does_not_hide_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(known: object) -> Check:
        raise ZeroDivisionError("x\x1b")

    steps = tuple(broken if step is gres.slurmd_gres else step for step in examining.NODE)
    monkeypatch.setitem(examining.BY_ROLE, "node", steps)
    checks = site.checks()
    failed = [check for check in checks if check.status == "fail"]
    assert [check.name for check in failed] == ["broken"] and "ZeroDivisionError" in failed[0].text
    assert checks[-1].name == "privacy"
