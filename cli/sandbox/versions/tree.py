"""Other versions of Slurm: a Debian tree for each, in which the same sandbox runs.

A tree is made once, by debootstrap, below QGPU_TREES (default /var/cache/qgpu/slurm) and is then
used again. `command` runs a program with the tree as its root directory, in a mount namespace of
its own: the checkout is there under its own path, with a build directory and a virtual environment
that belong to the tree, since the native parts are built against that Slurm and that C library.
Needs root.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cli
from cli.sandbox.errors import SandboxError, cause
from cli.sandbox.options import CGROUP_VARIABLE, DEFAULT_ROOT

HERE = Path(__file__).resolve().parents[1]
CHECKOUT = Path(next(iter(cli.__path__))).resolve().parent
MIRROR = "http://deb.debian.org/debian"
INSIDE = "QGPU_TREE"  # environment of what runs in a tree: its version
OUTSIDE = "QGPU_TREE_OUTSIDE"  # and its path outside, for paths that errors name
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Release:
    """A version of Slurm and where Debian has it."""

    version: str
    suite: str


RELEASES = {
    release.version: release
    for release in (
        Release("22.05", "bookworm"),
        Release("24.11", "trixie"),
        Release("26.05", "sid"),
    )
}


def trees_root() -> Path:
    """The directory that holds all trees."""
    return Path(os.environ.get("QGPU_TREES", "/var/cache/qgpu/slurm"))


def release(version: str) -> Release:
    """The release of that name; SandboxError when there is none."""
    if version not in RELEASES:
        raise SandboxError(
            f"--slurm {version!r} is not a version that a sandbox can have: choose one of"
            f" {', '.join(RELEASES)}"
        )
    return RELEASES[version]


def here() -> str | None:
    """Version of the Slurm that runs without a tree, as "22.05"; None when none is installed."""
    if inside := os.environ.get(INSIDE):
        return inside
    if not shutil.which("slurmctld"):
        return None
    out = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+\.\d+)\.\d+", out)
    return found[1] if found else None


@contextmanager
def _locked() -> Iterator[None]:
    root = trees_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o755)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def ensure(version: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The tree of a version, made when it is not there yet (a minute or two, 1.1 GB)."""
    wanted = release(version)
    if os.geteuid() != 0:
        raise SandboxError(
            f"a sandbox with Slurm {version} needs root: it runs in a Debian tree of its own"
        )
    tree = trees_root() / version
    with _locked():
        if not tree.is_dir():
            progress(f"making {tree}: Debian {wanted.suite} with its Slurm, once")
            _make(wanted, tree)
    return tree


def _make(wanted: Release, tree: Path) -> None:
    unfinished = tree.with_name(tree.name + ".unfinished")
    log = tree.with_name(tree.name + ".log")
    clear(unfinished)
    # In a mount namespace of its own, because what debootstrap mounts then ends with it, however
    # that is.
    argv = ["unshare", "--mount", "--propagation", "private", "--", "bash"]
    argv += [str(HERE / "tree_make.sh"), str(unfinished), wanted.suite, MIRROR]
    with log.open("wb") as out:
        made = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    found = exact(unfinished)
    if made.returncode == 0 and found.startswith(f"{wanted.version}."):
        unfinished.rename(tree)
        return
    why = (
        f"Debian {wanted.suite} has Slurm {found} now"
        if found and made.returncode == 0
        else cause(log.read_text(errors="replace"))
    )
    raise SandboxError(
        f"a tree with Slurm {wanted.version} cannot be made here ({why}); the whole output is in"
        f" {log}"
    )


def clear(unfinished: Path) -> None:
    """Remove what an attempt left. SandboxError if it cannot be, for example while a file system is
    still mounted in it: removing would go on in that, which may be the machine's own /proc.
    """
    for place in reversed(_mounted_in(unfinished)):
        subprocess.run(["umount", place], stderr=subprocess.DEVNULL, check=False)
    if left := _mounted_in(unfinished):
        raise SandboxError(
            f"{left[0]} is mounted, of an attempt that failed, and is in use: end what uses it"
            f" (fuser -vm {left[0]}), then: umount {left[0]}"
        )
    try:
        if unfinished.exists():
            shutil.rmtree(unfinished)
    except OSError as error:
        raise SandboxError(f"{unfinished}, of an attempt that failed, stays: {error}") from None


def _mounted_in(directory: Path) -> list[str]:
    """Where something is mounted at or below a directory, in the order of mounting."""
    inside = f"{directory.resolve()}/"
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).rstrip("\n").split("\n")
    places = [
        re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4]) for line in lines
    ]
    return [place for place in places if f"{place}/".startswith(inside)]


def exact(tree: Path) -> str:
    """The package version of slurmctld in a tree, such as "24.11.5-4"; empty when there is none."""
    status = tree / "var/lib/dpkg/status"
    if not status.exists():
        return ""
    found = re.search(
        r"^Package: slurmctld\n(?:(?!\n\n)[\s\S])*?^Version: (?:\d+:)?(\S+)$",
        status.read_text(),
        re.MULTILINE,
    )
    return found[1] if found else ""


def command(
    version: str, argv: Sequence[str], progress: Callable[[str], None] = lambda _: None
) -> list[str]:
    """The words that run argv, in the checkout, with the tree of that version as root directory."""
    if not (CHECKOUT / "Makefile").exists():
        raise SandboxError(
            "other versions of Slurm need a source checkout: the native parts are built for each"
        )
    tree = ensure(version, progress)
    # A virtual environment names its checkout in many places: each checkout has one of its own in
    # the tree.
    own = tree / "var/lib/qgpu-tree" / hashlib.sha256(os.fsencode(CHECKOUT)).hexdigest()[:12]
    binds = {Path("/root"): Path("/root"), CHECKOUT: CHECKOUT, DEFAULT_ROOT: DEFAULT_ROOT}
    for name in ("build", ".venv"):
        (CHECKOUT / name).mkdir(exist_ok=True)
        binds[own / name] = CHECKOUT / name
    for source in (own / "build", own / ".venv", DEFAULT_ROOT):
        source.mkdir(parents=True, exist_ok=True)
    pairs = [str(path) for pair in binds.items() for path in pair]
    env = ["env", "-i", "HOME=/root", f"PATH={_PATH}", "LANG=C.UTF-8", f"{INSIDE}={version}"]
    env += [f"{OUTSIDE}={tree}"]
    kept = ("TERM", "CI", CGROUP_VARIABLE)
    env += [f"{name}={os.environ[name]}" for name in kept if name in os.environ]
    env += ["SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"]
    enter = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--",
        "sh",
        str(HERE / "tree_enter.sh"),
    ]
    return [*enter, str(tree), str(CHECKOUT), *pairs, "--", *env, *argv]


def run_make(version: str, target: str, progress: Callable[[str], None] = lambda _: None) -> None:
    """Run a make target of the checkout in a tree; its output goes to a log beside the tree."""
    log = trees_root() / f"{version}.make.log"
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    argv = command(version, ["make", "--no-print-directory", jobs, target], progress)
    with log.open("wb") as out:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    if done.returncode:
        said = cause(log.read_text(errors="replace"))
        raise SandboxError(f"make {target} failed for Slurm {version} ({said}); read {log}")
