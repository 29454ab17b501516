"""Derives symbols.tsv, the one table of driver symbols, from the CUDA headers.

Usage:

  derive_symbols.py INCLUDE_DIR TABLE

  derive_symbols.py --hooks TABLE OBJECT...

Each function of cuda.h, cudaGL.h, cudaEGL.h and cudaVDPAU.h becomes a row, in all its versions
(`_v2`, `_v3`, ...) and default-stream variants (`_ptds`, `_ptsz`). A row has: exported symbol, name
to ask for, CUDA version since which the name means this symbol (1000 * major + 10 * minor), 1 for a
per-thread default-stream variant, and `pass` or `hook`.

The last column is kept from the existing table; new symbols are `pass`. Names missing in
classes.tsv beside the table are added with `?`, for a person to decide. The second form sets the
last column: a symbol that one of the objects (build/obj/shim/hooks/*/*.o) defines is `hook`. Needs
a C preprocessor (environment CC, default gcc). Exits 1 with a sentence when a header cannot be
read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

EXTRA_HEADERS = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
TYPEDEF_HEADERS = (
    "cudaTypedefs.h",
    "cudaProfilerTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
)
WINDOWS_ONLY = {"cuWGLGetDevice"}
# Exported by the driver, declared only in a header that newer toolkits no longer ship.
PROFILER = ("cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop")
# Names whose newest meaning is a symbol of another name (a macro of cuda.h, without a number in
# it).
RENAMED = {("cuGraphInstantiate", 12000): "cuGraphInstantiateWithFlags"}
# First versions that the typedef headers leave out or number differently.
SINCE_BY_HAND = {
    "cuGetProcAddress": 11030,
    "cuGetProcAddress_v2": 12000,
    "cuStreamBeginCapture": 10000,
    "cuStreamBeginCapture_ptsz": 10000,
}


class Row(NamedTuple):
    """One line of the table."""

    symbol: str
    api: str
    since: int
    ptsz: int
    kind: str


def split(symbol: str) -> tuple[str, int, int]:
    """`cuMemcpyHtoD_v2_ptds` -> (`cuMemcpyHtoD`, 2, 1); without a number the version is 1."""
    match = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_pt[sd][zs])?", symbol)
    if match is None:
        raise SystemExit(f"{symbol!r} is not the name of a driver function")
    return match[1], int(match[2] or 1), int(match[3] is not None)


def declared_in_cuda_h(include: Path) -> set[str]:
    """All function names of cuda.h, old versions and default-stream variants included."""
    command = [
        os.environ.get("CC", "gcc"),
        "-E",
        "-P",
        f"-I{include}",
        "-D__CUDA_API_VERSION_INTERNAL",
        "-",
    ]
    done = subprocess.run(
        command, input="#include <cuda.h>\n", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"cuda.h in {include} cannot be preprocessed: {done.stderr.strip()}")
    text = re.sub(r"typedef[^;]*;", "", done.stdout)
    return set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", text))


def declared_in_extra(text: str) -> set[str]:
    """Function names of a header that cannot be preprocessed here because it needs GL, EGL or
    VDPAU.
    """
    names = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    for old, new in re.findall(r"#define\s+(cu\w+)\s+(cu\w+)\s*$", text, re.M):
        names |= {old, new}
    for old, variant, new in re.findall(
        r"#define\s+(cu\w+)\s+__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", text
    ):
        names |= {old, new, f"{new}_{variant.lower()}"}
    return names - WINDOWS_ONLY


def versions(include: Path) -> dict[tuple[str, int], list[int]]:
    """(api name, ptsz) -> sorted versions, from the PFN_ typedefs (`PFN_cuMemAlloc_v3020`)."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for header in TYPEDEF_HEADERS:
        path = include / header
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for name, version, suffix in re.findall(r"\*PFN_(cu\w+?)_v(\d{4,5})(_pt[sd][zs])?\)", text):
            found[name, int(bool(suffix))].add(int(version))
    return {key: sorted(values) for key, values in found.items()}


def rows(
    symbols: Iterable[str], since: dict[tuple[str, int], list[int]], kinds: dict[str, str]
) -> list[Row]:
    """Matches the versions of each name to its symbols, in order."""
    groups: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols:
        api, number, ptsz = split(symbol)
        groups[api, ptsz].append((number, symbol))
    result = []
    for (api, ptsz), members in sorted(groups.items()):
        numbers = [v for v in since.get((api, ptsz), []) if (api, v) not in RENAMED]
        names = [symbol for _, symbol in sorted(members)]
        # More symbols than typedefs: the oldest have none, and count from the beginning.
        padded = [0] * (len(names) - len(numbers)) + numbers[-len(names) :]
        for symbol, version in zip(names, padded, strict=True):
            version = SINCE_BY_HAND.get(symbol, version)
            result.append(Row(symbol, api, version, ptsz, kinds.get(symbol, "pass")))
    for (api, version), symbol in RENAMED.items():
        result.append(Row(symbol, api, version, 0, kinds.get(symbol, "pass")))
    return sorted(result)


def read_kinds(table: Path) -> dict[str, str]:
    """Symbol -> pass or hook, from the table as it is now."""
    if not table.exists():
        return {}
    lines = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    return {fields[0]: fields[4] for fields in lines if not fields[0].startswith("#")}


def add_classes(path: Path, names: set[str]) -> list[str]:
    """Gives names that have no class the class `?`; returns them. Comments stay, names that are
    gone go.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = dict(line.split("\t") for line in lines if not line.startswith("#"))
    head = [line for line in lines if line.startswith("#")]
    rest = [f"{name}\t{known.get(name, '?')}" for name in sorted(names)]
    path.write_text("\n".join(head + rest) + "\n", encoding="utf-8")
    return sorted(names - known.keys())


def main(include: Path, table: Path) -> int:
    """Writes the table and the names of classes.tsv; returns the exit status."""
    symbols = declared_in_cuda_h(include) | set(PROFILER)
    for header in EXTRA_HEADERS:
        symbols |= declared_in_extra((include / header).read_text(encoding="utf-8"))
    found = re.search(
        r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text(encoding="utf-8")
    )
    if found is None:
        raise SystemExit(f"cuda.h in {include} does not define CUDA_VERSION")
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# CUDA_VERSION {found[1]}"]
    lines += [
        "# symbol\tapi\tsince\tptsz\tkind   (written by derive_symbols.py; edit only the last"
        " column)"
    ]
    derived = rows(symbols, versions(include), read_kinds(table))
    lines += ["\t".join(map(str, row)) for row in derived]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in add_classes(table.with_name("classes.tsv"), {row.api for row in derived}):
        print(f"{name} is new: say in classes.tsv what it is to the shim")
    return 0


def set_hooks(table: Path, objects: list[str]) -> int:
    """Writes the last column of the table by the compiled hooks; returns the exit status."""
    out = subprocess.run(
        ["nm", "--defined-only", *objects], capture_output=True, text=True, check=True
    ).stdout
    hooks = set(re.findall(r"^\w+ T (cu[A-Z]\w*)$", out, re.M))
    lines = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    for fields in lines:
        if not fields[0].startswith("#"):
            fields[4] = "hook" if fields[0] in hooks else "pass"
    table.write_text("".join("\t".join(fields) + "\n" for fields in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--hooks":
        sys.exit(set_hooks(Path(sys.argv[2]), sys.argv[3:]))
    if len(sys.argv) != 3:
        raise SystemExit(
            "usage: derive_symbols.py INCLUDE_DIR TABLE, or derive_symbols.py --hooks TABLE"
            " OBJECT..."
        )
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
