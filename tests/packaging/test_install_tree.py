"""`make install` is the truth: what lies where, with which modes, for any directories and
component.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from install_support import ROOT, make

from gres.paths import ABI_VERSION, InstallPaths

pytestmark = pytest.mark.native
COMPONENTS = ("qgpu", "node", "controller", "slurm-plugins", "simulator")
PAM_DIR = str(next(Path("/usr/lib").glob("*-linux-gnu/security"))).lstrip("/")
PROGRAMS = {
    "usr/bin/qgpu",
    "usr/sbin/qgpud",
    *(
        f"usr/libexec/qgpu/qgpu-{name}"
        for name in ("arbiter", "checkpoint", "hook", "mounts", "simulate", "simgpu", "workload")
    ),
}
FILES = {
    "qgpu": {
        "usr/bin/qgpu",
        "usr/lib/qgpu/python/pyvenv.cfg",
        "usr/lib/qgpu/python/site-packages/gres/install.json",
        "usr/lib/qgpu/python/site-packages/configs/templates/prolog.j2",
        "usr/lib/qgpu/python/site-packages/enforcer/ledger/sql/0001_usage.sql",
        "usr/libexec/qgpu/qgpu-simulate",
        "usr/share/qgpu/lua/qgpu.lua",
        "usr/share/qgpu/lua/qgpu_cli_filter.lua",
        "usr/share/qgpu/lua/qgpu_text.lua",
        "usr/share/qgpu/examples/qgpu.yaml",
        "usr/share/qgpu/examples/qgpu_cards.rb",
        "usr/share/man/man1/qgpu.1",
        "usr/share/man/man5/qgpu.yaml.5",
        "usr/share/bash-completion/completions/qgpu",
        "usr/share/zsh/site-functions/_qgpu",
    },
    "node": {
        "usr/sbin/qgpud",
        "usr/libexec/qgpu/qgpu-arbiter",
        "usr/libexec/qgpu/qgpu-checkpoint",
        "usr/libexec/qgpu/qgpu-hook",
        "usr/libexec/qgpu/qgpu-mounts",
        f"{PAM_DIR}/pam_qgpu.so",
        f"usr/lib/qgpu/{ABI_VERSION}/libcuda.so.1",
        f"usr/lib/qgpu/{ABI_VERSION}/libnvidia-ml.so.1",
        "usr/lib/systemd/system/qgpud.service",
        "usr/lib/systemd/system/qgpu-arbiter.service",
        "usr/lib/systemd/system/qgpu.slice",
        "usr/lib/tmpfiles.d/qgpu.conf",
        "usr/share/man/man8/qgpud.8",
        "usr/share/man/man8/qgpu-arbiter.8",
    },
    "controller": {
        "usr/share/qgpu/lua/qgpu_job_submit.lua",
        *(
            f"usr/lib/systemd/system/qgpu-{n}.{k}"
            for n in ("collect", "extend", "guard")
            for k in ("timer", "service")
        ),
    },
    "slurm-plugins": {"usr/lib/qgpu/qgpu_spank.so"},
    "simulator": {
        "usr/libexec/qgpu/qgpu-simgpu",
        "usr/libexec/qgpu/qgpu-workload",
        "usr/lib/qgpu/sim/libcuda.so.1",
        "usr/lib/qgpu/sim/libnvidia-ml.so.1",
        "usr/lib/systemd/system/qgpu-simgpu.service",
        "etc/ld.so.conf.d/qgpu-simulator.conf",
    },
}


def files(tree: Path) -> set[str]:
    """All that is no directory."""
    return {
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_each_component_has_its_files_and_no_file_is_in_two(tree: Path, tmp_path: Path) -> None:
    seen: dict[str, str] = {}
    for component in COMPONENTS:
        target = tmp_path / component
        make("install", f"DESTDIR={target}", "PREFIX=/usr", f"COMPONENT={component}")
        found = files(target)
        assert FILES[component] <= found
        assert not {name: seen[name] for name in found & seen.keys()}
        seen |= dict.fromkeys(found, component)
    assert seen.keys() == files(tree)


def test_modes_are_those_of_programs_and_data_whatever_the_umask(tree: Path) -> None:
    for path in tree.rglob("*"):
        name, mode = str(path.relative_to(tree)), stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            continue
        expected = 0o755 if path.is_dir() or name in PROGRAMS else 0o644
        assert mode == expected, (name, oct(mode))
    assert files(tree) >= PROGRAMS


def test_no_file_tells_where_or_when_it_was_built(tree: Path) -> None:
    here = str(ROOT).encode()
    # Programs may be older than the flag that keeps it out of them; test_packages.py looks at a
    # clean build.
    texts = [
        path for path in tree.rglob("*") if path.is_file() and path.read_bytes()[:4] != b"\x7fELF"
    ]
    assert not [path for path in texts if here in path.read_bytes()]
    for name in ("RECORD", "INSTALLER", "direct_url.json", "__pycache__"):
        assert not list(tree.rglob(name))
    assert not [name for name in files(tree) if name.endswith((".pyc", ".c", ".h"))]


def test_other_directories_reach_units_launchers_and_defaults(tmp_path: Path) -> None:
    words = {
        "PREFIX": "/opt/q",
        "LIBDIR": "/opt/q/lib64",
        "SYSCONFDIR": "/opt/etc",
        "RUNDIR": "/run/x/y",
    }
    words |= {"STATEDIR": "/srv/q", "UNITDIR": "/opt/units", "SLURM_CONFDIR": "/opt/slurm/etc"}
    words |= {"SLURM_PLUGINDIR": "/opt/slurm/lib"}
    make("install", f"DESTDIR={tmp_path}", *(f"{key}={value}" for key, value in words.items()))
    site = tmp_path / "opt/q/lib64/qgpu/python/site-packages"
    told = InstallPaths(**json.loads((site / "gres/install.json").read_text()))
    assert told.shim == f"/opt/q/lib64/qgpu/{ABI_VERSION}/libcuda.so.1"
    assert (told.config_file, told.run_dir, told.state_dir) == (
        "/opt/etc/qgpu/qgpu.yaml",
        "/run/x/y",
        "/srv/q",
    )
    assert (told.fragments_dir, told.slurm_plugin_dir) == ("/opt/slurm/etc/qgpu", "/opt/slurm/lib")
    units = "".join(path.read_text() for path in (tmp_path / "opt/units").iterdir())
    assert "ExecStart=/opt/q/sbin/qgpud --config /opt/etc/qgpu/qgpu.yaml" in units
    assert "RuntimeDirectory=x/y" in units and "ReadWritePaths=/srv/q" in units
    texts = [
        *(tmp_path / "opt/units").iterdir(),
        tmp_path / "opt/q/bin/qgpu",
        tmp_path / "opt/q/sbin/qgpud",
    ]
    for path in (*texts, tmp_path / "opt/q/lib/tmpfiles.d/qgpu.conf"):
        assert not re.search(
            r"@\w+@|/usr/(lib|libexec|sbin)/|/(run|var/lib)/qgpu\b(?!-sim)", path.read_text()
        ), path


def test_a_relative_directory_is_refused(tmp_path: Path) -> None:
    run = make("install", f"DESTDIR={tmp_path}", "PREFIX=usr", check=False)
    assert run.returncode != 0
    assert "bin_dir=usr/bin must be an absolute path" in run.stderr


def test_every_daemon_is_started_again_however_often_it_failed(tree: Path) -> None:
    restarting = []
    for unit in (tree / "usr/lib/systemd/system").glob("*.service"):
        text = unit.read_text()
        if "\nRestart=" in text:
            restarting.append(unit.name)
            before, _, _ = text.partition("[Service]")
            assert "\nStartLimitIntervalSec=0\n" in before, unit.name
            assert re.search(r"^RestartSec=(500ms|[12]s)$", text, re.M), unit.name
    assert sorted(restarting) == ["qgpu-arbiter.service", "qgpu-simgpu.service", "qgpud.service"]


def test_a_node_without_configuration_starts_nothing_and_fails_nothing(tree: Path) -> None:
    for name in ("qgpud", "qgpu-arbiter"):
        unit = (tree / f"usr/lib/systemd/system/{name}.service").read_text()
        assert "\nConditionPathExists=/etc/qgpu/qgpu.yaml\n" in unit
        assert "\nRuntimeDirectoryPreserve=yes\n" in unit


def test_collect_and_extend_may_write_to_a_shared_file_system(tree: Path) -> None:
    for name in ("collect", "extend"):
        unit = (tree / f"usr/lib/systemd/system/qgpu-{name}.service").read_text()
        assert "\nProtectSystem=full\n" in unit


def test_the_simulator_and_its_unit_agree_on_the_directory(tree: Path) -> None:
    header = (ROOT / "simulator/native/protocol/sim_proto.h").read_text()
    match = re.search(r'SIM_DEFAULT_DIR "(.*?)"', header)
    assert match
    unit = (tree / "usr/lib/systemd/system/qgpu-simgpu.service").read_text()
    assert f" --dir {match[1]} " in unit
    assert (tree / "etc/ld.so.conf.d/qgpu-simulator.conf").read_text() == "/usr/lib/qgpu/sim\n"


def test_of_the_simulator_in_python_only_the_engine_of_simulate_is_installed(tree: Path) -> None:
    site = tree / "usr/lib/qgpu/python/site-packages/simulator"
    found = {path.relative_to(site).as_posix() for path in site.rglob("*.py")}
    assert found == {
        "__init__.py",
        "whatif/__init__.py",
        "whatif/simprogram.py",
        "whatif/simulate.py",
        "whatif/simtrace.py",
    }


def test_the_environment_is_the_same_when_it_is_made_again(tree: Path, tmp_path: Path) -> None:
    script = ROOT / "packaging/python/environment.py"
    subprocess.run(
        [sys.executable, script, "site", ROOT / "build/wheels/site", ROOT, tmp_path / "site"],
        check=True,
    )
    installed = tree / "usr/lib/qgpu/python/site-packages"
    assert files(installed) - files(tmp_path / "site") == {"gres/install.json"}
    for name in files(tmp_path / "site"):
        assert (tmp_path / "site" / name).read_bytes() == (installed / name).read_bytes(), name


def test_the_spec_lists_every_file_that_is_installed(tree: Path) -> None:
    places = {
        "bindir": "usr/bin",
        "sbindir": "usr/sbin",
        "libdir": "usr/lib",
        "libexecdir": "usr/libexec",
    }
    places |= {"datadir": "usr/share", "mandir": "usr/share/man", "sysconfdir": "etc"}
    places |= {"unitdir": "usr/lib/systemd/system", "tmpfilesdir": "usr/lib/tmpfiles.d"}
    spec = (ROOT / "packaging/rpm/qgpu.spec.in").read_text().partition("\n%files\n")[2]
    spec = spec.replace("%{_libdir}/security", PAM_DIR)
    for name, value in places.items():
        spec = spec.replace(f"%{{_{name}}}", value)
    spec = spec.replace("%{bashdir}", "usr/share/bash-completion/completions").replace(
        "@abi@", str(ABI_VERSION)
    )
    spec = spec.replace("%{zshdir}", "usr/share/zsh/site-functions").replace(
        "%config(noreplace) ", ""
    )
    patterns = [
        line.removesuffix(".gz") for line in spec.splitlines() if line.startswith(("usr/", "etc/"))
    ]
    patterns += ["usr/share/qgpu/lua/*.lua"]  # @lua_common@ and @lua_controller@ of install.mk
    missing = {
        name
        for name in files(tree)
        if not any(fnmatch(name, line) or name.startswith(line + "/") for line in patterns)
    }
    assert missing == set()


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("DESTDIR", "a b"),
        ("PREFIX", "a'b"),
        ("DESTDIR", "a\\b"),
        ("STATEDIR", "a|b"),
        ("SLURM_PLUGINDIR", "a;touch x"),
    ],
)
def test_paths_that_make_cannot_carry_are_refused_before_anything_is_written(
    tmp_path: Path, place: str, name: str
) -> None:
    words = {"DESTDIR": tmp_path / "d", place: tmp_path / name}
    run = make("install", *(f"{key}={value}" for key, value in words.items()), check=False)
    assert run.returncode != 0
    assert (
        f"make install: {place} is '{tmp_path / name}'" in run.stderr
        and "cannot be installed to" in run.stderr
    )
    assert list(tmp_path.iterdir()) == []
