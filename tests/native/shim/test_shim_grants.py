"""Which grants the shim believes: root's, unchanged, and of its own job. Without one there is no
card.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import shim_support as s

from enforcer.wire import abi

pytestmark = pytest.mark.native


def refused(probe: s.Probe) -> str:
    """There is no card for it; returns what was said."""
    assert [probe.ask("init"), probe.ask("init")] == [s.NOT_PERMITTED] * 2
    return probe.finish()


@pytest.mark.parametrize("seals", [0, s.SEAL, s.SEAL | s.SHRINK | s.GROW])
def test_unsealed_descriptor_is_not_believed(
    tmp_path: Path, arbiter: s.FakeArbiter, seals: int
) -> None:
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP), seals)
    probe = s.launch(tmp_path, {"QGPU_GRANT_FD": str(fd)}, (fd,), s.in_usual_place())
    os.close(fd)
    error = refused(probe)
    assert error.count("\n") == 1
    assert error.startswith(
        "qgpu: this program gets no card, because its limits are not known: grant descriptor"
    )
    assert "it is not sealed" in error
    assert arbiter.card.asked == []


def test_descriptor_of_another_user_is_not_believed(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP))
    os.fchown(fd, 12345, 0)
    probe = s.launch(tmp_path, {"QGPU_GRANT_FD": str(fd)}, (fd,), s.in_usual_place())
    os.close(fd)
    assert "root did not make it" in refused(probe)
    assert arbiter.card.asked == []


def test_without_any_grant_everything_passes(tmp_path: Path, arbiter: s.FakeArbiter) -> None:
    probe = s.launch(tmp_path, {}, (), s.in_usual_place())
    s.started(probe)
    assert probe.ask(f"alloc 0 {60 * s.GIB}") == 0
    assert probe.text("info") == f"0 {80 * s.GIB} {80 * s.GIB}"
    assert probe.finish() == ""
    assert arbiter.card.asked == []


def file_grant(tmp_path: Path, mode: int = 0o644, content: bytes | None = None) -> Path:
    """A grant file."""
    path = tmp_path / "4711.grant"
    path.write_bytes(s.grant_bytes(tmp_path, s.CAP) if content is None else content)
    path.chmod(mode)
    return path


def test_grant_file_for_children_that_closed_the_descriptor(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    path = file_grant(tmp_path)
    probe = s.launch(tmp_path, {"QGPU_GRANT": str(path), "QGPU_GRANT_FD": "777"})
    s.started(probe)
    assert arbiter.card.asked == [0]
    assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
    probe.finish()


@pytest.mark.parametrize(
    "fault", ["mode", "owner", "symlink", "size", "magic", "version", "fifo", "missing"]
)
def test_grant_file_is_distrusted(tmp_path: Path, arbiter: s.FakeArbiter, fault: str) -> None:
    good = s.grant_bytes(tmp_path, s.CAP)
    path = file_grant(tmp_path)
    if fault == "mode":
        path.chmod(0o666)
    elif fault == "owner":
        os.chown(path, 12345, 0)
    elif fault == "symlink":
        real = path.rename(tmp_path / "real")
        path.symlink_to(real)
    elif fault == "size":
        path.write_bytes(good[:-1])
    elif fault == "magic":
        path.write_bytes(b"XXXX" + good[4:])
    elif fault == "version":
        path.write_bytes(good[:4] + b"\x09" + good[5:])
    elif fault == "fifo":
        path.unlink()
        os.mkfifo(path)
    else:
        path.unlink()
    probe = s.launch(tmp_path, {"QGPU_GRANT": str(path)}, (), s.in_usual_place())
    error = refused(probe)
    assert error.count("\n") == 1
    assert str(path) in error
    assert arbiter.card.asked == [], "nobody registers with a grant that is not believed"


def test_grant_of_a_job_with_whole_cards_is_not_believed(
    tmp_path: Path, arbiter: s.FakeArbiter
) -> None:
    """Such a job never gets this library, so the grant is another job's."""
    content = s.grant_bytes(tmp_path, s.CAP, state=abi.GRANT_WHOLE)
    fd, path = s.sealed("grant", content), file_grant(tmp_path, content=content)
    for env in ({"QGPU_GRANT_FD": str(fd)}, {"QGPU_GRANT": str(path)}):
        assert "whole cards" in refused(s.launch(tmp_path, env, (fd,), s.in_usual_place()))
    os.close(fd)
    assert arbiter.card.asked == []
