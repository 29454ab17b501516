"""The packages as built: equal in each build, split without overlap, and kept in step with
Slurm.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from install_support import ROOT, make

from gres.version import VERSION

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]
NAMES = ("qgpu", "qgpu-node", "qgpu-controller", "qgpu-slurm-plugins", "qgpu-simulator")


def output(*words: str | Path) -> str:
    """What a program prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def slurm() -> str:
    """The release of Slurm that is built for."""
    return output(ROOT / "packaging/slurm_version.sh").strip()


def build(kind: str, source: Path) -> dict[str, Path]:
    """The packages of a kind that this tree makes, by name. Their linter has to pass."""
    run = subprocess.run(
        ["make", "-s", kind], cwd=source, capture_output=True, text=True, umask=0o027
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = sorted((source / "build/packages").glob(f"*.{kind}"))
    return {re.split(r"[_-]\d", path.name)[0]: path for path in found if ".src." not in path.name}


@pytest.fixture(scope="module")
def debs() -> dict[str, Path]:
    """The Debian packages of this checkout."""
    return build("deb", ROOT)


@pytest.fixture(scope="module")
def rpms() -> dict[str, Path]:
    """The RPM packages of this checkout."""
    return build("rpm", ROOT)


def field(deb: Path, name: str) -> str:
    """A field of the package's control file."""
    return output("dpkg-deb", "-f", deb, name).strip()


def members(deb: Path) -> list[str]:
    """The package's files, without a leading dot."""
    lines = output("dpkg-deb", "-c", deb).splitlines()
    return [line.split()[5].removeprefix(".") for line in lines if not line.startswith("d")]


def test_a_build_from_the_archive_without_git_gives_the_same_files(
    debs: dict[str, Path], tmp_path: Path
) -> None:
    make("dist")
    with tarfile.open(ROOT / f"build/packages/qgpu-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    again = build("deb", tmp_path / f"qgpu-{VERSION}")
    assert again.keys() == debs.keys() == set(NAMES)
    for name, path in debs.items():
        digests = {hashlib.sha256(each.read_bytes()).hexdigest() for each in (path, again[name])}
        assert len(digests) == 1, name


def test_each_file_is_in_one_package_and_tells_nothing_of_the_build(
    debs: dict[str, Path], tmp_path: Path
) -> None:
    listed = [name for deb in debs.values() for name in members(deb)]
    assert len(listed) == len(set(listed))
    for deb in debs.values():
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path / deb.name], check=True)
    here = str(ROOT).encode()
    assert not [
        p
        for p in tmp_path.rglob("*")
        if p.is_file() and not p.is_symlink() and here in p.read_bytes()
    ]


def test_configuration_files_are_only_ours(debs: dict[str, Path]) -> None:
    for name, deb in debs.items():
        told = subprocess.run(
            ["dpkg-deb", "-I", deb, "conffiles"], capture_output=True, text=True
        ).stdout
        expected = ["/etc/ld.so.conf.d/qgpu-simulator.conf"] if name == "qgpu-simulator" else []
        assert told.split() == expected
        assert not [
            file for file in members(deb) if file.startswith("/etc/") and file not in expected
        ]


def test_an_update_of_slurm_cannot_leave_the_plugin_stale(debs: dict[str, Path]) -> None:
    this, (major, minor) = slurm(), map(int, slurm().split("."))
    plugins = debs["qgpu-slurm-plugins"]
    assert field(plugins, "Version").endswith(f"+slurm{this}")
    depends = field(plugins, "Depends")
    assert f"slurm-wlm-basic-plugins (>= {this}~)" in depends
    assert f"slurm-wlm-basic-plugins (<< {major}.{minor + 1:02d}~)" in depends
    assert "qgpu-slurm-plugins (>= " in field(debs["qgpu-node"], "Depends")


def test_no_package_depends_on_the_simulator(debs: dict[str, Path]) -> None:
    for deb in debs.values():
        for name in ("Depends", "Recommends", "Suggests"):
            assert "qgpu-simulator" not in field(deb, name)
    assert "libcuda1" in field(debs["qgpu-simulator"], "Conflicts")


def test_the_environments_python_is_bounded_to_what_its_modules_serve(
    debs: dict[str, Path],
) -> None:
    depends = field(debs["qgpu"], "Depends")
    assert "python3 (>= 3.11)" in depends and "python3 (<< 3.14)" in depends
    tags = {tag for name in members(debs["qgpu"]) for tag in re.findall(r"\.cpython-(3\d+)-", name)}
    assert tags == {"311", "312", "313"}


