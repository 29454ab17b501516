"""Other versions of Slurm: refusals, requests to a tree, and the form of results."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.sandbox import cgroups
from cli.sandbox.errors import SandboxError, cause
from cli.sandbox.options import CGROUP_VARIABLE
from cli.sandbox.versions import matrix, tree

STATUS = """Package: slurm-client
Status: install ok installed
Version: 9.9-1

Package: slurmctld
Status: install ok installed
Architecture: amd64
Version: 24.11.5-4
Depends: libc6

Package: slurmctld-doc
Version: 1-1
"""


def made(root: Path, version: str, status: str = STATUS) -> Path:
    place = root / version
    (place / "var/lib/dpkg").mkdir(parents=True)
    (place / "var/lib/dpkg/status").write_text(status)
    return place


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QGPU_TREES", str(tmp_path))
    return tmp_path


def test_exact_version_is_the_packages(root: Path) -> None:
    assert tree.exact(made(root, "24.11")) == "24.11.5-4"
    assert tree.exact(root / "nothing") == ""
    assert (
        tree.exact(made(root, "x", STATUS.replace("Version: 24", "Version: 1:24"))) == "24.11.5-4"
    )
    assert tree.exact(made(root, "y", "Package: slurm-client\nVersion: 1-1\n")) == ""


def test_unknown_version_is_refused_with_those_there_are() -> None:
    with pytest.raises(SandboxError, match=r"'23\.02' is not a version .* 22\.05, 24\.11, 26\.05"):
        tree.release("23.02")


def test_an_existing_tree_is_used_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = made(root, "24.11")
    monkeypatch.setattr(tree, "_make", lambda *_: pytest.fail("made again"))
    assert tree.ensure("24.11") == place


def test_a_tree_that_came_out_with_another_version_is_no_tree(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def debootstrap(argv: list[str], **_: object) -> object:
        made(root, Path(argv[-3]).name, STATUS.replace("24.11.5-4", "27.05.1-1"))
        return type("Done", (), {"returncode": 0})()

    monkeypatch.setattr(tree.subprocess, "run", debootstrap)
    with pytest.raises(SandboxError, match=r"Debian sid has Slurm 27\.05\.1-1 now"):
        tree.ensure("26.05")
    assert not (root / "26.05").exists()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "x: 1: Cannot fork\nI: Configuring required packages...\nW: Failure while",
            "x: 1: Cannot",
        ),
        ("rm: cannot remove 'a': Operation not permitted\nI: Extracting zlib1g...", "rm: cannot"),
        ("E: Can not write log (Is /dev/pts mounted?)\nE: You have no space", "E: You have"),
        ("invoke-rc.d: policy-rc.d denied execution of start.\nthe end\n\n", "the end"),
        ("cc -c a.c\na.c:1: error: x\nmake: *** [a.o] Error 1", "a.c:1: error: x"),
        ("", "it said nothing"),
    ],
)
def test_the_cause_is_the_first_line_that_says_a_failure(output: str, said: str) -> None:
    assert cause(output).startswith(said)


LEFT = """
set -e
mkdir -p "$1/kept" "$1/26.05.unfinished/proc"
touch "$1/kept/file"
mount --bind "$1/kept" "$1/26.05.unfinished/proc"
cd "$1/$3"
exec "$2" -c '
import sys, pathlib
from cli.sandbox.errors import SandboxError
from cli.sandbox.versions import tree
try:
    tree.clear(pathlib.Path(sys.argv[1], "26.05.unfinished"))
except SandboxError as error:
    print(error)
' "$1"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("where", [".", "26.05.unfinished/proc"])
def test_nothing_is_removed_through_a_mount_that_an_attempt_left(root: Path, where: str) -> None:
    words = ["unshare", "--mount", "sh", "-c", LEFT, "sh", str(root), sys.executable, where]
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tree.CHECKOUT)}
    )
    assert (root / "kept/file").exists()
    busy = where != "."  # its own working directory is there
    assert busy == (root / "26.05.unfinished").exists()
    assert busy == ("/26.05.unfinished/proc is mounted" in done.stdout), done


def test_the_command_binds_a_build_of_its_own_over_the_checkouts(root: Path) -> None:
    made(root, "24.11")
    words = tree.command("24.11", ["make", "native"])
    (own,) = (root / "24.11/var/lib/qgpu-tree").iterdir()
    assert words[:5] == ["unshare", "--mount", "--propagation", "private", "--"]
    assert words[-2:] == ["make", "native"] and "QGPU_TREE=24.11" in words
    binds = words[words.index(str(tree.CHECKOUT)) + 1 : words.index("--", 5)]
    pairs = dict(zip(binds[::2], binds[1::2], strict=True))
    assert pairs[str(own / "build")] == str(tree.CHECKOUT / "build")
    assert pairs[str(own / ".venv")] == str(tree.CHECKOUT / ".venv")
    assert list(pairs).index(str(tree.CHECKOUT)) < list(pairs).index(str(own / "build"))


def test_a_version_that_cannot_be_had_is_not_run_and_never_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> Path:
        raise SandboxError("no mirror")

    monkeypatch.setattr(tree, "ensure", refuse)
    monkeypatch.setattr(tree, "here", lambda: "22.05")
    result = matrix.run("26.05", [])
    assert (result.outcome, result.said, result.exact) == ("not run", "no mirror", "")
    assert "not run" in result.line()


