"""The private environment: of one version, seen by nothing else, and seeing nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from install_support import ROOT

from gres.version import VERSION

pytestmark = pytest.mark.native


@pytest.fixture
def python(tree: Path) -> Path:
    """The environment's own interpreter."""
    return tree / "usr/lib/qgpu/python/bin/python3"


def launch(
    tree: Path, launcher: str, *words: str, **more: object
) -> subprocess.CompletedProcess[str]:
    """Run an installed launcher as its first line does, below DESTDIR."""
    script = tree / launcher
    interpreter, option = script.read_text().splitlines()[0].removeprefix("#!").split()
    assert interpreter == "/usr/lib/qgpu/python/bin/python3"
    command = [str(tree) + interpreter, option, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_all_programs_tell_the_one_version(tree: Path) -> None:
    assert launch(tree, "usr/bin/qgpu", "--version").stdout == f"qgpu {VERSION}\n"
    assert launch(tree, "usr/bin/qgpu", "version").stdout == f"qgpu {VERSION}\n"
    assert launch(tree, "usr/sbin/qgpud", "--version").stdout == f"qgpud {VERSION}\n"
    for name in ("arbiter", "checkpoint", "simgpu"):
        program = tree / f"usr/libexec/qgpu/qgpu-{name}"
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        assert told.stdout == f"qgpu-{name} {VERSION}\n"


def test_the_commands_of_a_source_tree_are_not_offered(tree: Path) -> None:
    told = launch(tree, "usr/bin/qgpu", "--help").stdout
    assert "doctor" in told and "render" in told
    assert "sandbox" not in told and "demo" not in told
    assert "No such command 'demo'" in launch(tree, "usr/bin/qgpu", "demo").stderr


def test_only_the_standard_library_and_its_own_packages_are_on_the_path(python: Path) -> None:
    told = subprocess.run(
        [python, "-IB", "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True,
        text=True,
    )
    *standard, site = told.stdout.splitlines()
    assert site.startswith(str(python.parents[1]))
    assert standard and not [line for line in standard if "packages" in line or "local" in line]


@pytest.mark.parametrize("launcher", ["usr/bin/qgpu", "usr/sbin/qgpud"])
def test_files_and_variables_of_the_user_change_nothing(
    tree: Path, tmp_path: Path, launcher: str
) -> None:
    for name in ("cli", "enforcer", "gres", "click", "sitecustomize", "usercustomize", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    start = tmp_path / "start.py"
    start.write_text("raise SystemExit('hostile')\n")
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": str(start),
        "PYTHONHOME": str(tmp_path),
    }
    hostile |= {"PYTHONUSERBASE": str(tmp_path), "HOME": str(tmp_path), "PYTHONINSPECT": "1"}
    told = launch(tree, launcher, "--version", cwd=tmp_path, env=os.environ | hostile)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.endswith(f" {VERSION}\n")


def test_the_systems_python_does_not_see_our_packages(tree: Path) -> None:
    outside = [path for path in tree.rglob("*.py") if "qgpu/python/site-packages" not in str(path)]
    assert outside == []
    for name in ("cli", "configs", "gres", "enforcer"):
        told = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", f"import {name}"], capture_output=True, text=True
        )
        assert f"No module named '{name}'" in told.stderr


def test_every_command_can_be_imported_with_the_wheels_alone(tree: Path, python: Path) -> None:
    code = (
        "import importlib, cli.main as m\n"
        "for name, (module, attribute, _) in m.COMMANDS.items():\n"
        "    if m.present(name): getattr(importlib.import_module(module), attribute)\n"
        "import enforcer.daemon.main, slurm_plugin.render\n"
    )
    told = subprocess.run([python, "-IB", "-c", code], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


def test_a_plan_runs_the_lua_modules_that_slurmctld_runs(tree: Path) -> None:
    modules = tree / "usr/share/qgpu/lua"
    beside = tree / "usr/lib/qgpu/python/site-packages/slurm_plugin/lua"
    names = sorted(path.name for path in modules.iterdir())
    assert "qgpu_job_submit.lua" in names and names == sorted(
        path.name for path in beside.iterdir()
    )
    assert all((modules / name).read_bytes() == (beside / name).read_bytes() for name in names)
    example = tree / "usr/share/qgpu/examples/qgpu.yaml"
    found = launch(
        tree, "usr/bin/qgpu", "plan", "--gres=qgpu:30", "--qos=online", "--config", str(example)
    )
    assert found.returncode == 0 and "share=30" in found.stdout, found.stdout + found.stderr


def test_only_the_lua_that_is_run_is_taken_from_lupas_wheel(tree: Path) -> None:
    found = {path.name.split(".")[0] for path in tree.rglob("site-packages/lupa/*.so")}
    assert found == {"lua54"}


def test_completion_scripts_offer_the_commands(tree: Path, python: Path) -> None:
    script = (tree / "usr/share/bash-completion/completions/qgpu").read_text()
    assert (
        "_QGPU_COMPLETE=bash_complete" in script
        and "complete -o nosort -F _qgpu_completion qgpu" in script
    )
    assert (tree / "usr/share/zsh/site-functions/_qgpu").read_text().startswith("#compdef qgpu\n")
    env = os.environ | {
        "_QGPU_COMPLETE": "bash_complete",
        "COMP_WORDS": "qgpu re",
        "COMP_CWORD": "1",
    }
    told = launch(tree, "usr/bin/qgpu", env=env).stdout
    assert "plain,report" in told.split() and "plain,render" in told.split()


def environment() -> object:
    """packaging/python/environment.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "environment", ROOT / "packaging/python/environment.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(path: Path, **members: str) -> Path:
    """A wheel with these members."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_that_leads_outside_or_differs_from_another_is_refused(tmp_path: Path) -> None:
    module = environment()
    outside = wheel(tmp_path / "a-1.whl", **{"../x.py": ""})
    with pytest.raises(module.BuildError, match="lies outside"):  # type: ignore[attr-defined]
        module.unpack(outside, tmp_path / "site")  # type: ignore[attr-defined]
    for name, text in (("b-1.whl", "1"), ("c-1.whl", "2")):
        wheel(tmp_path / name, **{"m.py": text})
    module.unpack(tmp_path / "b-1.whl", tmp_path / "site")  # type: ignore[attr-defined]
    with pytest.raises(module.BuildError, match="different content"):  # type: ignore[attr-defined]
        module.unpack(tmp_path / "c-1.whl", tmp_path / "site")  # type: ignore[attr-defined]


def test_scripts_and_records_of_wheels_stay_out(tmp_path: Path) -> None:
    members = {
        "m/__init__.py": "",
        "example.py": "",
        "m-1.data/scripts/x": "",
        "m-1.dist-info/RECORD": "",
    }
    members |= {"m-1.dist-info/licenses/LICENSE": "free", "m-1.dist-info/METADATA": "Name: m"}
    environment().unpack(wheel(tmp_path / "m-1.whl", **members), tmp_path / "site")  # type: ignore[attr-defined]
    found = {
        str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*") if p.is_file()
    }
    assert found == {"m/__init__.py", "m-1.dist-info/licenses/LICENSE", "m-1.dist-info/METADATA"}
