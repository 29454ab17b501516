"""The private Python environment of an installation: pinned wheels and qgpu's own packages, nothing
of the system.

    environment.py site WHEELS SOURCE SITE
        unpack the wheels and copy our packages into the directory SITE
    environment.py install SITE TARGET PYTHON PYTHON_VERSION... [KEY=DIRECTORY...]
        TARGET becomes a virtual environment around a copy of SITE
    environment.py headers WHEELS TARGET
        the C headers of NVIDIA's wheels

A virtual environment is three things, so `venv` itself is not needed: `pyvenv.cfg`, `bin/python3`
and a directory of packages. The last is one directory for all Pythons: compiled modules carry the
Python's version in their names. Nothing here depends on the time, the machine or the directory: two
builds are equal.
"""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PACKAGES = ("gres", "slurm_plugin", "enforcer", "simulator", "cli", "configs")
DATA = {".j2", ".yaml", ".sql", ".json", ".lua"}
# C sources, what lives only in a checkout, and what `make install` puts elsewhere. Of simulator/
# only whatif/ is left.
LEFT_OUT = (
    "gres/native",
    "enforcer/native",
    *(f"simulator/{name}" for name in ("native", "judge", "fakes.py", "policylib.py")),
    *(f"simulator/{name}" for name in ("sim.py", "simcontrol.py", "layout.py", "policy_layout.py")),
    "cli/sandbox",
    "cli/demo",
    "configs/sandbox",
    "configs/systemd",
)
UNWANTED = {"example.py"}  # of nvidia-ml-py, at the top
LUA = "lua54."  # the one of lupa's Luas that slurm_plugin/submission.py runs; the others are 13 MB
SOURCES = (".c", ".h", ".pyx", ".pyi")
METADATA = {
    "METADATA",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "LICENSE.rst",
    "COPYING",
    "AUTHORS",
    "NOTICE",
}


class BuildError(RuntimeError):
    """The environment cannot be made; the text is a sentence."""


def write(target: Path, data: bytes, mode: int = 0o644) -> None:
    """A file with these bytes; two wheels may bring the same file, but not different ones.
    Raises BuildError.
    """
    if target.exists() and target.read_bytes() != data:
        raise BuildError(f"two wheels have a file '{target.name}' of different content: {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(mode)


def wanted(name: str) -> bool:
    """Whether a wheel's member belongs into the environment: no scripts, no records of an
    installation.
    """
    path = PurePosixPath(name)
    first = path.parts[0]
    if name.endswith(("/", *SOURCES)) or name in UNWANTED or first.endswith(".data"):
        return False
    if first == "lupa" and path.suffix == ".so":
        return path.name.startswith(LUA)
    if first.endswith(".dist-info"):
        return path.name in METADATA or "licenses" in path.parts
    return True


def unpack(wheel: Path, site: Path) -> None:
    """The wheel's files, below site. Raises BuildError for a name that leads out of it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if ".." in PurePosixPath(name).parts or name.startswith("/"):
                raise BuildError(f"{wheel.name} has a file '{name}' that lies outside")
            if wanted(name):
                write(site / name, archive.read(name))


def own_files(source: Path) -> Iterator[PurePosixPath]:
    """Our modules and their data, relative to the source tree."""
    for package in PACKAGES:
        for path in sorted((source / package).rglob("*")):
            name = PurePosixPath(path.relative_to(source).as_posix())
            left_out = any(
                str(name) == each or str(name).startswith(each + "/") for each in LEFT_OUT
            )
            if path.is_file() and not left_out and (path.suffix == ".py" or path.suffix in DATA):
                yield name


def site(wheels: Path, source: Path, target: Path) -> None:
    """All packages of the environment, in an empty directory."""
    shutil.rmtree(target, ignore_errors=True)
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise BuildError(f"{wheels} has no wheels: say 'make wheels'")
    for wheel in found:
        unpack(wheel, target)
    for name in own_files(source):
        write(target / name, (source / name).read_bytes())


def install(
    packages: Path, target: Path, python: str, versions: list[str], directories: dict[str, str]
) -> None:
    """A virtual environment in target, around a copy of the packages."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(packages, target / "site-packages")
    write(
        target / "site-packages/gres/install.json",
        json.dumps(directories, indent=1).encode() + b"\n",
    )
    home = str(PurePosixPath(python).parent)
    write(target / "pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n".encode())
    (target / "bin").mkdir()
    (target / "bin/python3").symlink_to(python)
    for version in versions:
        library = target / f"lib/python{version}"
        library.mkdir(parents=True)
        (library / "site-packages").symlink_to("../../site-packages")
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def headers(wheels: Path, target: Path) -> None:
    """The C headers in the wheels, without the directories above them."""
    shutil.rmtree(target, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                _, found, inner = name.partition("/include/")
                if found and inner and not name.endswith("/"):
                    write(target / inner, archive.read(name))
    for name in ("cuda.h", "nvml.h"):
        if not (target / name).is_file():
            raise BuildError(f"no wheel in {wheels} has {name}")


def main() -> int:
    """See the module; 1 with a sentence when something is wrong."""
    what, *words = sys.argv[1:]
    try:
        if what == "site":
            site(Path(words[0]), Path(words[1]), Path(words[2]))
        elif what == "headers":
            headers(Path(words[0]), Path(words[1]))
        else:
            told = dict(word.split("=", 1) for word in words[3:] if "=" in word)
            install(
                Path(words[0]),
                Path(words[1]),
                words[2],
                [w for w in words[3:] if "=" not in w],
                told,
            )
    except BuildError as error:
        print(f"environment: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
