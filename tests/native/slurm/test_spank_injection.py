"""Which way of injection stops which escape, tried one by one in a task that slurmstepd's stand-in
starts.

docs/specs/security.md has the same table. A driver with the names that an installation has lies in
a directory of its own, which LD_LIBRARY_PATH names, as the node's cache of ld.so would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_spank_plugin import PLUGIN, ROOT, STAGE, USER, active

from enforcer.wire.abi import Injection, pack_grant, unpack_grant

SHIM, SIM = ROOT / "build/shim", ROOT / "build/sim"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
TASK = Path("/run/qgpu-task")

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmstepd is root"),
]


@dataclass(frozen=True)
class Site:
    """A node with a driver, the shims and a grant of job 7."""

    root: Path

    @property
    def driver(self) -> Path:
        return self.root / "driver"

    @property
    def grants(self) -> Path:
        return self.root / "run/grants"

    def grant(self, injection: Injection, **changes: object) -> Path:
        """JOBID.grant of job 7."""
        shim, driver = self.root / "shim/libcuda.so.1", self.driver / "libcuda.so.1"
        values = {"shim_path": str(shim), "driver_path": str(driver)} | changes
        path = self.grants / "7.grant"
        path.write_bytes(pack_grant(active(**values), injection))
        path.chmod(0o644)
        return path

    def task(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a task of job 7."""
        words = [
            str(STAGE),
            str(PLUGIN),
            "remote",
            "7",
            str(USER),
            f"run_dir={self.root}/run",
            "--",
        ]
        own = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(self.driver), "HERE": str(self.root)}
        return subprocess.run(
            [*words, *command], env=own | env, capture_output=True, text=True, timeout=30
        )

    def shell(self, script: str) -> str:
        """Output of a script in a task."""
        done = self.task("/bin/sh", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-spank-") as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("driver", "shim", "copy", "run", "run/grants"):
            (root / folder).mkdir(mode=0o755)
        for library in NAMES:
            shutil.copy(SHIM / library, root / "shim")
            stem = library.removesuffix("1")
            shutil.copy(SIM / library, root / f"driver/{stem}580.1")
            (root / f"driver/{library}").symlink_to(f"{stem}580.1")
            (root / f"driver/{stem.rstrip('.')}").symlink_to(library)
            shutil.copy(SIM / library, root / "copy")
        shutil.copy(ROOT / "build/test/spank_escape", root / "escape")
        shutil.copy(ROOT / "build/test/spank_escape", root / "setuid")
        (root / "setuid").chmod(0o4755)
        yield Site(root)


CLEAN = "env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
# What is tried -> the script, what it gets under preload, and under mount.
ESCAPES = {
    "dlopen libcuda.so.1": ("$HERE/escape open libcuda.so.1", "shim", "shim"),
    "dlopen libcuda.so": ("$HERE/escape open libcuda.so", "driver", "shim"),
    "absolute path": ("$HERE/escape open $HERE/driver/libcuda.so.1", "driver", "shim"),
    "name with version": ("$HERE/escape open libcuda.so.580.1", "driver", "shim"),
    "dlmopen": ("$HERE/escape newns libcuda.so.1", "driver", "shim"),
    "RTLD_NEXT": ("$HERE/escape next libcuda.so.1", "shim", "shim"),
    "RTLD_NEXT, libcuda.so": ("$HERE/escape next libcuda.so", "shim", "shim"),
    "unset LD_PRELOAD": ("unset LD_PRELOAD; $HERE/escape open libcuda.so.1", "driver", "shim"),
    "env -i": (f"{CLEAN} $HERE/escape open libcuda.so.1", "driver", "shim"),
    "set-user-id program": ("$HERE/setuid open $HERE/driver/libcuda.so.1", "driver", "shim"),
    "copy found by name": (
        "LD_LIBRARY_PATH=$HERE/copy $HERE/escape open libcuda.so.1",
        "shim",
        "shim",
    ),
    "env -i, copy by name": (
        "env -i LD_LIBRARY_PATH=$HERE/copy $HERE/escape open libcuda.so.1",
        "driver",
        "shim",
    ),
    "umount in a user namespace": (
        "unshare -Urm sh -c 'umount -l $HERE/driver/libcuda.so.580.1 /etc/ld.so.preload "
        "/run/qgpu-task;"
        f" {CLEAN} $HERE/escape open libcuda.so.1' 2>/dev/null",
        "driver",
        "shim",
    ),
    "bind of the directory in a user namespace": (
        "unshare -Urm sh -c 'mkdir -p /tmp/qgpu-under; mount --bind $HERE/driver $HERE/copy;"
        f" {CLEAN} $HERE/escape open $HERE/copy/libcuda.so.580.1 ||"
        " { mount --rbind $HERE/driver $HERE/copy; $HERE/escape open $HERE/copy/libcuda.so.580.1; "
        "}' 2>/dev/null",
        "driver",
        "shim",
    ),
    # Not to be stopped by a library: docs/specs/security.md says so.
    "copy by its path": ("$HERE/escape open $HERE/copy/libcuda.so.1", "driver", "driver"),
}


def test_the_real_driver_has_a_name_that_the_user_can_open(site: Site) -> None:
    """The shim runs as the user; SECURITY.md says that this is no fence."""
    site.grant("mount")
    assert site.shell("$HERE/escape open /run/qgpu-task/real/libcuda.so.1") == "driver"


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("injection", ["preload", "mount"])
def test_escape(site: Site, injection: Injection, name: str) -> None:
    script, *gets = ESCAPES[name]
    site.grant(injection)
    assert site.shell(script) == gets[injection == "mount"]


# Which library named libcuda the shim called after cuInit, by the maps of its process.
BELOW = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
ours = hasattr(cuda, "qgpu_job_view")
cuda.cuInit(0)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line}
print(ours, *sorted({os.stat(path).st_ino for path in maps}))
"""


@pytest.mark.parametrize("injection", ["preload", "mount"])
def test_a_forward_compatible_library_runs_below_the_shim(site: Site, injection: Injection) -> None:
    """Root's cuda-compat in LD_LIBRARY_PATH: by its name in both ways, by its path where it is
    mounted over as well.
    """
    compat = site.root / "cuda-12.9/compat"
    compat.mkdir(parents=True, mode=0o755)
    compat.parent.chmod(0o755)
    shutil.copy(SIM / NAMES[0], compat / "libcuda.so.575.1")
    (compat / NAMES[0]).symlink_to("libcuda.so.575.1")
    (site.root / "below.py").write_text(BELOW)
    inode = (compat / NAMES[0]).stat().st_ino
    site.grant(injection)
    env = {"LD_LIBRARY_PATH": f"{compat}:{site.driver}"}
    by_path = "True" if injection == "mount" else "False"
    for library, ours in ((NAMES[0], "True"), (f"{compat}/{NAMES[0]}", by_path)):
        done = site.task("/usr/bin/python3", str(site.root / "below.py"), library, **env)
        assert done.returncode == 0, done.stderr
        told, *inodes = done.stdout.split()
        assert told == ours and str(inode) in inodes, (library, done.stdout)
    clean = site.task("/usr/bin/python3", str(site.root / "below.py"), NAMES[0])
    assert str(inode) not in clean.stdout.split(), "without it the node's driver"


def test_a_users_own_copy_is_not_touched_by_root(site: Site) -> None:
    os.chown(site.root / "copy" / NAMES[0], USER, USER)
    site.grant("mount")
    done = site.task(
        "/bin/cat", "/proc/self/mountinfo", LD_LIBRARY_PATH=f"{site.root}/copy:{site.driver}"
    )
    assert f"{site.root}/copy" not in done.stdout


def test_what_is_mounted_over_and_what_the_shim_finds(site: Site) -> None:
    site.grant("mount")
    inodes = site.shell(
        "stat -Lc %i $HERE/shim/* $HERE/driver/libcuda.so* $HERE/driver/libnvidia-ml.so*"
    ).split()
    assert inodes == inodes[:1] + inodes[1:2] + inodes[:1] * 3 + inodes[1:2] * 3
    real = site.shell("cd /run/qgpu-task/real; cmp libcuda.so.1 $HERE/copy/libcuda.so.1; ls")
    assert real.split() == list(NAMES)
    page = unpack_grant(
        bytes.fromhex(site.shell("od -An -v -tx1 /run/qgpu-task/grant | tr -d ' \\n'"))
    )
    assert (page.driver_path, page.job_id) == (b"/run/qgpu-task/real/libcuda.so.1", 7)
    assert site.shell("head -2 /etc/ld.so.preload").split() == [
        f"{site.root}/shim/{name}" for name in NAMES
    ]
    assert site.shell("echo $QGPU_GRANT $LD_PRELOAD") == "/run/qgpu-task/grant"


def test_the_sealed_copy_says_the_same_as_the_file(site: Site) -> None:
    site.grant("mount")
    assert (
        site.shell("cmp /proc/self/fd/$QGPU_GRANT_FD /run/qgpu-task/grant && echo same") == "same"
    )


def test_the_user_cannot_change_what_was_mounted(site: Site) -> None:
    site.grant("mount")
    tries = ("rm -f", "touch", "chmod 777", "mv -t /tmp", "umount", "umount -l")
    places = "$HERE/driver/libcuda.so.1 /run/qgpu-task /run/qgpu-task/grant /etc/ld.so.preload"
    for attempt in tries:
        for place in places.split():
            assert (
                site.shell(f"{attempt} {place} 2>/dev/null && echo done || echo refused")
                == "refused"
            )


def test_nothing_stays_mounted_and_no_other_process_sees_it(site: Site) -> None:
    site.grant("mount")
    before = Path("/proc/self/mountinfo").read_text()
    inside = site.shell("cat /proc/self/mountinfo")
    assert str(TASK) in inside and f"{site.driver}/libcuda.so.580.1" in inside
    shared = [line for line in inside.splitlines() if " shared:" in line.partition(" - ")[0]]
    assert shared == [], "what is mounted in the task would be seen elsewhere"
    assert Path("/proc/self/mountinfo").read_text() == before
    assert list(TASK.iterdir()) == []


def test_what_the_node_preloads_is_kept(site: Site, tmp_path: Path) -> None:
    site.grant("mount")
    own = tmp_path / "preload"
    own.write_text("/usr/lib/x86_64-linux-gnu/libdl.so.2\n")
    words = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount --bind {own} /etc/ld.so.preload && exec "$@"',
        "sh",
    ]
    words += [str(STAGE), str(PLUGIN), "remote", "7", str(USER), f"run_dir={site.root}/run", "--"]
    done = subprocess.run(
        [*words, "/bin/cat", "/etc/ld.so.preload"], capture_output=True, text=True
    )
    assert done.stdout.split() == [f"{site.root}/shim/{n}" for n in NAMES] + [
        own.read_text().strip()
    ]


def test_users_own_preloads_stay_and_inherited_ones_of_ours_go(site: Site) -> None:
    site.grant("mount")
    preload = f"{site.root}/shim/libcuda.so.1:/usr/lib/x86_64-linux-gnu/libdl.so.2"
    done = site.task("/bin/sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=preload)
    assert done.stdout.strip() == "/usr/lib/x86_64-linux-gnu/libdl.so.2"


@pytest.mark.parametrize(
    ("broken", "word"),
    [("driver", "files named libcuda.so"), ("shim", "No such file")],
)
def test_a_task_that_cannot_be_covered_does_not_start(site: Site, broken: str, word: str) -> None:
    missing = {f"{broken}_path": f"{site.root}/none/libcuda.so.1"}
    site.grant("mount", **missing)
    done = site.task("/bin/echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not run without its limits" in done.stderr and word in done.stderr


@pytest.mark.parametrize("state", ["whole", "refused", "none"])
def test_jobs_that_are_not_governed_get_no_mounts(site: Site, state: str) -> None:
    path = (
        site.grant("mount", state=state, job_class=None, message="no", **{})
        if state != "none"
        else None
    )
    done = site.task("/bin/cat", "/proc/self/mountinfo")
    assert str(TASK) not in done.stdout
    assert done.returncode == (1 if state == "refused" else 0), path


def test_unknown_injection_is_another_release(site: Site) -> None:
    path = site.grant("mount")
    page = unpack_grant(path.read_bytes())
    page.injection = 2
    path.write_bytes(bytes(page))
    done = site.task("/bin/echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert "way of injection is unknown" in done.stderr


def test_libraries_that_only_the_cache_of_ld_so_knows_are_covered(
    site: Site, tmp_path: Path
) -> None:
    site.grant("mount")
    conf, own = tmp_path / "conf", tmp_path / "cache"
    conf.write_text(f"{site.root}/copy\n")
    subprocess.run(
        ["/sbin/ldconfig", "-X", "-C", str(own), "-f", str(conf)], check=True, capture_output=True
    )
    own.chmod(0o644)
    words = ["unshare", "-m", "sh", "-c", f'mount --bind {own} /etc/ld.so.cache && exec "$@"', "sh"]
    words += [str(STAGE), str(PLUGIN), "remote", "7", str(USER), f"run_dir={site.root}/run", "--"]
    for name in (f"{site.root}/copy/libcuda.so.1", "libcuda.so.1"):
        command = [*words, "/usr/bin/env", "-i", f"{site.root}/escape", "open", name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("shim\n", 0), done.stderr


def _cache(entries: int, strings: bytes, count: int | None = None) -> bytes:
    """A cache of ld.so with that many entries, all with offsets beyond the file."""
    head = b"glibc-ld.so.cache1.1" + (count if count is not None else entries).to_bytes(4, "little")
    return head + len(strings).to_bytes(4, "little") + b"\0" * 20 + b"\xff" * 24 * entries + strings


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"glibc-ld.so.cache1.1",
        b"ld.so-1.7.0\0\xff\xff\xff\xff",
        _cache(3, b"x"),
        _cache(0, b"", 2**32 - 1),
    ],
    ids=["empty", "short", "old", "beyond", "many"],
)
def test_a_damaged_cache_of_ld_so_does_no_harm(site: Site, tmp_path: Path, content: bytes) -> None:
    site.grant("mount")
    own = tmp_path / "cache"
    own.write_bytes(content)
    words = ["unshare", "-m", "sh", "-c", f'mount --bind {own} /etc/ld.so.cache && exec "$@"', "sh"]
    words += [str(STAGE), str(PLUGIN), "remote", "7", str(USER), f"run_dir={site.root}/run", "--"]
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(site.driver)}
    done = subprocess.run(
        [*words, f"{site.root}/escape", "open", "libcuda.so"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("shim\n", 0), done.stderr


def test_a_driver_that_root_replaces_under_a_job_is_uncovered_there(site: Site) -> None:
    """The kernel's doing, and why docs/admins.md says to drain first. The preloaded shim stays."""
    site.grant("mount")
    words = [
        str(STAGE),
        str(PLUGIN),
        "remote",
        "7",
        str(USER),
        f"run_dir={site.root}/run",
        "--",
        "/bin/sh",
        "-c",
    ]
    script = (
        "echo go; read x; for n in $HERE/driver/ ''; do env -i LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    )
    script += " $HERE/escape open ${n}libcuda.so.1; done"
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(site.driver), "HERE": str(site.root)}
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, script], env=env, stdin=pipe, stdout=pipe, text=True) as task:
        assert task.stdout is not None and task.stdout.readline() == "go\n"
        (site.root / "copy/libcuda.so.1").rename(site.driver / "libcuda.so.580.1")
        out, _ = task.communicate("x\n", timeout=30)
    assert out.split() == ["driver", "shim"]
