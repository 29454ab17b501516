"""What the product's build refuses: symbols of a new C library, and a machine that lacks
something.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from install_support import ROOT

from gres.version import VERSION

pytestmark = pytest.mark.native
CHECK = ROOT / "packaging/glibc.py"
LIBRARIES = ("shim/libcuda.so.1", "shim/libnvidia-ml.so.1")
SIMULATED = ("sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "bin/qgpu-workload")


def check(newest: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, CHECK, newest, *paths], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("newest", "names"), [("2.17", LIBRARIES), ("2.28", SIMULATED)], ids=["shims", "simulated"]
)
def test_what_enters_users_programs_loads_with_an_old_c_library(
    newest: str, names: tuple[str, ...]
) -> None:
    told = check(newest, *(ROOT / "build" / name for name in names))
    assert (told.returncode, told.stderr) == (0, "")


def test_a_symbol_that_is_too_new_and_a_library_are_named(tmp_path: Path) -> None:
    source = tmp_path / "x.c"
    source.write_text(
        "#include <math.h>\n#include <time.h>\nint f(struct timespec *t) { return "
        "clock_gettime(0, t); }\n"
    )
    library = tmp_path / "x.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert check("2.17", library).returncode == 0
    told = check("2.16", library)
    assert told.returncode == 1
    assert f"{library} needs clock_gettime of GLIBC_2.17; the limit is 2.16" in told.stderr
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed", "-lgcc_s"],
        check=True,
    )
    assert "needs libgcc_s.so.1, which a container may lack" in check("2.17", library).stderr


def test_what_an_older_rule_made_is_made_again(tmp_path: Path) -> None:
    build, rules = tmp_path / "build", tmp_path / "build.mk"
    rules.write_text("FLAGS := -O1\n")

    def kept(flags: str) -> bool:
        (build / "obj").mkdir(parents=True, exist_ok=True)
        subprocess.run([ROOT / "tools/rules.sh", build, "cc", flags, rules], check=True)
        return (build / "obj").is_dir()

    assert [kept("-g"), kept("-g"), kept("-g")] == [False, True, True]
    assert [kept("-g -O2"), kept("-g -O2")] == [False, True]
    rules.write_text("FLAGS := -O2\n")
    assert [kept("-g -O2"), kept("-g -O2")] == [False, True]


@pytest.fixture
def poor(tmp_path: Path) -> dict[str, str]:
    """A machine with a shell, a compiler and Python; no package manager, no Slurm."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "id", "python3", "nm", "sed", "mkdir", "tail"):
        (programs / name).symlink_to(
            shutil.which(name, path="/usr/bin:/bin") or pytest.fail(f"no {name} here")
        )
    cc = programs / "nocc"
    cc.write_text(
        "#!/bin/bash\nwhile read -r l; do case $l in *slurm*) exit 1; esac; done\nexit 0\n"
    )
    cc.chmod(0o755)
    return {"PATH": str(programs), "CC": str(cc)}


def test_what_is_missing_is_said_with_the_packages_names(poor: dict[str, str]) -> None:
    told = subprocess.run(
        [ROOT / "packaging/need.sh", "product"], env=poor, capture_output=True, text=True
    )
    assert told.returncode == 1
    assert told.stderr.splitlines() == [
        "need: Slurm's header slurm/spank.h is missing: install libslurm-dev (Debian) or "
        "slurm-devel (EL)"
    ]


def test_every_missing_tool_is_said_at_once(poor: dict[str, str]) -> None:
    poor["CC"] = "no-such-compiler"
    told = subprocess.run(
        [ROOT / "packaging/need.sh", "product", "deb"], env=poor, capture_output=True, text=True
    )
    for what in ("gcc", "libc6-dev", "libslurm-dev", "debhelper", "dpkg-dev"):
        assert f"install {what} (Debian)" in told.stderr
    assert "install python3 (Debian)" not in told.stderr


def test_wheels_that_cannot_be_had_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    command = [
        ROOT / "packaging/python/fetch.sh",
        ROOT / "packaging/python/headers.lock",
        tmp_path / "w",
        "3.11",
    ]
    env = os.environ | {"QGPU_WHEELS": str(tmp_path / "none")}
    told = subprocess.run(command, env=env, capture_output=True, text=True)
    assert told.returncode != 0
    assert "could not be downloaded" in told.stderr and "QGPU_WHEELS=DIRECTORY" in told.stderr


def test_the_lock_pins_each_dependency_with_hashes_for_each_python() -> None:
    text = (ROOT / "packaging/python/requirements.lock").read_text()
    pins = dict(re.findall(r"^([\w-]+)==(\S+) \\$", text, re.M))
    project = (
        (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("]")[0]
    )
    assert {name.lower() for name in re.findall(r'"([\w-]+)', project)} <= pins.keys()
    entries = re.split(r"^(?=[\w-]+==)", text, flags=re.M)[1:]
    hashes = {entry.partition("==")[0]: entry.count("--hash=sha256:") for entry in entries}
    assert min(hashes.values()) >= 1
    assert hashes["pydantic-core"] == hashes["markupsafe"] == hashes["pyyaml"] == 3


def test_the_source_archive_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    for archive in (first, second):
        subprocess.run([ROOT / "packaging/dist.sh", VERSION, archive], check=True)
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        members = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
        assert {member.name.partition("/")[0] for member in archive} == {f"qgpu-{VERSION}"}
    assert {
        "Makefile",
        "packaging/epoch",
        "packaging/debian/rules",
        "gres/version.py",
    } <= members.keys()
    assert not [name for name in members if name.startswith((".venv", "build/", ".git/"))]
    assert len({member.mtime for member in members.values()}) == 1
    assert {member.mode for member in members.values()} <= {0o644, 0o755}


def test_the_version_of_slurm_sets_the_bounds_of_the_plugins_package(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    header = tmp_path / "slurm/slurm_version.h"
    script = ROOT / "packaging/slurm_version.sh"

    def told(*words: str, **more: str) -> str:
        env = os.environ | {"SLURM_INC": str(tmp_path)} | more
        return subprocess.run(
            [script, *words], env=env, capture_output=True, text=True, check=True
        ).stdout

    header.write_text("#define SLURM_VERSION_NUMBER 0x180b05\n")
    assert told() == "24.11\n"
    depends = told("--depends").splitlines()[0]
    assert (
        "slurm-wlm-basic-plugins (>= 24.11~)" in depends
        and "slurm-wlm-basic-plugins (<< 24.12~)" in depends
    )
    exact = told("--depends", NATIVE_GRES="/x").splitlines()[0]
    assert "(>= 24.11.5~)" in exact and "(<< 24.11.6~)" in exact


def test_make_names_the_slurm_headers_where_they_are_missing() -> None:
    env = os.environ | {"CC": "false"}
    told = subprocess.run(
        [ROOT / "packaging/slurm_version.sh"], env=env, capture_output=True, text=True
    )
    assert told.returncode == 1 and "libslurm-dev" in told.stderr


def test_a_wheel_of_the_checkout_does_not_take_the_native_parts(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "gres/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "build/lib").mkdir(parents=True)
    (tmp_path / "build/lib/qgpu_spank.so").touch()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "install_lib", "-d", "wheel"], cwd=tmp_path, check=True
    )
    assert (tmp_path / "wheel/gres/version.py").exists()
    assert not list((tmp_path / "wheel").rglob("*.so"))