def test_a_version_that_does_not_build_has_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(root, "24.11")

    def fail(*_: object) -> None:
        raise SandboxError("make native failed")

    monkeypatch.setattr(tree, "run_make", fail)
    monkeypatch.setattr(tree, "here", lambda: "22.05")
    assert matrix.run("24.11", []).outcome == "failed"


@pytest.fixture
def runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run on 24.11; the first time one test fails, and after that none does."""
    made(root, "24.11")
    seen: list[list[str]] = []

    def tee(argv: list[str]) -> tuple[str, int]:
        seen.append(argv)
        return ("1 failed, 9 passed", 1) if len(seen) == 1 else ("1 passed", 0)

    monkeypatch.setattr(matrix, "_tee", tee)
    monkeypatch.setattr(tree, "run_make", lambda *_: None)
    monkeypatch.setattr(tree, "here", lambda: "22.05")
    return seen


def test_what_failed_is_run_once_more_only_when_asked_for_and_the_result_says_so(
    runs: list[list[str]],
) -> None:
    assert (matrix.run("24.11", []).outcome, len(runs)) == ("failed", 1)
    runs.clear()
    result = matrix.run("24.11", [], again=True)
    assert (result.outcome, result.exact, len(runs)) == ("passed", "24.11.5-4", 2)
    assert "--last-failed" in runs[1] and "--last-failed" not in runs[0]
    assert result.said == "1 failed, 9 passed; those that failed once more, alone: 1 passed"


@pytest.mark.parametrize(
    ("seconds", "outcomes"),
    [(None, ["failed"]), (1e6, ["failed"]), (60, ["not run"]), (0, ["not run"])],
)
def test_a_version_is_not_begun_without_the_time_for_it(
    runs: list[list[str]], seconds: float | None, outcomes: list[str]
) -> None:
    found = matrix.run_all(["24.11"], [], False, seconds)
    assert [result.outcome for result in found] == outcomes
    assert bool(runs) == (outcomes == ["failed"])


@pytest.mark.parametrize(
    ("left", "others", "suite"),
    [
        (math.inf, 1, matrix.SUITE),
        (24 * 60, 1, matrix.SUITE),
        (19 * 60, 1, matrix.SUITE),
        (18 * 60, 1, matrix.SUBSET),
        (12 * 60, 0, matrix.SUITE),
        (7 * 60, 0, matrix.SUBSET),
        (6 * 60, 0, ()),
        (-1, 1, ()),
    ],
)
def test_short_time_runs_what_differs_between_versions(
    left: float, others: int, suite: tuple[str, ...]
) -> None:
    assert matrix.choose(left, others) == suite
    assert all((matrix.tree.CHECKOUT / name).exists() for name in suite)


def test_the_result_of_a_subset_says_so(runs: list[list[str]]) -> None:
    [result] = matrix.run_all(["24.11"], [], True, 8 * 60)
    assert result.said.endswith("(subset)") and "tests/slurm/sandbox/test_surface.py" in runs[0]
    assert "tests/slurm" not in runs[0]


@pytest.mark.parametrize(("outcome", "status"), [("passed", 0), ("not run", 0), ("failed", 1)])
def test_only_a_failure_fails_the_command_and_all_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: str, status: int
) -> None:
    def run(version: str, *_: object) -> matrix.Result:
        return matrix.Result(
            version, f"{version}.5", outcome if version == "26.05" else "passed", 1, "said"
        )

    monkeypatch.setattr(matrix, "run", run)
    monkeypatch.setattr(matrix, "RESULT", tmp_path / "matrix.json")
    monkeypatch.setattr(tree, "here", lambda: "22.05")
    done = CliRunner().invoke(matrix.main, ["--others", "--again"])
    assert done.exit_code == status, done.output
    found = json.loads((tmp_path / "matrix.json").read_text())
    assert [(each["version"], each["exact"], each["outcome"]) for each in found] == [
        ("24.11", "24.11.5", "passed"),
        ("26.05", "26.05.5", outcome),
    ]


@pytest.mark.parametrize(
    ("version", "asked", "mounted", "cgroup"),
    [
        ("22.05", None, True, "auto"),
        ("24.11", None, True, "v2"),
        ("26.05", None, True, "v2"),
        ("26.05", None, False, "auto"),
        ("26.05", "v1", True, "v1"),
        ("22.05", "v2", True, "v2"),
    ],
)
def test_later_versions_run_on_cgroups_version_2(
    root: Path,
    runs: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    asked: cgroups.Choice | None,
    mounted: bool,
    cgroup: str,
) -> None:
    if version != "24.11":  # of `runs`
        made(root, version)
    monkeypatch.setattr(tree, "here", lambda: None)
    monkeypatch.setattr(cgroups, "unified", lambda: Path("/sys/fs/cgroup") if mounted else None)
    [result] = matrix.run_all([version], [], False, None, asked)
    assert f"{CGROUP_VARIABLE}={cgroup}" in runs[0]
    assert result.cgroup == cgroup and f" cgroup {cgroup} " in result.line()
