"""Writes the Python modules that mirror our C headers: constants, and structures as ctypes classes.

    layouts.py            writes each module of MIRRORS
    layouts.py --check    writes nothing; one sentence and exit status 1 for each module that
                          differs from its header

Run by `make layouts` and `make lint`. The product needs neither header nor compiler: the modules
are committed.
"""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycparser import c_ast, c_parser

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100


@dataclass(frozen=True)
class Mirror:
    """One header and its module. The prefixes are left off in Python; `names` are classes that the
    rule does not name.

    The key of `names` is the name of the structure, or OUTER.MEMBER for one without a name.
    """

    header: str
    module: str
    constants: str
    structures: str = ""
    include: str = "enforcer/native/abi"
    names: Mapping[str, str] = field(default_factory=dict)


MIRRORS = (
    Mirror(
        header="enforcer/native/abi/qgpu_abi.h",
        module="enforcer/wire/layout.py",
        constants="QG_",
        structures="qg_",
        names={
            "qg_grant": "GrantPage",
            "qg_grant_card": "GrantCardPage",
            "qg_proc": "ProcSlot",
        },
    ),
    Mirror(
        header="enforcer/native/abi/qgpu_messages.h",
        module="enforcer/wire/message_layout.py",
        constants="QG_",
        structures="qg_",
        names={
            "qg_ctl_hwtenant": "CtlHwTenant",
            "qg_ctl_hwcard": "CtlHwCard",
            "qg_groups.groups": "GroupEntry",
            "qg_groups.channels": "ChannelEntry",
        },
    ),
    Mirror(
        header="enforcer/native/arbiter/policy/policy.h",
        module="simulator/policy_layout.py",
        constants="QP_",
    ),
    Mirror(
        header="simulator/native/protocol/sim_proto.h",
        module="simulator/layout.py",
        constants="SIM_",
        structures="sim_",
        names={"sim_util.procs": "UtilProc"},
    ),
)

# Stand in for the C library's headers, of which the parser would not understand every extension.
STANDARD = {
    "stdint.h": "".join(
        f"typedef {sign} {kind} {prefix}int{bits}_t;\n"
        for sign, prefix in (("signed", ""), ("unsigned", "u"))
        for kind, bits in (("char", 8), ("short", 16), ("int", 32), ("long", 64))
    )
    + "#define UINT64_MAX 18446744073709551615ull\n",
    "stddef.h": "typedef unsigned long size_t;\n",
    "stdbool.h": "#define bool _Bool\n",
}
CTYPES = {
    "int8_t": "c_int8",
    "uint8_t": "c_uint8",
    "int16_t": "c_int16",
    "uint16_t": "c_uint16",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "char": "c_char",
    "double": "c_double",
}
BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "|": operator.or_,
    "&": operator.and_,
}
UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}


class LayoutError(Exception):
    """A header that has what this generator does not understand; the text is a sentence."""


class NotConstant(Exception):
    """An expression that has no value before the program runs."""


def evaluate(node: Any, values: Mapping[str, int | str]) -> Any:
    """The value of a constant expression. Raises NotConstant."""
    if isinstance(node, c_ast.Constant) and node.type == "string":
        return node.value.strip('"')
    if isinstance(node, c_ast.Constant) and "int" in node.type:
        return int(node.value.rstrip("uUlL"), 0)
    if isinstance(node, c_ast.ID) and node.name in values:
        return values[node.name]
    if isinstance(node, c_ast.Cast):
        return evaluate(node.expr, values)
    if isinstance(node, c_ast.UnaryOp) and node.op in UNARY:
        return UNARY[node.op](evaluate(node.expr, values))
    if isinstance(node, c_ast.BinaryOp) and node.op in BINARY:
        return BINARY[node.op](evaluate(node.left, values), evaluate(node.right, values))
    raise NotConstant(node)


