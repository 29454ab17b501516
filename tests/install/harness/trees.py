"""The Debian trees that hosts are copies of, and what is built in them.

A tree is made once, by debootstrap, below QGPU_INSTALL_TREES (default /var/cache/qgpu/install) and
is then used again. It has stock Slurm, munge, MariaDB and an ssh server, and nothing of qgpu. Needs
root and a Debian mirror.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
MIRROR = "http://deb.debian.org/debian"
SUITES = {"bookworm": "12", "trixie": "13"}  # and Debian's number


# Programs and the packages that bring them.
NEEDED = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ssh": "openssh-client",
    "ip": "iproute2",
}
STAMP = "var/lib/qgpu-tree-made-by"


class Unavailable(RuntimeError):
    """Something that the test needs cannot be had on this machine; the text is a sentence."""


def root() -> Path:
    """The directory that holds all trees."""
    return Path(os.environ.get("QGPU_INSTALL_TREES", "/var/cache/qgpu/install"))


@contextmanager
def _locked() -> Iterator[None]:
    root().mkdir(parents=True, exist_ok=True, mode=0o755)
    fd = os.open(root(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def need() -> None:
    """Install what the harness itself needs of Debian and is missing. Raises Unavailable."""
    if os.geteuid() != 0:
        raise Unavailable("containers with a systemd of their own need root")
    missing = [package for program, package in NEEDED.items() if not shutil.which(program)]
    if not missing:
        return
    print(f"installing {', '.join(missing)}", flush=True)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update", "-q"], install):
        if subprocess.run(argv, env=environment, capture_output=True, check=False).returncode:
            raise Unavailable(f"`{' '.join(argv)}` failed here")


def tree(suite: str) -> Path:
    """The tree of a suite, made when it is not there yet (two minutes, 0.9 GB). Raises
    Unavailable.
    """
    return _made(suite, "tree_make.sh", [suite, MIRROR], f"Debian {suite} with its Slurm")


def build_tree(suite: str) -> Path:
    """The tree of a suite in which packages are built. Raises Unavailable."""
    return _made(
        f"{suite}.build", "build_tree_make.sh", [suite, MIRROR], f"Debian {suite} with a compiler"
    )


def _made(name: str, script: str, arguments: list[str], what: str) -> Path:
    done = root() / name
    with _locked():
        if _stamp(done) != _recipe(script):
            print(f"making {done}: {what}, once", flush=True)
            shutil.rmtree(done, ignore_errors=True)
            _make(done, [str(HERE / script), str(done.with_name(f"{name}.unfinished")), *arguments])
    return done


def _make(done: Path, argv: list[str]) -> None:
    unfinished, log = Path(argv[1]), done.with_name(f"{done.name}.log")
    shutil.rmtree(unfinished, ignore_errors=True)
    with log.open("wb") as out:
        made = subprocess.run(
            ["bash", *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    if made.returncode:
        raise Unavailable(
            f"the tree {done} cannot be made here ({last(log)}); the whole output is in {log}"
        )
    (unfinished / STAMP).write_text(_recipe(Path(argv[0]).name))
    unfinished.rename(done)


def _recipe(script: str) -> str:
    return hashlib.sha256((HERE / script).read_bytes()).hexdigest()


def _stamp(tree: Path) -> str:
    """What made a tree; a tree that another script made is made anew."""
    file = tree / STAMP
    return file.read_text() if file.exists() else ""


def last(log: Path) -> str:
    """The last line of a log, for a sentence."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no output"
