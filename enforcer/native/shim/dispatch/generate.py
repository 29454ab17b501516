"""Turns symbols.tsv into the assembler, C and linker input of the shim, and into the stub driver.

Usage: generate.py TABLE OUT_DIR

Writes symbols.h (enum of symbols), symbols.c (names and the cuGetProcAddress table, with what
classes.tsv beside TABLE says of memory), exports.S (pass-throughs and first-call resolvers),
exports.map (version script) and stub_exports.S (a driver in which every call succeeds at once).
Exits 1 with a sentence when the table is malformed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

LICENSE = "/* SPDX-License-Identifier: Apache-2.0. Generated from symbols.tsv by generate.py. */\n"


class Row(NamedTuple):
    """One line of the table; see derive_symbols.py."""

    symbol: str
    api: str
    since: int
    ptsz: int
    hook: bool


def read(table: Path) -> tuple[int, list[Row]]:
    """CUDA version of the table and its rows."""
    version, rows = 0, []
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("# CUDA_VERSION "):
            version = int(line.split()[2])
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 5 or fields[4] not in ("pass", "hook"):
            raise SystemExit(
                f"{table}:{number}: expected symbol, api, since, ptsz and pass|hook, got {line!r}"
            )
        rows.append(Row(fields[0], fields[1], int(fields[2]), int(fields[3]), fields[4] == "hook"))
    return version, rows


MEMORY = {"allocate", "keep"}  # classes of functions that must not bypass the allocation table


def memory_functions(classes: Path) -> set[str]:
    """Names for cuGetProcAddress of those; none where a table has no classes (NVML)."""
    lines = classes.read_text(encoding="utf-8").splitlines() if classes.exists() else []
    pairs = (line.split("\t") for line in lines if not line.startswith("#"))
    return {name for name, kind in pairs if kind in MEMORY}


def header(version: int, symbols: list[str]) -> str:
    """The enum: QG_SYM_<symbol> indexes qg_real[]."""
    body = "".join(f"    QG_SYM_{symbol} = {index},\n" for index, symbol in enumerate(symbols))
    return (
        f"{LICENSE}#ifndef QG_SYMBOLS_H\n#define QG_SYMBOLS_H\n#define QG_TABLE_CUDA_VERSION"
        f" {version}\n#define QG_NSYMBOLS {len(symbols)}\nenum qg_symbol {{\n{body}}};\n#endif\n"
    )


def source(rows: list[Row], symbols: list[str], memory: set[str]) -> str:
    """Names by index, and the rows of cuGetProcAddress: every row of a name that has at least one
    hook.
    """
    hooked = {row.api for row in rows if row.hook}
    index = {symbol: number for number, symbol in enumerate(symbols)}
    names = "".join(f'    "{symbol}",\n' for symbol in symbols)
    hooks = sorted({row.symbol for row in rows if row.hook})
    declarations = "".join(f"extern char {symbol}[];\n" for symbol in hooks)
    kept = sorted(
        (row for row in rows if row.api in hooked), key=lambda row: (row.api, row.ptsz, row.since)
    )
    entries = "".join(
        f'    {{"{row.api}", {row.since}, {row.ptsz}, {index[row.symbol]}, '
        f"{row.symbol if row.hook else '0'}, {int(row.api in memory)}}},\n"
        for row in kept
    )
    return (
        f'{LICENSE}#include "driver/driver.h"\n{declarations}'
        f"const char *const qg_symbol_names[QG_NSYMBOLS] = {{\n{names}}};\n"
        f"const struct qg_api_row qg_api_rows[] = {{\n{entries}}};\n"
        f"const unsigned qg_api_row_count = {len(kept)};\n"
    )


def assembler(rows: list[Row], symbols: list[str]) -> str:
    """Exports of the pass-throughs, a resolver per symbol, and the pointer table they share."""
    hooks = {row.symbol for row in rows if row.hook}
    lines = [LICENSE, '#include "dispatch/trampoline.h"']
    for index, symbol in enumerate(symbols):
        if symbol not in hooks:
            lines.append(f"PASS {symbol} {index}")
        lines.append(f"LAZY {index}")
    lines += ['.section .data.rel.local, "aw"', ".balign 64", "TABLE qg_real"]
    lines += [f"    .quad .Llazy_{index}" for index in range(len(symbols))]
    lines += ['.section .note.GNU-stack, "", %progbits', ""]
    return "\n".join(lines)


def stub(symbols: list[str]) -> str:
    """A driver whose functions, except those that stub.c writes out, count nothing and succeed."""
    lines = [LICENSE, ".text"]
    for symbol in symbols:
        lines += [f".weak {symbol}", f".type {symbol}, %function", f"{symbol}:"]
    lines += ["    xorl %eax, %eax", "    ret", '.section .note.GNU-stack, "", %progbits', ""]
    return "\n".join(lines)


def main(table: Path, out: Path) -> int:
    """Writes all outputs; returns the exit status."""
    version, rows = read(table)
    symbols = sorted({row.symbol for row in rows})
    exports = "".join(f"    {symbol};\n" for symbol in symbols)
    files = {
        "symbols.h": header(version, symbols),
        "symbols.c": source(rows, symbols, memory_functions(table.with_name("classes.tsv"))),
        "exports.S": assembler(rows, symbols),
        "exports.map": f"{{\n  global:\n{exports}    qgpu_*;\n    ioctl;\n  local: *;\n}};\n",
        "stub_exports.S": stub(symbols),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: generate.py TABLE OUT_DIR")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
