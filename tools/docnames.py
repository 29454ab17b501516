"""Checks that each file named in a page, or in a comment of C or Python, exists; and each docs/
path in any file.

A name counts if a tracked path ends with it, at a slash. `{a,b}` and `*` stand for several files.
Exit status 1 and one line per fault. Run by `make lint`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIECE = r"[\w.*/-]|\{[\w.*,/-]+\}"
NAME = re.compile(
    rf"(?<![\w.*/{{}}<$%-])((?:{PIECE})+\.(?:c|h|py|md|lua|tsv|mk))(?![\w*/{{(-]|\.\w)"
)
DOCS = re.compile(rf"(?<![\w./}}-])docs/(?:{PIECE})*[\w*]")
CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S)
DECISION = re.compile(r"docs/adr/\d{4}")  # enough to find the page
OWN_PAGES = "tests/unit/tools/"  # these tests write pages of their own
MEASURED = "docs/measurements/"  # pages that a benchmark wrote
# Files that are not in the repository. Add one only if a reader would look for it elsewhere.
FOREIGN = {
    # NVIDIA's headers
    *("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudadebugger.h", "nvml.h"),
    *("gres_select_filter.c", "gres_sock_list.c", "parse_config.c", "mgr.c"),  # sources of Slurm
    "sysdeps/generic/dl-cache.h",  # source of glibc
    *("symbols.h", "symbols.c", "cu_rows.h"),  # generated in build/
    "train.py",  # of the user in an example
}
TEMPLATES = (".j2", ".in")  # job_submit.lua is configs/templates/job_submit.lua.j2


def tracked(root: Path) -> list[str]:
    """Names of the tracked files that are there."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and (root / name).is_file()]


def in_c(text: str) -> Iterator[tuple[int, str]]:
    """Comments of a C file, each with the number of its first line."""
    for match in CODE.finditer(text):
        if match[0].startswith("/"):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments and docstrings of a Python file, each with the number of its first line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
        ):
            first = node.body[0]
            value = (
                first.value.value
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                else None
            )
            if isinstance(value, str):
                yield first.lineno, value


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that a person reads."""
    if name.endswith(".md"):
        yield 1, text
    elif name.endswith((".c", ".h", ".cu", ".cuh")):
        yield from in_c(text)
    elif name.endswith(".py"):
        yield from in_python(text)


def expanded(name: str) -> list[str]:
    """Each of the several names that braces stand for."""
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


class Names:
    """What the repository has."""

    def __init__(self, files: list[str]) -> None:
        self.files = files
        made = [name.removesuffix(end) for name in files for end in TEMPLATES if name.endswith(end)]
        self.ends = {name[at:] for name in (*files, *made) for at in _starts(name)}
        self.folders = {name[:at] for name in files for at, sign in enumerate(name) if sign == "/"}

    def has(self, name: str) -> bool:
        """Whether a tracked path ends with this name; of an installed file (/etc/slurm/...) its
        last part counts.
        """
        name = re.sub(r"^(?:\.{1,2}/)+|^/.*/", "", name)
        if "*" in name:
            return any(fnmatchcase(end, name) for end in self.ends)
        return name in self.ends or name in FOREIGN

    def has_docs(self, path: str) -> bool:
        """Whether this path, which begins with docs/, is a file or a folder."""
        if DECISION.fullmatch(path):
            path += "-*"
        return any(fnmatchcase(name, path) for name in (*self.files, *self.folders))


def _starts(name: str) -> list[int]:
    return [0, *(at + 1 for at, sign in enumerate(name) if sign == "/")]


def faults(name: str, text: str, names: Names) -> Iterator[str]:
    """Names in one file that lead nowhere."""
    reads = NAME.search(text) and not name.startswith(MEASURED)
    for first, part in prose(name, text) if reads else ():
        for match in NAME.finditer(part):
            if not match[1].startswith("docs/") and not all(
                names.has(one) for one in expanded(match[1])
            ):
                yield (
                    f"{name}:{first + part.count(chr(10), 0, match.start())}: {match[1]}: there "
                    f"is no such file"
                )
    for match in () if name.startswith(OWN_PAGES) else DOCS.finditer(text):
        path = match[0].rstrip("/")
        if not all(names.has_docs(one) for one in expanded(path)):
            yield (
                f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {path}: there is no such page"
            )


def main(root: Path = ROOT) -> int:
    """Print all faults."""
    files = tracked(root)
    names = Names(files)
    found: list[str] = []
    for name in files:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += faults(name, text, names)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