def test_daemons_are_enabled_and_restarted_and_slurmd_is_left_alone(debs: dict[str, Path]) -> None:
    scripts = ""
    for name in ("postinst", "prerm", "postrm"):
        scripts += output("dpkg-deb", "-I", debs["qgpu-node"], name)
    assert "deb-systemd-helper enable 'qgpud.service'" in scripts
    assert "deb-systemd-invoke $_dh_action 'qgpu-arbiter.service' 'qgpud.service'" in scripts
    assert "slurm" not in scripts
    timers = output("dpkg-deb", "-I", debs["qgpu-controller"], "postinst")
    # What is off at first is enabled again only where an admin had enabled it ("debian-installed").
    kept = set(re.findall(r"debian-installed '(.*?)'", timers))
    assert kept == {"qgpu-collect.timer", "qgpu-extend.timer"}
    assert set(re.findall(r"deb-systemd-helper enable '(.*?)'", timers)) - kept == {
        "qgpu-guard.timer"
    }
    assert re.findall(r"deb-systemd-invoke \S+ '(.*?)'", timers) == ["qgpu-guard.timer"]


def test_the_rpms_have_the_same_parts_in_the_places_of_el(
    rpms: dict[str, Path], debs: dict[str, Path]
) -> None:
    assert rpms.keys() == set(NAMES)
    files = {name: output("rpm", "-qpl", path).split() for name, path in rpms.items()}
    assert "/usr/lib64/qgpu/qgpu_spank.so" in files["qgpu-slurm-plugins"]
    assert "/usr/lib64/qgpu/python/bin/python3" in files["qgpu"]
    for name in NAMES:
        own = [
            each for each in members(debs[name]) if not re.search(r"/doc/|/lintian/|/zsh/", each)
        ]
        el = re.compile(r"^/usr/lib(/qgpu|/[^/]+-linux-gnu(?=/security))")
        moved = {el.sub(lambda at: "/usr/lib64" + at[1].split("/")[0], each) for each in own}
        assert moved <= set(files[name]), moved - set(files[name])


def test_the_rpms_ask_for_one_release_of_slurm_and_offer_no_driver(rpms: dict[str, Path]) -> None:
    requires = output("rpm", "-qpR", rpms["qgpu-slurm-plugins"]).splitlines()
    assert f"slurm >= {slurm()}" in requires
    assert [line for line in requires if line.startswith("slurm < ")]
    assert "python3.11" in output("rpm", "-qpR", rpms["qgpu"]).splitlines()
    for path in rpms.values():
        assert "libcuda" not in output("rpm", "-qp", "--provides", path)
        assert "libnvidia" not in output("rpm", "-qp", "--provides", path)


def test_rpms_scripts_never_fail_and_never_stop_slurmd(rpms: dict[str, Path]) -> None:
    scripts = output("rpm", "-qp", "--scripts", rpms["qgpu-node"])
    assert "try-restart qgpu-arbiter.service qgpud.service" in scripts
    commands = [line for line in scripts.splitlines() if not line.startswith("#")]
    assert "slurmd" not in "\n".join(commands)
    for line in commands:
        assert not line.startswith("systemctl") or line.endswith("|| :")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that everybody may enter; pytest closes its own to others whenever it starts."""
    with tempfile.TemporaryDirectory(prefix="qgpu-packages-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_everything_builds_as_an_ordinary_user(open_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("this test is of root, who may become another")
    for name in ("src", "home"):
        (open_path / name).mkdir()
    make("dist")
    archive = ROOT / f"build/packages/qgpu-{VERSION}.tar.gz"
    subprocess.run(
        ["tar", "-xzf", archive, "-C", open_path / "src", "--strip-components=1"], check=True
    )
    wheels = open_path / "src/build"
    wheels.mkdir()
    subprocess.run(["cp", "-a", ROOT / "build/wheels", wheels], check=True)
    subprocess.run(["chown", "-R", "nobody", open_path], check=True)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(open_path / "home"), "LC_ALL": "C.UTF-8"}
    run = subprocess.run(
        [
            "setpriv",
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "packaging/deb.sh",
            VERSION,
            "1",
            "out",
        ],
        cwd=open_path / "src",
        env=env,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert len(list((open_path / "src/out").glob("*.deb"))) == len(NAMES)
