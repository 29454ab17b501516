"""Checks that a library loads with an old glibc: the versions of the symbols that it needs, and the
libraries.

usage: glibc.py NEWEST FILE...    NEWEST as 2.17. Exit status 1 and a sentence for each fault.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

# Of every glibc, old or new. Anything else may be missing in a container.
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt)\.so\.\d|ld-linux-.*|linux-vdso.*")
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
SYMBOL = re.compile(r"\bUND\b +(\w+)@(\w+?)(?:_([\d.]+))?(?: |$)")
VERSION = re.compile(r"Name: (\w+?)(?:_([\d.]+))?  Flags")


def told(*words: str) -> str:
    """What readelf says. Raises CalledProcessError."""
    return subprocess.run(
        ["readelf", "-W", *words], check=True, capture_output=True, text=True
    ).stdout


def number(version: str) -> tuple[int, ...]:
    """A version for comparison."""
    return tuple(map(int, version.split(".")))


def too_new(family: str, version: str | None, newest: str) -> bool:
    """Whether a version of a symbol is not one of an old glibc; names without a number are of a
    newer one.
    """
    return family != "GLIBC" or version is None or number(version) > number(newest)


def faults(path: str, newest: str) -> Iterator[str]:
    """A sentence for each thing that an old glibc lacks."""
    for library in NEEDED.findall(told("-d", path)):
        if not LIBRARIES.fullmatch(library):
            yield f"{path} needs {library}, which a container may lack"
    named = set()
    for name, family, version in SYMBOL.findall(told("--dyn-syms", path)):
        if too_new(family, version or None, newest):
            named.add((family, version))
            wanted = f"{family}_{version}" if version else family
            yield (
                f"{path} needs {name} of {wanted}; the limit is {newest}: add it to qg_glibc.h "
                "or do without"
            )
    for family, version in VERSION.findall(told("--version-info", path)):
        if (family, version) not in named and too_new(family, version or None, newest):
            yield (
                f"{path} needs the version {family} {version} of the C library; the limit is "
                f"{newest}"
            )


def main() -> int:
    """See the module."""
    newest, *paths = sys.argv[1:]
    found = [fault for path in paths for fault in faults(path, newest)]
    for fault in found:
        print(f"glibc: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
