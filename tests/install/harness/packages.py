"""The packages of this checkout, built by `make deb` in the tree of a suite, as a site's build host
builds them.

Built once per state of the source and kept below the trees. The wheels are fetched outside, once
for all suites; the build itself has no network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from harness import trees

KEPT = 6  # builds of a suite
NOT_PACKED = ("tests/", "bench/", "packaging/epoch", ".ci/")


def built(suite: str, revision: int, command: str = "make deb") -> Path:
    """The directory with the .deb files of a revision; higher revisions are updates. Raises
    Unavailable.
    """
    tree, source = trees.build_tree(suite), _source()
    key = _key(source, command)
    out = trees.root() / "packages" / suite / f"{key}-{revision}"
    if not out.is_dir():
        print(
            f"building the packages of Debian {trees.SUITES[suite]}, revision {revision}",
            flush=True,
        )
        _build(tree, source, out, f"{command} REVISION={revision}")
        _forget(out.parent)
    return out


def _key(source: Path, command: str) -> str:
    """A hash of what goes into the packages: not the tests, and not the time of the commit."""
    found = hashlib.sha256(command.encode())
    with tarfile.open(source) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            if not name.startswith(NOT_PACKED) and (file := archive.extractfile(member)):
                found.update(f"{name} {member.mode} {member.size}\n".encode() + file.read())
    return found.hexdigest()[:12]


def _source() -> Path:
    """The source archive, with the wheels already fetched."""
    log = trees.CHECKOUT / "build/test-install.log"
    log.parent.mkdir(exist_ok=True)
    argv = ["make", "--no-print-directory", "wheels", "headers", "dist"]
    with log.open("wb") as out:
        made = subprocess.run(argv, cwd=trees.CHECKOUT, stdout=out, stderr=out, check=False)
    if made.returncode:
        raise trees.Unavailable(
            f"the source archive cannot be made ({trees.last(log)}); read {log}"
        )
    return trees.CHECKOUT / trees.last(log)


def _build(tree: Path, source: Path, out: Path, command: str) -> None:
    work = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", source, "--strip-components=1", "-C", work], check=True)
    shutil.copytree(trees.CHECKOUT / "build/wheels", work / "build/wheels", symlinks=True)
    log = out.with_name(f"{out.name}.log")
    argv = [
        "systemd-nspawn",
        "--quiet",
        "-D",
        str(tree),
        "--register=no",
        "--keep-unit",
        "--private-network",
    ]
    argv += [
        f"--machine=qgpu-build-{out.name}",
        f"--bind={work}:/qgpu",
        "--chdir=/qgpu",
        "--console=pipe",
    ]
    with log.open("wb") as output:
        done = subprocess.run(
            [*argv, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"`{command}` failed for {tree.name}: {trees.last(log)}; read {log}")
    (work / "build/packages").rename(out)
    shutil.rmtree(work)


def _forget(directory: Path) -> None:
    builds = sorted(
        (each for each in directory.iterdir() if each.is_dir()),
        key=lambda each: each.stat().st_mtime,
    )
    for old in builds[:-KEPT]:
        shutil.rmtree(old)
