"""Writes symbols.tsv: every function that NVML exports, from its header and from the Python
binding.

Usage: derive_symbols.py NVML_H PYNVML_PY TABLE

The header of the toolkit is older than the binding, so both are read. The last column (pass or
hook) of a table that exists is kept; what is new passes. The format is that of
shim/dispatch/symbols.tsv, whose generate.py reads this one too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

UNLISTED = ("nvmlInternalGetExportTable",)  # exported, in no header


def names(header: str, binding: str) -> list[str]:
    """All functions, each once."""
    found = set(re.findall(r"DECLDIR (nvml\w+)\s*\(", header))
    found |= set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', binding))
    return sorted(found | set(UNLISTED))


def main(header: Path, binding: Path, table: Path) -> int:
    """Writes the table."""
    kept: dict[str, str] = {}
    if table.exists():
        rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
        kept = {row[0]: row[-1] for row in rows if len(row) == 5}
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# CUDA_VERSION 0"]
    lines.append(
        "# symbol\tapi\tsince\tptsz\tkind   (written by derive_symbols.py; edit only the last"
        " column)"
    )
    lines += [
        f"{name}\t{name}\t0\t0\t{kept.get(name, 'pass')}"
        for name in names(header.read_text(encoding="utf-8"), binding.read_text(encoding="utf-8"))
    ]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: derive_symbols.py NVML_H PYNVML_PY TABLE")
    sys.exit(main(*map(Path, sys.argv[1:])))
