"""Checks that each file named in a page, or in a comment of C or Python, exists; and each docs/
path in any file; and that each `name()` in a page is a function or macro.

A name counts if a tracked path ends with it, at a slash. `{a,b}` and `*` stand for several files.
A function counts if code of C, Python or Lua defines or calls it. So those of libc, the driver,
Slurm and Lua need no list: what none of our code calls is not named with parentheses.
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
CALL = re.compile(r"(?<!\w)(?:\w+[.:])*([A-Za-z_]\w*)\(\)")  # not mmap(2), a page of a manual
CALLED = re.compile(r"([A-Za-z_]\w*)\s*\(")
LUA_COMMENT = re.compile(r"--[^\n]*")
DECISION = re.compile(r"docs/adr/\d{4}")  # enough to find the page
OWN_PAGES = "tests/unit/tools/"  # these tests write pages of their own
MEASURED = "docs/measurements/"  # pages that name what a benchmark writes
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


def functions(name: str, text: str) -> set[str]:
    """Functions and macros that the code of one file defines or calls. Comments and strings do not
    count.
    """
    if name.endswith((".c", ".h", ".cu", ".cuh")):
        return set(CALLED.findall(CODE.sub(" ", text)))
    if name.endswith((".lua", ".lua.j2")):
        return set(CALLED.findall(LUA_COMMENT.sub("", text)))
    if not name.endswith(".py"):
        return set()
    found, before = set(), ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.OP and token.string == "(" and before:
            found.add(before)
        before = token.string if token.type == tokenize.NAME else ""
    return found


class Names:
    """What the repository has. `known`: its functions and macros."""

    def __init__(self, files: list[str], known: set[str]) -> None:
        self.known = known
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
                    "is no such file"
                )
    for match in CALL.finditer(text) if name.endswith(".md") else ():
        if match[1] not in names.known:
            yield (
                f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}: there is no such "
                "function"
            )
    for match in () if name.startswith(OWN_PAGES) else DOCS.finditer(text):
        path = match[0].rstrip("/")
        if not all(names.has_docs(one) for one in expanded(path)):
            yield (
                f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {path}: there is no such page"
            )


def main(root: Path = ROOT) -> int:
    """Print all faults."""
    texts: dict[str, str] = {}
    files = tracked(root)
    for name in files:
        try:
            texts[name] = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    known = set().union(*(functions(name, text) for name, text in texts.items()))
    names = Names(files, known)
    found = [fault for name, text in texts.items() for fault in faults(name, text, names)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
