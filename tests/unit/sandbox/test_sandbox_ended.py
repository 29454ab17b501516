"""What is read of a core, where one is sought, and the words on an end."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from cli.sandbox import ended
from cli.sandbox.ended import Core
from cli.sandbox.layout import Layout


def note(kind: int, content: bytes) -> bytes:
    return struct.pack("<3I", 5, len(content), kind) + b"CORE\0\0\0\0" + content


def core(pid: int = 4711, program: bytes = b"slurmctld", signum: int = 6) -> bytes:
    """The beginning of a core of two threads."""
    status = bytearray(336)
    struct.pack_into("<h", status, 12, signum)
    info = bytearray(136)
    struct.pack_into("<i12x16s", info, 24, pid, program)
    notes = note(1, bytes(status)) + note(3, bytes(info)) + note(1, bytes(336))
    head = struct.pack("<6s10xHHIQQQIHHH6x", b"\x7fELF\2\1", 4, 62, 1, 0, 64, 0, 0, 64, 56, 1)
    return head + struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(notes), 0, 4) + notes


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.core_dir("slurmctld").mkdir(parents=True)
    return made


def test_a_core_tells_process_program_and_signal(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(core())
    assert ended.read_core(path) == Core(path, 4711, "slurmctld", 6)


def test_a_file_that_is_no_whole_core_is_none(tmp_path: Path) -> None:
    whole, path = core(), tmp_path / "core"
    for size in range(len(whole) - 356):  # the last note is not needed
        path.write_bytes(whole[:size])
        assert ended.read_core(path) is None, size
    for at in (32, 72 + 8, 72 + 32, 120, 124):  # offsets and lengths without an end
        path.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
        assert ended.read_core(path) in (None, Core(path, 4711, "slurmctld", 6)), at
    path.unlink()
    os.mkfifo(path)
    assert ended.read_core(path) is None
    (tmp_path / "real").write_bytes(whole)
    (tmp_path / "link").symlink_to("real")
    assert ended.read_core(tmp_path / "link") is None
    assert ended.read_core(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("core", "core*"),
        ("core.%e.%p", "core.*.*"),
        ("100%%[x]", "100*[[]x]*"),
        ("|/usr/lib/systemd/systemd-coredump %P", None),
        ("/var/crash/core.%p", None),
        ("cores/core", None),
    ],
)
def test_cores_are_sought_where_the_kernel_leaves_them(pattern: str, names: str | None) -> None:
    assert ended.core_names(pattern) == names


def test_the_core_of_another_process_is_not_shown(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ended, "_KERNEL", tmp_path)
    (tmp_path / "core_pattern").write_text("core.%p\n")
    for pid in (1, 2):
        (layout.core_dir("slurmctld") / f"core.{pid}").write_bytes(core(pid))
    assert ended.find_core(layout, "slurmctld", 3) is None
    assert ended.find_core(layout, "slurmdbd", 2) is None
    found = ended.find_core(layout, "slurmctld", 2)
    assert found is not None and found.path == layout.core_dir("slurmctld") / "core.2"
    (tmp_path / "core_pattern").write_text("|collector\n")
    assert ended.find_core(layout, "slurmctld", 2) is None
    said = ended.words(layout, "slurmctld", 2, -6, 0)
    assert said.startswith("slurmctld ended by itself: killed by signal 6 (SIGABRT)\n")
    assert "core_pattern says: |collector" in said


def test_an_end_in_words() -> None:
    dump = Core(Path("core"), 1, "slurmctld", 11)
    assert ended.how(1, None) == "exit status 1"
    assert ended.how(-9, dump) == "killed by signal 9 (SIGKILL)"
    assert ended.how(None, dump) == "killed by signal 11 (SIGSEGV), as its core says"
    assert ended.how(-250, None) == "killed by signal 250"
    assert "is not known" in ended.how(None, None)


def test_what_it_printed_before_its_last_start_is_not_shown(layout: Layout) -> None:
    log, out = layout.log("slurmctld"), layout.log("slurmctld.out")
    log.write_text("one\ntwo\n")
    out.write_text("double free or corruption (out)\n")
    os.utime(out, (1000, 1000))
    assert "double free" in ended.words(layout, "slurmctld", 1, -6, 1000)
    said = ended.words(layout, "slurmctld", 1, -6, 1001)
    assert "double free" not in said and said.endswith(f"the end of {log}:\n  one\n  two")
