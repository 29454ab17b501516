"""A user whose LD_LIBRARY_PATH leads root to files that are not his (injection: mount).

Each test is an attack: with links that lie still, with directories exchanged before each call
that root makes, and with directories exchanged all the time.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_spank_plugin import PLUGIN, ROOT, STAGE, USER, active

from enforcer.wire.abi import pack_grant

BUILD = ROOT / "build"
NAME = "libcuda.so.1"
SECRET = "SECRET-OF-ANOTHER"
READ = "grep -rs SECRET /run/qgpu-task/real; cat /proc/self/mountinfo; echo end"
# Calls by which root finds and mounts the files. There are fewer; the last run says so.
CALLS = 400
EXCHANGE = 2  # of renameat2

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root"),
]


class Site:
    """A node with job 7 of USER, his directory, and another's file that he cannot reach."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.root, self.home, self.secret = root, root / "home", root / "private" / NAME
        for folder in ("driver", "shim", "run", "run/grants", "home", "roots"):
            (root / folder).mkdir(mode=0o755)
        for part, folder in (("sim", "driver"), ("shim", "shim"), ("sim", "roots")):
            shutil.copy(BUILD / part / NAME, root / folder)
        self.secret.parent.mkdir(mode=0o700)
        self.secret.write_text(SECRET + "\n")
        self.secret.chmod(0o666)
        os.chown(self.home, USER, USER)
        paths = {"shim_path": f"{root}/shim/{NAME}", "driver_path": f"{root}/driver/{NAME}"}
        grant = root / "run/grants/7.grant"
        grant.write_bytes(pack_grant(active(**paths), "mount"))
        grant.chmod(0o644)

    def directory(self, name: str, target: Path | None = None) -> Path:
        """A directory of the user with a library of his, or with a link of its name."""
        place = self.home / name
        place.mkdir()
        if target is None:
            (place / NAME).write_text("mine")
        else:
            (place / NAME).symlink_to(target)
        for path in (place, place / NAME):
            os.chown(path, USER, USER, follow_symlinks=False)
        return place

    def exchanged(self) -> Path:
        """Three directories that take each other's place."""
        shutil.rmtree(self.home)
        self.home.mkdir(mode=0o755)
        self.directory("first", Path("/etc/passwd"))
        self.directory("second", self.secret)
        return self.directory("d")

    def task(self, places: object, **env: str) -> str:
        """What a task with that LD_LIBRARY_PATH reads, and its mounts."""
        words = [STAGE, PLUGIN, "remote", "7", USER, f"run_dir={self.root}/run"]
        own = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(places)}
        done = subprocess.run(
            [*map(str, words), "--", "/bin/sh", "-c", READ],
            env=own | env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.endswith("end\n"), done.stderr
        return done.stdout

    def assert_held(self, told: str) -> None:
        assert f"{self.root}/driver/{NAME}" in told, "the node's driver is covered"
        assert SECRET not in told and str(self.home) not in told
        assert str(self.secret.parent) not in told and "/etc/passwd" not in told


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-paths-") as name:
        yield Site(Path(name))


def test_roots_library_in_a_directory_of_root_is_covered(site: Site) -> None:
    """Where nobody can rename anything: site modules, cuda-compat."""
    told = site.task(site.root / "roots")
    site.assert_held(told)
    (real,) = [line for line in told.splitlines() if f" /run/qgpu-task/real{site.root}" in line]
    assert {"ro", "nosuid", "nodev"} <= set(real.split()[5].split(","))
    assert f" {site.root}/roots/{NAME} " in told


@pytest.mark.parametrize("way", ["link", "directory", "parent", "hidden", "writable", "magic"])
def test_a_path_that_a_user_can_change_or_not_reach_is_not_taken(site: Site, way: str) -> None:
    place = site.home / "d"
    if way == "link":  # the user's link to a file of root that he cannot reach
        site.directory("d", site.secret)
    elif way == "directory":  # root's file in a directory of the user
        shutil.copy(site.root / "roots" / NAME, site.home)
        place = site.home
    elif way == "parent":  # a directory of root that the user can rename
        place = site.home / "roots"
        shutil.copytree(site.root / "roots", place)
    elif way == "hidden":  # root finds what the user does not
        place = site.secret.parent
        site.secret.chmod(0o644)
    elif way == "writable":
        place = site.root / "roots"
        place.chmod(0o777)
    else:  # the kernel's own links lead anywhere; this one names the user's directory
        site.directory("d", site.secret)
        place = Path(f"/proc/{os.getpid()}/root{place}")
    told = site.task(place)
    site.assert_held(told)
    assert f" {site.root}/roots/" not in told


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_no_moment_for_an_exchange_of_directories(site: Site, gap: int) -> None:
    """Before each call of root in turn, the user puts links to another's file into the place."""
    preload = f"{BUILD}/test/spank_swap.so"
    for at in range(CALLS):
        place = site.exchanged()
        swap = {"QGPU_SWAP_AT": str(at), "QGPU_SWAP_GAP": str(gap), "QGPU_SWAP_IN": str(site.home)}
        site.assert_held(site.task(place, LD_PRELOAD=preload, **swap))
        if not (place / NAME).is_symlink():
            assert at > 20, "the exchange was never made"
            return
    pytest.fail(f"root makes more than {CALLS} calls")


def _exchange_for_ever(home: Path) -> None:
    os.chdir(home)
    rename = ctypes.CDLL(None).renameat2
    here, names = ctypes.c_int(-100), (b"d", b"first", b"second")
    d, first, second = names
    while True:
        for one, other in ((d, first), (d, second), (d, first), (first, second)):
            rename(here, one, here, other, EXCHANGE)


def test_a_user_who_exchanges_directories_all_the_time(site: Site) -> None:
    place = site.exchanged()
    user = multiprocessing.get_context("fork").Process(
        target=_exchange_for_ever, args=(site.home,), daemon=True
    )
    user.start()
    try:
        for _ in range(100):
            site.assert_held(site.task(place))
        assert user.is_alive()
    finally:
        user.kill()
        user.join()
