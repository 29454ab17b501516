"""Writes requirements.lock anew: the newest wheels that pyproject.toml allows, for every Python of
the packages.

usage: lock.py OUT PYTHON_VERSION... -- REQUIREMENT...

Run by `make lock`, from time to time and before a release.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010")
HEAD = (
    "# Written by `make lock`. One version of each for all Pythons: their files share one "
    "directory.\n"
)


def download(version: str, requirements: list[str], directory: Path) -> None:
    """All wheels that one Python needs, dependencies included."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        "--implementation",
        "cp",
    ]
    command += ["--python-version", version, "-d", str(directory)]
    for name in PLATFORMS:
        command += ["--platform", f"{name}_x86_64"]
    subprocess.run([*command, *requirements], check=True)


def pins(directory: Path) -> dict[tuple[str, str], set[str]]:
    """Name and version of each wheel, with its hashes. Raises ValueError when one name has two
    versions.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for wheel in sorted(directory.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        found.setdefault((name.replace("_", "-").lower(), version), set()).add(digest)
    names = [name for name, _ in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(
            f"the Pythons take different versions of {sorted(twice)}: bound them in pyproject.toml"
        )
    return found


def main() -> None:
    """See the module."""
    out, *rest = sys.argv[1:]
    cut = rest.index("--")
    with tempfile.TemporaryDirectory() as directory:
        for version in rest[:cut]:
            download(version, rest[cut + 1 :], Path(directory))
        lines = [
            " \\\n".join(
                [
                    f"{name}=={version}",
                    *(f"    --hash=sha256:{digest}" for digest in sorted(digests)),
                ]
            )
            for (name, version), digests in sorted(pins(Path(directory)).items())
        ]
    Path(out).write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
