"""The reader of the simulator's trace, on files made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from simulator.sim import Interval, SimConfig, SimError, busy_ns, read_trace

HEAD = struct.pack("<8sIIIIQ32s", b"QGSIMTRC", 1, 64, 2, 0, 5, b"node1")


def piece(t0: int, t1: int, pid: int = 9, flags: int = 1) -> bytes:
    return struct.pack("<QQQIIIIIIQQ", t0, t1, t0 - 1, pid, 1, 2, 3, 1, flags, 4, 77)


def test_sizes_are_pinned() -> None:
    assert len(HEAD) == 64 and len(piece(1, 2)) == 64


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(HEAD + piece(10, 20) + piece(20, 50, 8, 3) + piece(50, 60)[:30])
    first, second = read_trace(path)
    assert first == Interval(10, 20, 9, 9, 1, 2, 3, 1, 1, 4, 77)
    assert first.duration == 10 and first.last and not first.cut
    assert second.pid == 8 and second.cut


def test_an_empty_trace_has_no_intervals(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(HEAD)
    assert list(read_trace(path)) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"QGSIMTRC", "8 bytes"),
        (b"NOTATRACE" + HEAD[9:], "begins with"),
        (struct.pack("<8sIIIIQ32s", b"QGSIMTRC", 2, 64, 2, 0, 5, b""), "version 2"),
        (struct.pack("<8sIIIIQ32s", b"QGSIMTRC", 1, 72, 2, 0, 5, b""), "72 bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(content)
    with pytest.raises(SimError, match=says):
        list(read_trace(path))


def test_busy_time_is_clipped_to_the_window() -> None:
    pieces = [
        Interval(t, t + 10, t, pid, 0, 1, 17, 1, 1, 1, 1) for t, pid in ((0, 1), (10, 2), (20, 1))
    ]
    assert busy_ns(pieces, 5, 25) == {1: 10, 2: 10}
    assert busy_ns(pieces, 100, 200) == {}


def test_command_line_names_every_option(tmp_path: Path) -> None:
    config = SimConfig(tmp_path, "n1", cards=3, trace=False, extra=("--priority", "0"))
    words = config.command(Path("/bin/qgpu-simgpu"), 7)
    assert words[0] == "/bin/qgpu-simgpu" and words[-3:] == ["--no-trace", "--priority", "0"]
    assert words[words.index("--cards") + 1] == "3" and words[words.index("--ready-fd") + 1] == "7"
