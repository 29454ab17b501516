"""The shape of a sandbox: what is accepted, and that each refusal names the value and what would
work.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.sandbox.errors import SandboxError
from cli.sandbox.layout import MAX_SOCKET_PATH, check_length
from cli.sandbox.options import SandboxOptions, parse_memory, state_of


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "Test"}, "'Test' does not work"),
        ({"name": ""}, "'' does not work"),
        ({"name": "a-b"}, "'a-b' does not work"),
        ({"name": "x" * 17}, "at most 16"),
        ({"nodes": 0}, "--nodes 0 is out of range: a sandbox has between 1 and 16 nodes"),
        ({"nodes": 17}, "--nodes 17 is out of range"),
        ({"cards": 0}, "--cards 0 is out of range: a sandbox has between 1 and 16 cards per node"),
        ({"memory_mib": 1024}, "--memory of 1024 MiB is out of range"),
        ({"model": "H200"}, "'H200' is not a Slurm gres type"),
        ({"model": "h200 sxm"}, "'h200 sxm' is not a Slurm gres type"),
        ({"nvlinks": "0-1"}, "'0-1' is no list of links"),
        ({"nvlinks": "0-2:1"}, "'0-2:1' names a card that is not there"),
        ({"nvlinks": "0-1:4,1-1:4"}, "links it to itself"),
    ],
)
def test_impossible_shapes_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(SandboxError, match=None) as refused:
        SandboxOptions(**fields)  # type: ignore[arg-type]
    assert sentence in str(refused.value)


def test_memory_is_read_with_its_unit() -> None:
    assert parse_memory("80GiB") == 80 * 1024
    assert parse_memory("40960MiB") == 40960
    with pytest.raises(SandboxError, match="'eighty' is not a size"):
        parse_memory("eighty")


@pytest.mark.parametrize("path", ["/", "/tmp", "/var/tmp/a b", "/var/tmp/$HOME", "/var/tmp/a'b"])
def test_state_directories_that_break_configuration_files_are_refused(path: str) -> None:
    with pytest.raises(SandboxError, match="--state-dir"):
        state_of("default", Path(path))


def test_dots_in_the_state_directory_are_resolved() -> None:
    assert state_of("default", Path("/var/tmp/x/../y")) == Path("/var/tmp/y")


def test_node_names_do_not_collide_between_sandboxes() -> None:
    assert SandboxOptions().node_names == ["n1", "n2"]
    assert SandboxOptions(name="t2", nodes=1).node_names == ["t2-n1"]


def test_socket_paths_are_measured() -> None:
    room = MAX_SOCKET_PATH - len("/run/n1/enforcer.sock")
    check_length(Path("/" + "x" * (room - 1)), ["n1"])
    with pytest.raises(SandboxError, match="1 characters too long"):
        check_length(Path("/" + "x" * room), ["n1"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["up", "--nodes", "0"], "--nodes 0 is out of range"),
        (["up", "--memory", "lots"], "'lots' is not a size"),
        (["up", "--name", "a/b"], "'a/b' does not work as part of node names"),
        (["up", "--nodes", "two"], "'two' is not a valid integer"),
        (
            ["status", "--state-dir", "/var/tmp/no-such-qgpu"],
            "there is no sandbox in /var/tmp/no-such-qgpu",
        ),
        (["exec", "--state-dir", "/var/tmp/no-such-qgpu", "--", "true"], "there is no sandbox in"),
    ],
)
def test_the_command_refuses_with_a_sentence(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["sandbox", *words])
    assert result.exit_code in (1, 2)
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_help_explains_every_command() -> None:
    result = CliRunner().invoke(main, ["sandbox", "--help"])
    for command in ("up", "down", "status", "exec", "list"):
        assert f"\n  {command} " in result.output


def test_main_help_lists_all_commands_without_importing_them() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for command in ("demo", "plan", "render", "report", "sandbox", "version"):
        assert f"\n  {command} " in result.output


def test_a_model_is_not_named_like_a_class() -> None:
    with pytest.raises(SandboxError, match="that is a class of jobs"):
        SandboxOptions(model="online")