def preprocess(mirror: Mirror, source: str, *options: str) -> str:
    """What gcc makes of these lines, among which the header may be included by its name."""
    with tempfile.TemporaryDirectory() as fakes:
        for name, text in STANDARD.items():
            Path(fakes, name).write_text(text, encoding="utf-8")
        places = [
            f"-I{place}" for place in (fakes, (ROOT / mirror.header).parent, ROOT / mirror.include)
        ]
        command = ["gcc", "-E", "-x", "c", "-std=c11", "-nostdinc", *places, *options, "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        why = next(line for line in done.stderr.splitlines() if "error: " in line)
        raise LayoutError(f"gcc cannot preprocess {mirror.header}: {why}")
    return done.stdout


def macros(mirror: Mirror, include: str) -> Iterator[tuple[int, str]]:
    """Line and name of each constant that the header defines by itself: no functions, no empty
    words.
    """
    line, inside = 0, False
    for text in preprocess(mirror, include, "-dD").splitlines():
        if place := re.match(r'# (\d+) "(.*)"', text):
            line, inside = int(place[1]) - 1, Path(place[2]) == ROOT / mirror.header
            continue
        line += 1
        found = re.match(r"#define (\w+) \S", text)
        if found and inside:
            yield line, found[1]


@dataclass
class Header:
    """What a header declares: groups of constants and structures, in its order."""

    mirror: Mirror
    values: dict[str, int | str] = field(default_factory=dict)
    constants: list[tuple[int, str, str]] = field(default_factory=list)  # line, heading, text
    structures: list[tuple[str, str, int, list[tuple[str, str]]]] = field(default_factory=list)

    def read(self) -> None:
        """Parse it, with each of its macros as the value of a variable behind it."""
        include = f'#include "{Path(self.mirror.header).name}"\n'
        defined = list(macros(self.mirror, include))
        lines = [f"unsigned long value_of_{name} = {name};\n" for _, name in defined]
        tree = c_parser.CParser().parse(
            preprocess(self.mirror, include + "".join(lines)), self.mirror.header
        )
        for node in tree.ext:
            name = getattr(node, "name", None) or ""
            if name.startswith("value_of_"):
                name = name.removeprefix("value_of_")
                self.constant(next(line for line, of in defined if of == name), "", name, node.init)
            elif (
                isinstance(node, c_ast.Decl) and Path(node.coord.file) == ROOT / self.mirror.header
            ):
                self.declaration(node.type)
        self.constants.sort(key=lambda constant: constant[0])

    def declaration(self, kind: c_ast.Node) -> None:
        """A structure or an enumeration at the top of the header; functions have no part in the
        layout.
        """
        if isinstance(kind, c_ast.Struct) and kind.decls:
            self.structure(kind, kind.name)
        elif isinstance(kind, c_ast.Enum):
            for number, entry in enumerate(kind.values.enumerators):
                value = entry.value or c_ast.Constant("int", str(number))
                self.constant(kind.coord.line, f"enum {kind.name}", entry.name, value)

    def constant(self, line: int, heading: str, name: str, value: c_ast.Node) -> None:
        """Keep it, written as the header does where that is a plain number."""
        found = self.values[name] = self.evaluate(value)
        plain = isinstance(value, c_ast.Constant) and value.value.lower().startswith("0x")
        text = repr(found) if isinstance(found, str) else hex(found) if plain else decimal(found)
        self.constants.append(
            (line, heading, f"{name.removeprefix(self.mirror.constants)} = {text}")
        )

    def evaluate(self, node: Any) -> Any:
        """The value of a constant expression of this header."""
        try:
            return evaluate(node, self.values)
        except NotConstant as error:
            raise LayoutError(
                f"{self.mirror.header} has a constant that tools/layouts.py cannot evaluate: "
                f"{error}"
            ) from error

    def class_name(self, name: str) -> str:
        """The Python name of a structure."""
        if name in self.mirror.names:
            return self.mirror.names[name]
        if "." in name:
            raise LayoutError(f"MIRRORS of tools/layouts.py must name the structure {name}")
        words = name.removeprefix(self.mirror.structures).split("_")
        return "".join(word.capitalize() for word in words)

    def structure(self, kind: c_ast.Struct, name: str) -> None:
        """Keep it, behind those that it contains without a name."""
        members = [
            (decl.name, self.type_of(decl.type, f"{name}.{decl.name}")) for decl in kind.decls
        ]
        self.structures.append((name, self.class_name(name), kind.coord.line, members))

    def type_of(self, kind: Any, place: str) -> str:
        """The ctypes expression of a member's type."""
        if isinstance(kind, c_ast.ArrayDecl):
            return f"{self.type_of(kind.type, place)} * {self.evaluate(kind.dim)}"
        inner = kind.type
        if isinstance(inner, c_ast.Struct):
            if inner.decls:
                self.structure(inner, place)
            return self.class_name(inner.name or place)
        word = " ".join(inner.names) if isinstance(inner, c_ast.IdentifierType) else ""
        if word not in CTYPES:
            raise LayoutError(
                f"{place} in {self.mirror.header} has a type that tools/layouts.py does not know"
            )
        return CTYPES[word]


def decimal(value: int) -> str:
    """With a separator where the digits would be hard to count."""
    return f"{value:_}" if abs(value) >= 100_000 else str(value)


def comment(lines: list[str], at: int) -> str:
    """The comment of the structure that begins in this line: behind the brace, or directly
    above.
    """
    behind = re.search(r"\{\s*/\*(.*)\*/\s*$", lines[at - 1])
    above = re.search(r"/\*((?:(?!/\*).)*)\*/\s*\Z", "\n".join(lines[: at - 1]), re.DOTALL)
    if behind:
        return behind[1].strip()
    if above is None or not lines[at - 2].strip() or above[1].lstrip().startswith("----"):
        return ""
    if "*/" in lines[at - 2] and lines[at - 2].startswith("#"):
        return ""  # of a macro
    return " ".join(re.sub(r"^\s*\*", "", above[1], flags=re.MULTILINE).split())


def docstring(name: str, text: str) -> str:
    """The C name, and what the header says about it."""
    outer, _, member = name.partition(".")
    if member:
        return f'    """One entry of struct {outer}.{member}."""\n'
    text = re.sub(r"^[A-Z](?=[a-z ])", lambda first: first[0].lower(), text)
    text = f"struct {name}: {text.rstrip('.')}." if text else f"struct {name}."
    if len(text) <= WIDTH - 10:
        return f'    """{text}"""\n'
    return textwrap.indent("\n".join(textwrap.wrap(f'"""{text}', WIDTH - 4)) + '\n"""\n', "    ")


def module_text(mirror: Mirror) -> str:
    """The module of a header. Raises LayoutError."""
    header = Header(mirror)
    header.read()
    source = (ROOT / mirror.header).read_text(encoding="utf-8").splitlines()
    text = f'"""Constants and structures of {mirror.header}.\n\n'
    text += (
        "Generated from it by `make layouts`: edit the header, not this file. Its comments explain "
        "each\nfield.\n"
    )
    text += '"""\n\nfrom __future__ import annotations\n\n'
    kinds = " ".join(kind for *_, members in header.structures for _, kind in members)
    used = sorted(
        set(re.findall(r"\bc_\w+", kinds)),
        key=lambda word: (word.rstrip("0123456789"), len(word), word),
    )
    text += (
        f"import ctypes\nfrom ctypes import {', '.join(used)}\nfrom typing import Any, ClassVar\n\n"
    )
    heading = ""
    for _, above, line in header.constants:
        if above != heading:
            text += f"\n# {above}\n" if above else "\n"
        heading = above
        text += f"{line}\n"
    for name, cls, at, members in header.structures:
        text += f"\n\nclass {cls}(ctypes.Structure):\n{docstring(name, comment(source, at))}\n"
        text += "    _fields_: ClassVar[Any] = [\n"
        text += "".join(f'        ("{member}", {kind}),\n' for member, kind in members) + "    ]\n"
    text += (
        "\n\n#: The class of each structure. OUTER.MEMBER: an entry of an array whose type "
        "has no name.\n"
    )
    text += "STRUCTS: dict[str, type[ctypes.Structure]] = {\n"
    text += "".join(f'    "{name}": {cls},\n' for name, cls, *_ in header.structures) + "}\n"
    return formatted(text, mirror.module)


def formatted(text: str, module: str) -> str:
    """The text in the one style."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    command = [ruff, "format", "--stdin-filename", str(ROOT / module), "-"]
    return subprocess.run(
        command, input=text, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def stale() -> Iterator[tuple[Mirror, str]]:
    """Each module that is not what its header makes of it, with the text that it should have."""
    for mirror in MIRRORS:
        text, path = module_text(mirror), ROOT / mirror.module
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield mirror, text


def main(arguments: list[str]) -> int:
    """Write what is stale, or only name it."""
    check = arguments == ["--check"]
    try:
        found = list(stale())
    except LayoutError as error:
        print(error, file=sys.stderr)
        return 1
    for mirror, text in found:
        if check:
            print(
                f"{mirror.module} differs from {mirror.header}: run `make layouts` and commit the "
                "file"
            )
        else:
            (ROOT / mirror.module).write_text(text, encoding="utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
