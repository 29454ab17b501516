"""`qgpu run` before its command starts: no error looks like the command's exit status."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.run.command import NOT_STARTED, inherited

CONFIG = Path(__file__).resolve().parents[3] / "configs/examples/qgpu.yaml"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--share", "x", "--", "true"], "'x' is not a valid integer"),
        (["--shar", "30", "--", "true"], "No such option"),
        (["--class", "batch", "--", "true"], "'batch' is not one of"),
        ([], "Missing argument"),
        (["--"], "Missing argument"),
        (["--config", "/no/such/file", "--", "true"], "the configuration cannot be read"),
        (["--mem", "1", "--config", str(CONFIG), "--", "true"], "--mem 1 is less than 1M"),
        (
            ["--mem", "8388609G", "--config", str(CONFIG), "--", "true"],
            "--mem: '8388609G' is larger than any card, the limit is 8388608G; write for example "
            "--mem 8G",
        ),
    ],
)
def test_what_is_wrong_with_the_options_is_a_sentence_and_125(words, sentence):
    result = CliRunner().invoke(main, ["run", *words])
    assert result.exit_code == NOT_STARTED and sentence in result.output, result.output
    assert "Traceback" not in result.output


def test_options_behind_the_command_are_the_commands_own(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "cli.run.command.become", lambda run_dir, question, command: asked.update(command=command)
    )
    monkeypatch.setattr("cli.run.command.find_daemon", lambda *_: type("D", (), {"run_dir": "/x"}))
    result = CliRunner().invoke(main, ["run", "--share", "3", "ls", "--share", "-x"])
    assert result.exit_code == 0 and asked["command"] == ("ls", "--share", "-x")


def test_an_empty_command_is_refused_before_anything_is_asked():
    result = CliRunner().invoke(main, ["run", "--config", str(CONFIG), "--node", "gpu01", "--", ""])
    assert result.exit_code in (127, NOT_STARTED) and "Traceback" not in result.output


def test_the_grant_is_inherited_also_where_few_files_may_be_open():
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.memfd_create("x", os.MFD_CLOEXEC)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, old[1]))
        kept = inherited(fd)
        assert kept == fd and not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
        high = inherited(kept)
        assert high >= 100 and not fcntl.fcntl(high, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(high)
        with pytest.raises(OSError):
            os.fstat(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
